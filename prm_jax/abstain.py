"""Lets a search abstain on problems where it is likely to be wrong.

    python -m prm_jax.abstain --held_out WORKDIR --workdir WORKDIR --error 0.05

Both are workdirs of finished search jobs, of the same method, policy and PRM on
two splits. A threshold on chain scores is found on the first split: the lowest
with at most that error rate (`evals/selective.py` says what is guaranteed). It
is applied to the second search and written there, to abstain.json and a section
of report.html. Choose the error rate before you look at the errors of the
tested problems: several tries are several chances.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from prm_jax import report
from prm_jax.data import chains
from prm_jax.data.chains import Chain
from prm_jax.evals.abstain import abstain_section
from prm_jax.evals.search import search_meta
from prm_jax.evals.selective import CONFIDENCE
from prm_jax.runtime import manifest, paths
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.workdir import (
  MAY_CHANGE,
  differences,
  read_results,
  write_json,
)
from prm_jax.search.methods import METHODS

# Values in which the two searches may differ: which problems of the same kind
# were searched, and how fast.
MAY_DIFFER = (
  'name',
  'problems.split',
  'problems.first',
  'problems.count',
  'trees',
  'go_on_from',  # compared by `_searches`
  'cpu_devices',
  *MAY_CHANGE,
)


def read_search(
  workdir: str, flag: str
) -> tuple[list[Chain], dict[str, Any], int]:
  """Reads the chosen chains of a search job, its config, and its failures.

  Returns:
    The chains, the config, and the number of problems that failed.

  Raises:
    UserError: no search job ended there.
  """
  folder = paths.open_path(workdir)
  try:
    failed = read_results(folder)['results']['search']['failed']
    config = paths.read_json(folder / 'config.json', 'run the search again')
    lines = paths.read_lines(folder / 'chains.jsonl')
  except (OSError, LookupError, TypeError):
    config, lines, failed = {}, [], 0
  if config.get('task') != 'search':
    raise UserError(
      f'--{flag} {workdir}: no search job ended there; name the --workdir of '
      'one that is done'
    )
  found = []
  for number, line in enumerate(lines, 1):
    try:
      found.append(chains.from_dict(json.loads(line)))
      search_meta(found[-1])
    except (UserError, ValueError, RecursionError) as error:
      raise UserError(
        f'{folder / "chains.jsonl"}:{number}: {error}; run the search again'
      ) from None
  return found, config, failed


def abstain(
  held_out: str,
  workdir: str,
  error: float,
  confidence: float = CONFIDENCE,
  seed: int = 0,
) -> dict[str, Any]:
  """Finds the threshold on one search, applies it to another, writes it there.

  Args:
    held_out: workdir of a search job on held-out problems.
    error: wanted error rate among the answered problems, in (0, 1).
    confidence: probability that the error rate is kept.
    seed: seed of the split of the held-out problems.

  Returns:
    The section that `abstain_section` makes; abstain.json has it beside the
    command.

  Raises:
    UserError: a workdir is not that of a finished search, the two searches
      differ in more than their problems, their method has no chain scores, or
      `abstain_section` refuses them.
  """
  chosen, ours, _ = read_search(held_out, 'held_out')
  tested, _, failed = read_search(workdir, 'workdir')
  free = MAY_DIFFER
  if ours['problems'].get('kind') == 'file':  # a split is a file of its own
    free += ('problems.path',)
  searches = _searches(held_out), _searches(workdir)
  different = [
    name
    for pair in zip(*searches, strict=False)
    for name in differences(*pair)
    if not any(f'{name}.'.startswith(f'{each}.') for each in free)
  ]
  if len(searches[0]) != len(searches[1]):
    different.append('go_on_from')
  if different:
    raise UserError(
      f'--held_out and --workdir searched with another {different[0]}: a '
      'threshold holds for the search that it was found on; name two searches '
      'that differ in their problems alone'
    )
  if not METHODS[ours['method']].scores:
    raise UserError(
      f'--held_out {held_out}: method={ours["method"]!r} gives its answers no '
      'chain scores to choose by; name searches that ask a PRM'
    )
  section = abstain_section(chosen, tested, error, confidence, seed, failed)
  folder = paths.open_path(workdir)
  about = manifest.describe(seed, 'prm_jax.abstain')
  about |= {
    'held_out': held_out,
    'searched': read_results(folder).get('dataset'),
  }
  write_json(folder / 'abstain.json', {'manifest': about, 'abstain': section})
  report.write_report(folder)
  return section


def _searches(workdir: str) -> list[dict[str, Any]]:
  """Describes a search, and after it those that it goes on from.

  Returns:
    Configs; those of policy and PRM have the name of the model, too. The policy
    is the one that sampled recorded chains.
  """
  found = []
  while workdir:
    config, about = _read_job(workdir)
    policy = config.get('policy', {})
    if policy.get('kind') == 'recorded':
      sampled, about_sampled = _read_job(policy['workdir'])
      config |= {'policy': sampled.get('policy', {})}
      about |= {'policy': about_sampled.get('policy')}
    named = {
      side: {**config.get(side, {}), 'model': about.get(side)}
      for side in ('policy', 'prm')
    }
    found.append(config | named)
    workdir = config.get('go_on_from', '')
  return found


def _read_job(workdir: str) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the config and the manifest of a job that is done."""
  folder, cure = paths.open_path(workdir), f'bring the job of {workdir} back'
  config = paths.read_json(folder / 'config.json', cure)
  return config, read_results(folder).get('manifest', {})


def summarise(section: dict[str, Any]) -> str:
  """Returns the section in a line."""
  tested = section['tested']
  wanted = f'at most {section["wanted_error"]:.3g} wrong'
  if section['threshold'] is None:
    return (
      f'abstain: nothing is answered: {section["tested_on"]} held-out problems '
      f'do not show {wanted} at any threshold; search more of them, or accept '
      'more errors'
    )
  line = (
    f'abstain: {tested["answered"]:,} of {tested["problems"]:,} answered, from '
    f'a chain score of {section["threshold"]:.6g} on, for {wanted}'
  )
  if tested.get('error') is not None:
    low, high = tested['ci95']
    line += (
      f'; of these wrong: {tested["error"]:.3f} [{low:.3f}, {high:.3f}]; '
      f'of all problems without a right answer: {tested["error_of_all"]:.3f}'
    )
  return line


def main(argv: Sequence[str]) -> None:
  """Runs the command; a user's fault ends it with exit code 2."""
  parser = argparse.ArgumentParser(
    prog='prm_jax.abstain',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    '--held_out', required=True, help='search on held-out problems'
  )
  parser.add_argument('--workdir', required=True, help='search to filter')
  parser.add_argument(
    '--error',
    required=True,
    type=float,
    help='wanted error rate among the answered',
  )
  parser.add_argument('--confidence', type=float, default=CONFIDENCE)
  parser.add_argument(
    '--seed',
    type=int,
    default=0,
    help='draws the quarter of the held-out problems that proposes scores',
  )
  given = parser.parse_args(argv)
  with exit_on_user_error():
    print(summarise(abstain(**vars(given))))


if __name__ == '__main__':
  main(sys.argv[1:])

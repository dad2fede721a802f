"""Do published PRMs have their published ProcessBench scores here?

    pip install -e '.[experiments,cuda]'
    python -m experiments.published.run --workdir DIR --data-root DATA

For each model of MODELS, opened from the Hugging Face Hub, ProcessBench is
scored and compared with the F1 that was published. This needs the network once
and, for the models of 7B and 8B parameters, a GPU of 24 GB (--dtype bfloat16)
or 40 GB of memory. A model in a folder: --models NAME=FOLDER. DATA holds
processbench/gsm8k.json and math.json; olympiadbench.json and omnimath.json are
scored where they are. Scores are kept in the workdir, so the same command goes
on where it was stopped. Writes results.json and the table of README.md beside
this file.
"""

import argparse
import hashlib
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line
from experiments.tables import table
from prm_jax.data.chains import Chain
from prm_jax.data.readers import read_chains
from prm_jax.evals import localisation, suite
from prm_jax.evals.prm import of_some_problems, score_chains
from prm_jax.evals.scorers import make_part
from prm_jax.inference.loading import load
from prm_jax.inference.scorer import Scorer
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.workdir import write_lines

SETS = ('gsm8k', 'math', 'olympiadbench', 'omnimath')
CHOOSES = 'gsm8k'  # the set whose best threshold is used on all
RESAMPLES = 2000
PART = 64  # chains that are scored between two savings
SAME = 0.5  # points of F1 that rounding in other places may move


class Published(NamedTuple):
  """Describes a published PRM.

  Attributes:
    where: its name at the Hub.
    style: as `prm_jax.load` takes it; '' where the weights show it.
    f1: published F1 in percent on the sets of SETS (Zheng et al., 2024, and
      Zhang et al., 2025).
  """

  where: str
  style: str
  f1: tuple[float, float, float, float]


MODELS = {
  'math_shepherd_7b': Published(
    # Its main branch has a pickle.
    'hf://peiyi9979/math-shepherd-mistral-7b-prm@refs/pr/5',
    'math_shepherd',
    (47.9, 29.5, 24.8, 23.8),
  ),
  'rlhflow_mistral_8b': Published(
    'hf://RLHFlow/Llama3.1-8B-PRM-Mistral-Data',
    'rlhflow',
    (50.4, 33.4, 13.8, 15.8),
  ),
  'rlhflow_deepseek_8b': Published(
    'hf://RLHFlow/Llama3.1-8B-PRM-Deepseek-Data',
    'rlhflow',
    (38.8, 33.8, 16.9, 16.9),
  ),
  'skywork_1_5b': Published(
    'hf://Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B',
    '',
    (59.0, 48.0, 19.3, 19.2),
  ),
  'skywork_7b': Published(
    'hf://Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B',
    '',
    (70.8, 53.6, 22.9, 21.0),
  ),
  'qwen2_5_math_7b_prm800k': Published(
    'hf://Qwen/Qwen2.5-Math-7B-PRM800K', '', (68.2, 62.6, 50.7, 44.3)
  ),
  'qwen2_5_math_prm_7b': Published(
    'hf://Qwen/Qwen2.5-Math-PRM-7B', '', (82.4, 77.6, 67.5, 66.3)
  ),
}


def read_sets(root: pathlib.Path, problems: int) -> dict[str, list[Chain]]:
  """Reads the sets of ProcessBench that are there.

  Args:
    problems: of each set, evenly spaced; 0 takes all.

  Raises:
    UserError: CHOOSES is not there.
  """
  sets = {}
  for name in SETS:
    path = root / 'processbench' / f'{name}.json'
    if path.exists() or name == CHOOSES:
      chains, _ = read_chains(path, 'processbench')
      kept = of_some_problems(chains, problems)
      sets[name] = [chains[i] for i in kept]
  return sets


def read_scores(
  chains: Sequence[Chain], folder: pathlib.Path, opened: list[Scorer], load_it
) -> list[np.ndarray]:
  """Scores chains in parts, or finds in the folder what was scored before.

  Args:
    opened: holds the model once it is opened.
    load_it: opens the model.
  """
  scores: list[np.ndarray] = []
  for start in range(0, len(chains), PART):
    part = chains[start : start + PART]
    path = folder / f'{start:05}.jsonl'
    if not path.exists():
      if not opened:
        opened.append(load_it())
      found = score_chains(opened[0], part)
      folder.mkdir(parents=True, exist_ok=True)
      write_lines(
        path,
        (
          {'id': chain.meta['id'], 'scores': own.tolist()}
          for chain, own in zip(part, found, strict=True)
        ),
      )
      print(f'{folder}: {start + len(part)} of {len(chains)}', flush=True)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    if [it['id'] for it in records] != [chain.meta['id'] for chain in part]:
      raise UserError(
        f'{path} has scores of other chains; delete {folder}, or choose '
        'another --workdir'
      )
    scores += [np.array(it['scores'], np.float64) for it in records]
  return scores


def measure(
  sets: Mapping[str, Sequence[Chain]],
  scores: Mapping[str, Sequence[np.ndarray]],
  published: Sequence[float],
) -> dict[str, Any]:
  """Returns the F1 of a model on each set, by two thresholds."""
  padded = {
    name: suite.pad_scores(chains, scores[name])
    for name, chains in sets.items()
  }
  parts = {name: make_part(chains) for name, chains in sets.items()}

  values, mask, read = padded[CHOOSES]
  chosen, _ = localisation.choose_threshold(
    values, mask, parts[CHOOSES].first, read
  )
  found = {}
  for name, chains in sets.items():
    values, mask, read = padded[name]
    problems = suite.problem_ids(chains)
    own: dict[str, Any] = {
      'published': published[SETS.index(name)],
      'chains': len(chains),
      'unread': int((~padded[name].whole).sum()),
    }
    for rule, threshold in (('half', 0.5), ('chosen', chosen)):
      guess = localisation.predict_first_error(values, mask, threshold, read)
      f1, *ci95 = localisation.f1_ci(
        guess, parts[name].first, problems, 0, RESAMPLES
      )
      own[rule] = {'threshold': threshold, 'f1': 100 * f1}
      own[rule]['ci95'] = [100 * x for x in ci95]
    own['verdict'] = verdict(own)
    found[name] = own
  return found


def verdict(own: Mapping[str, Any]) -> str:
  """Says whether a set has the published F1, by the nearer threshold."""
  published = own['published']
  rule = min(
    ('half', 'chosen'), key=lambda rule: abs(own[rule]['f1'] - published)
  )
  apart = own[rule]['f1'] - published
  name = '0.5' if rule == 'half' else f'that of {CHOOSES}'
  if abs(apart) <= SAME:
    return f'the same, at {name}'
  low, high = own[rule]['ci95']
  within = 'within' if low <= published <= high else 'outside'
  return f'{apart:+.1f} at {name}, {within} the interval'


def render(document: Mapping[str, Any]) -> str:
  """Makes the table of all models and sets."""
  if not document['models']:
    return 'No model has been scored yet.'
  rows = []
  for model, found in document['models'].items():
    for name, own in found['sets'].items():
      cells = [
        f'{own[rule]["f1"]:.1f} '
        f'({own[rule]["ci95"][0]:.1f} to {own[rule]["ci95"][1]:.1f})'
        for rule in ('half', 'chosen')
      ]
      shown = f'{own["published"]:.1f}', own['verdict']
      rows.append(
        [f'{model}, {found["dtype"]}', name, str(own['chains']), *cells, *shown]
      )
  return table(
    f'model | set | chains | F1 at 0.5 | F1 at the threshold of {CHOOSES} | '
    'published | verdict',
    rows,
  )


def parse() -> argparse.Namespace:
  """Parses the command line; `models` becomes name -> folder or Hub name."""
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--data-root'
  )
  parser.add_argument(
    '--models',
    nargs='*',
    default=tuple(MODELS),
    metavar='NAME[=FOLDER]',
    help=f'which of {", ".join(MODELS)}; default: all, from the Hub; without '
    'a name the table is made again',
  )
  parser.add_argument(
    '--problems', type=int, default=0, help='of each set; 0 takes all'
  )
  parser.add_argument(
    '--dtype', choices=('float32', 'bfloat16'), default='bfloat16'
  )
  args = command_line.parse(parser, free=('models', 'dtype'))
  chosen = {}
  for given in args.models:
    name, _, folder = given.partition('=')
    if name not in MODELS:
      parser.error(f'--models {name}: expected one of {", ".join(MODELS)}')
    chosen[name] = folder or MODELS[name].where
  args.models = chosen
  return args


@exit_on_user_error()
def main() -> None:
  args = parse()
  sets = read_sets(pathlib.Path(args.data_root), args.problems)
  path = args.output / 'results.json'
  known = json.loads(path.read_text())['models'] if path.exists() else {}

  def save() -> None:
    document = command_line.made_by(args) | {
      'models': {name: known[name] for name in MODELS if name in known},
    }
    command_line.write(args.output, document, render(document))

  faults = []
  for name, where in args.models.items():
    opened: list[Scorer] = []
    digest = hashlib.sha256(where.encode()).hexdigest()[:8]
    folder = args.workdir / f'{name}_{digest}_{args.dtype}'
    try:
      scores = {
        of: read_scores(
          chains,
          folder / of,
          opened,
          lambda: load(where, style=MODELS[name].style, dtype=args.dtype),  # noqa: B023
        )
        for of, chains in sets.items()
      }
    except UserError as error:  # the others may be read
      faults.append(f'{name}: {error}')
      print(f'error: {faults[-1]}', file=sys.stderr, flush=True)
      continue
    how = {
      'git_commit': manifest.git_commit(),
      'dtype': args.dtype,
      'from_hub': where == MODELS[name].where,
    }
    known[name] = how | {'sets': measure(sets, scores, MODELS[name].f1)}
    save()
  save()
  if faults:
    raise UserError(f'these models were not read: {"; ".join(faults)}')


if __name__ == '__main__':
  main()

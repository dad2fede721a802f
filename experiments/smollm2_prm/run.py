"""A PRM from SmolLM2-135M beside what its backbone knows without training.

    python -m experiments.smollm2_prm.run --workdir DIR [--train likelihood]

Scores ProcessBench by rules that need no model, by the log-probabilities of the
untrained backbone, and by every recipe whose training run is in the workdir;
--train runs some recipes first. The thresholds of all rows come from the same
held-out training problems. Writes results.json and the table of README.md
beside this file. The same command resumes what is there.
"""

import argparse
import dataclasses
import pathlib
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line
from experiments.runner import ROOT
from experiments.smollm2_prm import likelihood, recipes
from experiments.smollm2_prm.judging import (
  DEV,
  LENGTH_RULE,
  REFERENCE,
  Part,
  add_signals,
  compare,
  make_part,
)
from experiments.tables import between, percent, points, table
from prm_jax.data import builder
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.settings.training import PrmSettings
from prm_jax.jobs.training import Model, open_model
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh

# Dev chains written by somebody who solved the problem; the others have errors
# planted in them.
NATURAL = ('prm800k_flat', 'prmbench_original', 'verify_then_generate')
AND_DIGITS = '_and_digits'
ROWS = {
  'digit_count': 'trivial: minus the digits of the step',
  LENGTH_RULE: 'trivial: best rule on chain length',
  REFERENCE: 'zero-shot: sum over the digit tokens',
  'mean_likelihood': 'zero-shot: mean over all tokens',
  'minimum_likelihood': 'zero-shot: minimum over all tokens',
}
for _name, (_, _, _text) in recipes.RECIPES.items():
  ROWS[_name] = f'trained: {_text}'
  ROWS[_name + AND_DIGITS] = f'{_name} + sum over the digit tokens'
SETS = {'gsm8k': 0, 'math': 250, DEV: 0}  # default numbers of chains; 0: all
RESAMPLES = 2000


def evenly(chains: Sequence[Chain], count: int) -> list[Chain]:
  """Picks evenly spaced chains, as ProcessBench's wrong chains come first.

  Args:
    count: number of chains; 0: all.
  """
  count = min(count or len(chains), len(chains))
  return [chains[i * len(chains) // count] for i in range(count)]


def base_settings(data_folder: pathlib.Path) -> PrmSettings:
  """Returns the `smollm2` variant, for its backbone, format and data."""
  config = runpy.run_path(str(ROOT / recipes.CONFIG))['get_config']('smollm2')
  config.data.dir = str(data_folder)
  config.data.worked_answers = ''  # only training reads them
  config.model.dtype = 'float32'  # the untrained rows' dtype
  return read_settings(config.to_dict())


def sets_of(dataset: Dataset) -> dict[str, list[Chain]]:
  """Returns the chains of each set, in the order in which they are scored."""
  return {
    'gsm8k': dataset.evaluations['gsm8k'],
    DEV: [c for c in dataset.dev if c.meta['dataset'] in NATURAL],
    'math': dataset.evaluations['math'],
  }


def untrained_scores(
  chains: Sequence[Chain], cache: pathlib.Path, opened: Model, mesh: Any
) -> tuple[dict[str, list[np.ndarray]], int]:
  """Scores steps by the rows that need no training.

  Args:
    cache: file of the backbone's log-probabilities.

  Returns:
    The step scores of each row, and the number of steps beyond the window.
  """
  model, fmt = opened.described.model, opened.described.format
  encodings = [likelihood.encode(chain, fmt) for chain in chains]
  known = likelihood.read_or_compute(
    [encoding for encoding in encodings if encoding is not None],
    cache,
    lambda: opened.base.load(mesh),
    model,
    log,
  )
  found = [
    likelihood.step_scores(
      encoding, known, fmt.digit_tokens, len(fmt.separator)
    )
    for encoding in encodings
  ]
  scores = {
    REFERENCE: [by_rule['digits'] for by_rule in found],
    'mean_likelihood': [by_rule['mean'] for by_rule in found],
    'minimum_likelihood': [by_rule['minimum'] for by_rule in found],
    'digit_count': [
      np.array([-sum(c in likelihood.DIGITS for c in s) for s in chain.steps])
      for chain in chains
    ],
  }
  read = sum(0 if e is None else len(e.step_ends) for e in encodings)
  return scores, sum(len(chain.steps) for chain in chains) - read


def results_table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Shows every row on every set, in percent."""
  rows = []
  for name, scorers in found.items():
    for scorer, values in scorers.items():
      lead = values[f'minus_{REFERENCE}']
      difference, (low, high) = lead['difference'], lead['ci95']
      rows.append(
        [
          name,
          ROWS[scorer],
          percent(values['f1']),
          between(values['ci95']),
          percent(values['acc_error']),
          percent(values['acc_correct']),
          ''
          if scorer == REFERENCE
          else f'{points(difference)} ({points(low)} to {points(high)})',
        ]
      )
  heads = (
    'set | scorer | F1 | 95% interval | acc, error | acc, correct | '
    'F1 minus digit likelihood'
  )
  return table(heads, rows)


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, and the notes below it."""
  text = results_table(document['results']['localisation'])
  return f'{text}\n\n{notes(document)}'


def notes(document: Mapping[str, Any]) -> str:
  """Says what the table does not: the chains, upper bounds, and best of N."""
  about, results = document['manifest'], document['results']
  lines = [
    f'{name} has {count["chains"]} of {count["of"]} chains, {count["error"]} '
    f'with an error; {count["unread_steps"]} steps are beyond the window.'
    for name, count in about['sets'].items()
  ]
  for name, rows in results['localisation'].items():
    best = ', '.join(
      f'{percent(values["upper_bound"]["f1"])} ({row})'
      for row, values in rows.items()
      if 'upper_bound' in values
    )
    lines.append(f'F1 at the best threshold of {name} itself: {best}.')
  for row, curve in results['best_of_n'].items():
    picked = ', '.join(
      f'{percent(values["mean"][-1])} ({name})'
      for name, values in curve.items()
      if name != 'n'
    )
    lines.append(f'Best of {curve["n"][-1]} over the pool, {row}: {picked}.')
  return '\n'.join(f'- {line}' for line in lines)


def log(text: str) -> None:
  print(text, flush=True)


def parse() -> tuple[argparse.Namespace, list[str]]:
  """Parses the command line.

  Returns:
    The arguments, and those that go on to the training runs.
  """
  names = [*recipes.RECIPES]
  parser = command_line.make_parser(__doc__, __file__, '--workdir')
  parser.epilog = 'Arguments --config.NAME=VALUE go on to the training runs.'
  parser.add_argument(
    '--train', nargs='*', default=[], choices=names, help='recipes to train'
  )
  parser.add_argument(
    '--report', choices=names, help='recipe whose report.html is written, too'
  )
  for name, count in SETS.items():
    parser.add_argument(
      f'--{name}', type=int, default=count, help='chains, evenly spaced; 0: all'
    )
  args, extra = parser.parse_known_args()
  if wrong := [x for x in extra if not x.startswith('--config.')]:
    parser.error(f'unknown argument {wrong[0]}')
  return args, extra


class Scored(NamedTuple):
  """The sets and what every row scores their steps with.

  Attributes:
    parts: the chains of each set.
    counts: how many chains and steps of each set there are, for results.json.
    scores: row -> set -> step scores of each chain.
  """

  parts: dict[str, Part]
  counts: dict[str, dict[str, int]]
  scores: dict[str, dict[str, list[np.ndarray]]]


def score_untrained(
  args: argparse.Namespace, dataset: Dataset, opened: Model, mesh: Any
) -> Scored:
  """Scores all sets by the rows that need no training."""
  fmt, dtype = opened.described.format, opened.described.model.dtype
  scored = Scored({}, {}, {})
  for name, chains in sets_of(dataset).items():
    part = make_part(evenly(chains, getattr(args, name)))
    cache = args.workdir / f'logprobs_{name}_{dtype}_{fmt.fingerprint()}.npz'
    by_row, unread = untrained_scores(part.chains, cache, opened, mesh)
    scored.parts[name] = part
    for row, values in by_row.items():
      scored.scores.setdefault(row, {})[name] = values
    scored.counts[name] = {
      'chains': len(part.chains),
      'of': len(chains),
      'error': int((part.first >= 0).sum()),
      'problems': len({chain.problem for chain in part.chains}),
      'unread_steps': unread,
    }
  return scored


def add_trained(scored: Scored, recipe: str, workdir: pathlib.Path) -> None:
  """Scores all sets by a trained recipe, alone and with the likelihood."""
  trained = recipes.TrainedScores(recipe, workdir)
  scores = {
    name: trained.score(name, part.chains, builder.fingerprint(part.chains))
    for name, part in scored.parts.items()
  }
  scored.scores[recipe] = scores
  both = add_signals(scores, scored.scores[REFERENCE])
  scored.scores[recipe + AND_DIGITS] = both


def main() -> None:
  args, extra = parse()
  data_folder = (args.workdir / 'data').absolute()
  for name in args.train:
    recipes.train(name, args.workdir, data_folder, extra)

  settings = base_settings(data_folder)
  opened = open_model(settings)
  args.workdir.mkdir(parents=True, exist_ok=True)
  dataset = load_dataset(settings.data, settings.seed, args.workdir, log)
  mesh = make_mesh(dataclasses.asdict(settings.mesh))
  scored = score_untrained(args, dataset, opened, mesh)
  runs = {
    name: recipes.read(name, args.workdir)
    for name in recipes.trained(args.workdir)
  }
  for recipe in runs:
    add_trained(scored, recipe, args.workdir)

  found = compare(scored.scores, scored.parts, settings.seed, RESAMPLES)
  found = {
    name: {row: rows[row] for row in ROWS if row in rows}
    for name, rows in found.items()
  }
  on_dev = found.pop(DEV)
  fmt, dev = opened.described.format, scored.counts[DEV]
  flags = ' '.join(f'--{name}={getattr(args, name)}' for name in scored.parts)
  document = {
    'manifest': manifest.describe(settings.seed)
    | {
      'command': f'{args.command} {flags}',
      'data_fingerprint': dataset.fingerprint,
      'encoding_fingerprint': fmt.fingerprint(),
      'dtype_untrained': opened.described.model.dtype,
      'window': fmt.max_length,
      'threshold_source': f'best F1 on {dev["chains"]} natural chains of '
      f'{dev["problems"]} held-out training problems',
      'sets': scored.counts,
      'runs': {name: run['manifest'] for name, run in runs.items()},
    },
    'results': {
      'localisation': found,
      'dev': on_dev,
      'best_of_n': {
        name: run['results']['best_of_n']
        for name, run in runs.items()
        if 'best_of_n' in run['results']
      },
    },
  }
  if args.report:
    recipes.write_report_without_chains(args.report, args.workdir, args.output)
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  try:
    main()
  except UserError as error:
    sys.exit(f'error: {error}')

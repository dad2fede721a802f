"""A PRM from SmolLM2-135M beside what its backbone knows without training.

    python -m experiments.smollm2_prm.run --workdir DIR [--train likelihood]

The backbone reads every chain once. ProcessBench is scored by rules that need
no model, by the log-probabilities of the untrained backbone, by heads that are
fitted on what it makes of the steps, and by every recipe whose training runs
are in the workdir; --train runs some recipes first. The thresholds of all rows
come from the same held-out training problems. Writes results.json and the table
of README.md beside this file. The same command resumes what is there.
"""

import argparse
import dataclasses
import functools
import pathlib
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line
from experiments.runner import ROOT, Runner
from experiments.smollm2_prm import frozen, recipes, states
from experiments.smollm2_prm.judging import (
  DEV,
  LENGTH_RULE,
  REFERENCE,
  Part,
  Scores,
  add_signals,
  compare,
  make_part,
)
from experiments.tables import (
  between,
  mean,
  percent,
  points,
  points_between,
  table,
)
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.evals.prm import of_some_problems
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.settings.training import PrmSettings
from prm_jax.jobs.training import Model, open_model
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh

# Dev chains written by somebody who solved the problem; the others have errors
# planted in them.
NATURAL = ('prm800k_flat', 'prmbench_original', 'verify_then_generate')
# Chains that heads are fitted on, evenly spaced in each kind.
FITTED = {True: 350, False: 150}  # natural, planted
AND_DIGITS = '_and_digits'
ROWS = {
  'digit_count': 'trivial: minus the digits of the step',
  LENGTH_RULE: 'trivial: best rule on chain length',
  REFERENCE: 'zero-shot: sum over the digit tokens',
  'mean_likelihood': 'zero-shot: mean over all tokens',
  'minimum_likelihood': 'zero-shot: minimum over all tokens',
}
ROWS |= {name: f'head on {text}' for name, text in frozen.HEADS.items()}
for _name, _recipe in recipes.RECIPES.items():
  ROWS[_name] = f'trained: {_recipe.text}'
  ROWS[_name + AND_DIGITS] = f'{_name} + sum over the digit tokens'
RESAMPLES = 2000


def base_settings(data_folder: pathlib.Path) -> PrmSettings:
  """Returns the `smollm2` variant, for its backbone, format and data."""
  config = runpy.run_path(str(ROOT / recipes.CONFIG))['get_config']('smollm2')
  config.data.dir = str(data_folder)
  config.model.dtype = 'float32'  # the untrained rows' dtype
  return read_settings(config.to_dict())


class Chosen(NamedTuple):
  """Chains that are scored, and their indices in their set."""

  chains: list[Chain]
  indices: list[int]


def is_natural(chain: Chain) -> bool:
  """Says whether somebody wrote the chain who solved the problem."""
  return chain.meta['dataset'] in NATURAL


def sets_of(dataset: Dataset) -> dict[str, Chosen]:
  """Returns the chains of each set that a run of `recipes.py` scores, too."""
  found = {}
  for name in ('gsm8k', DEV, 'math'):
    if name == DEV:
      chains = dataset.dev
      chosen = [i for i, chain in enumerate(chains) if is_natural(chain)]
    else:
      chains = dataset.evaluations[name]
      chosen = of_some_problems(chains, recipes.PROBLEMS)
    found[name] = Chosen([chains[i] for i in chosen], chosen)
  return found


def chains_to_fit(train: Sequence[Chain]) -> list[Chain]:
  """Picks chains of both kinds, evenly spaced."""
  picked: list[Chain] = []
  kinds = {kind: [c for c in train if is_natural(c) == kind] for kind in FITTED}
  for kind, chains in kinds.items():
    count = min(FITTED[kind], len(chains))
    picked += [chains[i * len(chains) // count] for i in range(count)]
  return picked


class Scored(NamedTuple):
  """The sets and what every row scores their steps with.

  Attributes:
    parts: the chains of each set.
    indices: their indices in the set.
    counts: how many chains and steps of each set there are, for results.json.
    scores: row -> of each run, set -> step scores of each chain.
  """

  parts: dict[str, Part]
  indices: dict[str, list[int]]
  counts: dict[str, dict[str, int]]
  scores: dict[str, list[Scores]]


def score_frozen(
  workdir: pathlib.Path,
  dataset: Dataset,
  opened: Model,
  settings: PrmSettings,
  seeds: Sequence[int],
) -> Scored:
  """Scores all sets by the rows that do not train the backbone."""
  model, fmt = opened.described.model, opened.described.format
  mesh = make_mesh(dataclasses.asdict(settings.mesh))
  load_backbone = functools.cache(lambda: opened.base.load(mesh))

  def read(name: str, chains: Sequence[Chain]) -> list[np.ndarray]:
    return states.read_or_load(
      chains,
      workdir / f'states_{model.dtype}_{fmt.fingerprint()}',
      (model, fmt),
      load_backbone,
      lambda text: log(f'{name}: {text}'),
    )

  of_set = {DEV: dataset.dev, **dataset.evaluations}
  chosen = sets_of(dataset)
  features = {name: read(name, set_.chains) for name, set_ in chosen.items()}
  parts = {name: make_part(set_.chains) for name, set_ in chosen.items()}
  counts = {
    name: {
      'chains': len(part.chains),
      'of': len(of_set[name]),
      'error': int((part.first >= 0).sum()),
      'problems': len({chain.problem for chain in part.chains}),
      'unread_steps': sum(
        len(chain.steps) - len(own)
        for chain, own in zip(part.chains, features[name], strict=True)
      ),
    }
    for name, part in parts.items()
  }
  scores = frozen.untrained_scores(parts, features)
  fitted = chains_to_fit(dataset.train)
  own = read('train', fitted)
  for seed in seeds:
    found = frozen.head_scores(
      (fitted, own), parts, features, settings.targets, seed
    )
    for row, by_set in found.items():
      scores.setdefault(row, []).append(by_set)
  indices = {name: set_.indices for name, set_ in chosen.items()}
  return Scored(parts, indices, counts, scores)


def results_table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Shows every row on every set, in percent."""
  lead, rows = f'minus_{REFERENCE}', []
  for name, scorers in found.items():
    for scorer, values in scorers.items():
      auc = values.get('auc')
      seeds = values['seeds']
      rows.append(
        [
          name,
          ROWS[scorer],
          _with_interval(values, 'f1'),
          ', '.join(map(percent, seeds)) if len(seeds) > 1 else '',
          percent(values['acc_error']),
          percent(values['acc_correct']),
          '' if scorer == REFERENCE else _lead(values[lead]),
          _with_interval(auc, 'value') if auc else '',
          '' if scorer == REFERENCE or not auc else _lead(auc[lead]),
        ]
      )
  heads = (
    'set | scorer | F1 | each seed | acc, error | acc, correct | '
    'F1 minus digit likelihood | AUC | AUC minus digit likelihood'
  )
  return table(heads, rows)


def _with_interval(values: Mapping[str, Any], name: str) -> str:
  return f'{percent(values[name])} ({between(values["ci95"])})'


def _lead(values: Mapping[str, Any]) -> str:
  return f'{points(values["difference"])} ({points_between(values["ci95"])})'


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
      f'{percent(mean([run["upper_bound"]["f1"] for run in values["runs"]]))} '
      f'({row})'
      for row, values in rows.items()
      if 'upper_bound' in values['runs'][0]
    )
    lines.append(f'F1 at the best threshold of {name} itself: {best}.')
  for row, methods in results['best_of_n'].items():
    picked = ', '.join(
      f'{percent(mean(values))} ({name})' for name, values in methods.items()
    )
    lines.append(f'Best of 6 over the pool, {row}: {picked}.')
  return '\n'.join(f'- {line}' for line in lines)


def log(text: str) -> None:
  print(text, flush=True)


def parse() -> tuple[argparse.Namespace, list[str]]:
  """Parses the command line.

  Returns:
    The arguments, and those that go on to the training runs.
  """
  names = [*recipes.RECIPES]
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--seeds', '--jobs'
  )
  parser.epilog = 'Arguments --config.NAME=VALUE go on to the training runs.'
  parser.add_argument(
    '--train', nargs='*', default=[], choices=names, help='recipes to train'
  )
  parser.add_argument(
    '--report', choices=names, help='recipe whose report.html is written, too'
  )
  args, extra = parser.parse_known_args()
  if wrong := [x for x in extra if not x.startswith('--config.')]:
    parser.error(f'unknown argument {wrong[0]}')
  return args, extra


def add_trained(
  scored: Scored, recipe: str, runs: Sequence[pathlib.Path]
) -> None:
  """Adds the step scores of a recipe's runs, alone and with the likelihood.

  Raises:
    UserError: a run has no scores of a chain.
  """
  [likelihoods] = scored.scores[REFERENCE]
  for run in runs:
    written = recipes.read_scores(run)
    scores: dict[str, list[np.ndarray]] = {}
    for name, indices in scored.indices.items():
      known = written.get(name, {})
      if missing := [i for i in indices if i not in known]:
        raise UserError(
          f'{run}/step_scores.jsonl has no scores of chain {missing[0]} of '
          f'{name}; delete {run} and train it again'
        )
      scores[name] = [known[i] for i in indices]
    scored.scores.setdefault(recipe, []).append(scores)
    both = add_signals(scores, likelihoods)
    scored.scores.setdefault(recipe + AND_DIGITS, []).append(both)


def picked(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
  """Returns the share of right picks from all samples: method -> each run's."""
  return {
    name: [curve[name]['mean'][-1] for curve in curves]
    for name in curves[0]
    if name != 'n'
  }


def main() -> None:
  args, extra = parse()
  data_folder = (args.workdir / 'data').absolute()
  runner = Runner(args.workdir, args.jobs)
  calls = [
    (runner, name, seed, data_folder, extra)
    for name in args.train
    for seed in args.seeds
  ]
  runner.all(recipes.train, calls)

  settings = base_settings(data_folder)
  opened = open_model(settings)
  args.workdir.mkdir(parents=True, exist_ok=True)
  dataset = load_dataset(settings.data, settings.seed, args.workdir, log)
  scored = score_frozen(args.workdir, dataset, opened, settings, args.seeds)
  trained = recipes.trained(args.workdir)
  for recipe, runs in trained.items():
    add_trained(scored, recipe, [*runs.values()])
  documents = {
    recipe: {seed: recipes.read(run) for seed, run in runs.items()}
    for recipe, runs in trained.items()
  }

  found = compare(scored.scores, scored.parts, settings.seed, RESAMPLES)
  found = {
    name: {row: rows[row] for row in ROWS if row in rows}
    for name, rows in found.items()
  }
  on_dev = found.pop(DEV)
  fmt, dev = opened.described.format, scored.counts[DEV]
  document = {
    'manifest': manifest.describe(settings.seed)
    | {
      'command': args.command,
      'data_fingerprint': dataset.fingerprint,
      'encoding_fingerprint': fmt.fingerprint(),
      'dtype_untrained': opened.described.model.dtype,
      'window': fmt.max_length,
      'threshold_source': f'best F1 on {dev["chains"]} natural chains of '
      f'{dev["problems"]} held-out training problems',
      'sets': scored.counts,
      'runs': {
        recipe: {seed: run['manifest'] for seed, run in runs.items()}
        for recipe, runs in documents.items()
      },
    },
    'results': {
      'localisation': found,
      'dev': on_dev,
      'best_of_n': {
        recipe: picked([run['results']['best_of_n'] for run in runs.values()])
        for recipe, runs in documents.items()
      },
    },
  }
  if args.report:
    run = next(iter(trained.get(args.report, {}).values()), None)
    if run is None:
      raise UserError(f'--report {args.report}: no run of it is done')
    recipes.write_report_without_chains(run, args.output)
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  try:
    main()
  except UserError as error:
    sys.exit(f'error: {error}')

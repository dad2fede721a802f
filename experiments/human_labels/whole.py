"""What does the byte-level PRM find where it reads every step?

    PRM_JAX_DATA=DATA python -m experiments.human_labels.whole --workdir DIR

The window of 2,048 bytes cuts some solutions of ProcessBench, whose last steps
then have no score. Here the PRM of each seed is judged on all solutions and on
those that it reads whole, beside noise, length, digits and place, which read
everything. Writes whole.json and the table of WHOLE.md beside this file.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line
from experiments.ablations import AUC, F1
from experiments.runner import Runner
from experiments.tables import mean_and_seeds, table
from prm_jax import load
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.evals import suite
from prm_jax.evals.prm import score_chains
from prm_jax.jobs.settings import read_settings
from prm_jax.runtime.errors import exit_on_user_error

RESAMPLES = 2000
READ = {'all': 'all solutions', 'whole': 'solutions read whole'}
PRM, UNREAD = 'PRM', 'steps not read'
# Rows beside the PRM: text -> name of the baseline.
BASELINES = {
  'noise, at the rate that suits it best': 'noise',
  'uniform guess': 'random',
  'length of the step': 'length',
  'digits of the step': 'digits',
  'place of the step': 'place',
}
QUICK = (
  '--config.train.steps=2',
  '--config.train.checkpoint_every=2',
  '--config.optim.warmup=1',
  '--config.data.dev_share=0.02',
)


class Scored(NamedTuple):
  """Chains and the scores of the steps that were read.

  Attributes:
    scores: [R] of each chain.
  """

  chains: Sequence[Chain]
  scores: Sequence[np.ndarray]

  def whole(self) -> 'Scored':
    """Returns the chains of which every step was read."""
    kept = [
      i
      for i, (chain, own) in enumerate(zip(*self, strict=True))
      if len(own) == len(chain.steps)
    ]
    return Scored(
      [self.chains[i] for i in kept], [self.scores[i] for i in kept]
    )


def train(
  runner: Runner, seed: int, root: pathlib.Path, quick: bool
) -> pathlib.Path:
  """Trains the PRM of one seed, as run.py does; returns its workdir."""
  return runner.main(
    'prm_math.py:human',
    f'seed_{seed}',
    f'--config.seed={seed}',
    f'--config.data.root={root.absolute()}',
    # All solutions are scored here, once.
    '--config.evaluation.max_problems=8',
    *(QUICK if quick else ()),
  )


def open_data(workdir: pathlib.Path) -> Dataset:
  """Opens the data that a PRM was trained and is tested on."""
  settings = read_settings(json.loads((workdir / 'config.json').read_text()))
  return load_dataset(settings.data, settings.seed, workdir, print)


def score(workdir: pathlib.Path, count: int) -> dict[str, Scored]:
  """Scores dev and ProcessBench, or reads the scores of an earlier command.

  Args:
    count: chains of each set, evenly spaced; 0: all.
  """
  dataset, scorer = open_data(workdir), None
  found = {}
  for name, chains in {'dev': dataset.dev, **dataset.evaluations}.items():
    chosen = chains[:: max(1, len(chains) // count)] if count else chains
    path = workdir / f'scores_{name}_{len(chosen)}.npz'
    if not path.exists():
      scorer = scorer or load(workdir)
      scores = score_chains(scorer, chosen)
      part = path.with_suffix('.part.npz')  # whole, or not there
      np.savez(part, lengths=[*map(len, scores)], flat=np.hstack(scores))
      part.replace(path)
    with np.load(path) as file:
      cuts = np.cumsum(file['lengths'])[:-1]
      found[name] = Scored(chosen, np.split(file['flat'], cuts))
  return found


def judge(scored: Mapping[str, Scored], seed: int) -> dict[str, Any]:
  """Judges the PRM of one seed on all solutions, and on those read whole.

  Returns:
    `SET, all` and `SET, whole` -> row -> measure -> `value` and its `ci95` over
    problems, None where there is none.
  """
  chosen = suite.choose_on_dev(*scored['dev'].whole())
  # These read every step, so all of dev is theirs.
  of_all = suite.choose_on_dev(*scored['dev'])
  chosen = chosen._replace(position=of_all.position, rules=of_all.rules)
  found: dict[str, Any] = {}
  for name, every in scored.items():
    if name == 'dev':
      continue
    for part, own in (('all', every), ('whole', every.whole())):
      localised = suite.localisation_section(*own, chosen, seed, RESAMPLES)
      calibrated = suite.calibration_section(
        *own, chosen.rules, seed, RESAMPLES
      )
      unread = suite.unread_section(*own)
      rows = found[f'{name}, {part}'] = {
        PRM: {
          F1: _value(localised['f1'], localised['ci95']),
          AUC: _ranking(calibrated['ranking']),
        }
      }
      rows[UNREAD] = {
        'chains': len(own.chains),
        'of_chains': len(every.chains),
        'steps': unread.get('steps', 0),
      }
      for row, key in BASELINES.items():
        rows[row] = {F1: _value(localised['baselines'][key]['f1'])}
        if key in calibrated['baselines']:
          rows[row][AUC] = _ranking(calibrated['baselines'][key])
  return found


def _value(value: float, ci95: Sequence[float] | None = None) -> dict[str, Any]:
  return {'value': value, 'ci95': ci95 and list(ci95)}


def _ranking(found: Mapping[str, Any]) -> dict[str, Any]:
  return _value(found['auc'], found['ci95'])


def render(document: Mapping[str, Any]) -> str:
  """Makes the table: the mean of the seeds and each of them, in percent."""
  seeds = list(document['runs'].values())
  rows, notes = [], []
  for part, scorers in seeds[0].items():
    name, kind = part.split(', ')
    count = scorers[UNREAD]
    notes.append(
      f'- {name}, {READ[kind]}: {count["chains"]:,} of '
      f'{count["of_chains"]:,} solutions, {count["steps"]:,} steps not read.'
    )
    for scorer in (PRM, *BASELINES):
      cells = []
      for measure in (F1, AUC):
        known = [
          seed[part][scorer][measure]['value']
          for seed in seeds
          if measure in seed[part][scorer]
        ]
        cells.append(mean_and_seeds(known) if known else '')
      rows.append([name, READ[kind], scorer, *cells])
  heads = ['set', 'judged on', 'scorer', F1, AUC]
  return '\n'.join([table(heads, rows), '', *notes])


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__,
    __file__,
    '--workdir',
    '--jobs',
    '--seeds',
    '--quick',
    '--data-root',
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  calls = [(runner, seed, args.data_root, args.quick) for seed in args.seeds]
  runs = {}
  for seed, workdir in zip(args.seeds, runner.all(train, calls), strict=True):
    runs[str(seed)] = judge(score(workdir, 40 if args.quick else 0), seed)
  document = command_line.about(args) | {'runs': runs}
  command_line.write(
    args.output, document, render(document), 'whole.json', 'WHOLE.md'
  )


if __name__ == '__main__':
  main()

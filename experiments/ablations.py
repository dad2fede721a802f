"""PRMs of the arithmetic domain that differ in one thing, three seeds.

What the ablations share: how their PRMs are trained, what is read of them, the
table, the figure and the command line. An arm is one value of the thing; what
it measures is a mapping from names to `Measured`.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import ablation_figure
from experiments.arithmetic import (
  chains_per_row,
  domain_flags,
  row_flags,
)
from experiments.runner import Runner
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

SEEDS = (0, 1, 2)
OPERATIONS = 5
CHAINS = 32  # of an update
SIZES = (
  '--config.data.train_problems=2048',
  '--config.data.test_problems=200',
  '--config.data.test_samples=16',
  '--config.evaluation.ns=1,4,16',
  '--config.orm_baseline=False',
  '--config.train.steps=400',
  '--config.train.checkpoint_every=400',
)
F1, AUC = 'first-error F1', 'AUC of steps'
BY_PRM, BY_ORM = 'best of 16, PRM', 'best of 16, ORM'
VOTE = 'weighted vote of 16'
CURVES = {BY_PRM: 'prm_min', BY_ORM: 'orm', VOTE: 'weighted_vote'}
# What most ablations have as one of their arms is trained once.
AS_IT_IS = 'prm'

# (runner, seed, arm) -> what it measures.
Measure = Callable[[Runner, int, str], Mapping[str, 'Measured']]


class Measured(NamedTuple):
  """A number in [0, 1], and its 95% interval where there is one."""

  value: float
  ci95: tuple[float, float] | None = None


class Ablation(NamedTuple):
  """One experiment.

  Attributes:
    file: of its run.py.
    thing: what the arms differ in, for the table's head.
    arms: their names.
    prepare: (runner, seed) -> what all arms of a seed need; made first.
  """

  file: str
  thing: str
  arms: Sequence[str]
  measure: Measure
  prepare: Callable[[Runner, int], object] = lambda runner, seed: None

  @property
  def folder(self) -> pathlib.Path:
    return pathlib.Path(self.file).resolve().parent

  @property
  def command(self) -> str:
    return f'python -m experiments.{self.folder.name}.run --workdir DIR'


def train(
  runner: Runner,
  seed: int,
  name: str,
  *flags: str,
  operations: int = OPERATIONS,
  variant: str = '',
) -> pathlib.Path:
  """One PRM; of two equal flags the later counts."""
  return runner.main(
    f'prm_math.py:{variant}' if variant else 'prm_math.py',
    f'seed_{seed}/{name}',
    *domain_flags(seed, operations, 'data'),
    *row_flags(operations, end=False),
    f'--config.data.batch_size={CHAINS // chains_per_row(operations)}',
    *SIZES,
    *flags,
  )


def train_policy(
  runner: Runner, seed: int, name: str, *flags: str
) -> pathlib.Path:
  """A policy that imitates the chains which the PRMs have labels of."""
  return runner.main(
    'policy_math.py',
    f'seed_{seed}/{name}',
    *domain_flags(seed, OPERATIONS, 'data'),
    *row_flags(OPERATIONS, end=True),
    '--config.data.train_problems=2048',
    '--config.data.train_samples=1',
    '--config.data.test_problems=200',
    '--config.data.test_samples=4',
    '--config.evaluation.samples=4',
    '--config.evaluation.ns=1,4',
    '--config.train.steps=400',
    '--config.train.checkpoint_every=400',
    *flags,
  )


def read(workdir: pathlib.Path) -> dict[str, Measured]:
  """What a PRM is judged by, from its results.json."""
  results = json.loads((workdir / 'results.json').read_text())['results']
  (where,) = results['localisation'].values()
  (calibration,) = results['calibration'].values()
  found = {
    F1: Measured(where['f1'], where['ci95']),
    AUC: Measured(calibration['first_error_auc']),
  }
  curves = results['best_of_n']
  for name, method in CURVES.items():
    if name != BY_ORM or method in curves:  # only some train an ORM
      curve = curves[method]
      found[name] = Measured(curve['mean'][-1], curve['ci95'][-1])
  return found


def run(ablation: Ablation) -> None:
  """The command line of an experiment's run.py."""
  parser = argparse.ArgumentParser(description=ablation.command)
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=2, help='side by side')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument(
    '--arms', nargs='+', choices=ablation.arms, default=ablation.arms
  )
  parser.add_argument('--output', type=pathlib.Path, default=ablation.folder)
  args = parser.parse_args()
  whole = [*args.arms] == [*ablation.arms] and [*args.seeds] == [*SEEDS]
  if not whole and args.output == ablation.folder:
    parser.error('some arms or seeds only: --output has to be another folder')
  runner = Runner(args.workdir, args.jobs)
  runner.all(ablation.prepare, [(runner, seed) for seed in args.seeds])
  asked = [(arm, seed) for arm in args.arms for seed in args.seeds]
  found = runner.all(
    ablation.measure, [(runner, seed, arm) for arm, seed in asked]
  )
  runs: dict[str, dict[str, Any]] = {}
  for (arm, seed), measured in zip(asked, found, strict=True):
    runs.setdefault(arm, {})[str(seed)] = {
      name: {'value': it.value, 'ci95': it.ci95 and list(it.ci95)}
      for name, it in measured.items()
    }
  document = {
    'command': ablation.command,
    'git_commit': manifest.git_commit(),
    'seeds': list(args.seeds),
    'thing': ablation.thing,
    'runs': runs,
  }
  manifest.write_json(args.output / 'results.json', document)
  ablation_figure.draw(document, names_of(document), args.output / 'figure.svg')
  text = render(document)
  if (args.output / 'README.md').exists():
    readme_table.fill(args.output / 'README.md', text)
  print(text)


def values(document: Mapping[str, Any], arm: str, name: str) -> list[float]:
  """Of each seed."""
  return [seed[name]['value'] for seed in document['runs'][arm].values()]


def names_of(document: Mapping[str, Any]) -> list[str]:
  """All that some arm measures, in order."""
  return list(
    dict.fromkeys(
      name
      for seeds in document['runs'].values()
      for measured in seeds.values()
      for name in measured
    )
  )


def render(document: Mapping[str, Any]) -> str:
  """Markdown: means of seeds and each of them, in percent."""
  names = names_of(document)
  lines = [
    f'| {document["thing"]} | {" | ".join(names)} |',
    f'| --- |{" --- |" * len(names)}',
  ]
  for arm, seeds in document['runs'].items():
    cells = [arm]
    for name in names:
      known = [each[name] for each in seeds.values() if name in each]
      cells.append(_cell(known) if known else '')
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def _cell(known: Sequence[Mapping[str, Any]]) -> str:
  each = [100 * it['value'] for it in known]
  mean = sum(each) / len(each)
  return f'{mean:.1f} ({", ".join(f"{value:.1f}" for value in each)})'

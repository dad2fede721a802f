"""What the ablations share: training, measures, table, figure, command line.

An ablation trains PRMs of the arithmetic domain that differ in one thing, each
with several seeds. An arm is one value of that thing; what an arm measures is a
mapping from names to `Measured`. Each number has its null beside it: a random
score for each distinct text chooses among chains, and noise finds first errors.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import command_line, figures
from experiments.arithmetic import chains_per_row, domain_flags, row_flags
from experiments.runner import Runner, read_results
from experiments.tables import mean_and_seeds, mean_between, table
from prm_jax.evals import suite
from prm_jax.runtime.errors import exit_on_user_error

OPERATIONS = 5
CHAINS = 32  # per update
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
NOISE, LENGTH = 'F1 of noise', 'AUC of step lengths'
WITHIN = 'AUC of chains within problems'
BY_PRM, BY_ORM = 'best of 16, PRM', 'best of 16, ORM'
VOTE = 'weighted vote of 16'
NULL = 'random per text, best of 16'
CURVES = {BY_PRM: 'prm_min', BY_ORM: 'orm', VOTE: 'weighted_vote'}
_OVER = ', over random per text'
# Folder of the PRM with all defaults: an arm of most ablations, trained once.
DEFAULT = 'prm'

# (runner, seed, arm) -> what the arm measures.
Measure = Callable[[Runner, int, str], Mapping[str, 'Measured']]


class Measured(NamedTuple):
  """A number in [0, 1], and its 95% interval where there is one."""

  value: float
  ci95: tuple[float, float] | None = None


class Ablation(NamedTuple):
  """One ablation.

  Attributes:
    file: path of its run.py.
    thing: what the arms differ in; the head of the table's first column.
    arms: names of the arms.
    measure: function that trains and measures one arm for one seed.
    prepare: (runner, seed) -> None; makes what all arms of a seed need.
  """

  file: str
  thing: str
  arms: Sequence[str]
  measure: Measure
  prepare: Callable[[Runner, int], object] = lambda runner, seed: None


def train(
  runner: Runner,
  seed: int,
  name: str,
  *flags: str,
  operations: int = OPERATIONS,
  variant: str = '',
) -> pathlib.Path:
  """Trains one PRM and returns its workdir.

  Args:
    flags: changes to the shared setup; the later of two equal flags counts.
    variant: variant of configs/prm_math.py.
  """
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
  """Trains a policy on the chains that the PRMs are trained on."""
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


def over_null(name: str) -> str:
  """Returns the name of a choice's lead over a random score of each text."""
  return name + _OVER


def read_choices(
  curves: Mapping[str, Any], methods: Mapping[str, str]
) -> dict[str, Measured]:
  """Reads choices among most samples, and the leads of scores over the null.

  Args:
    curves: the section `best_of_n` of a results.json.
    methods: name of each measure -> method; methods that a run does not have
      are left out.
  """
  measured = {}
  for name, method in methods.items():
    if method in curves:
      curve = curves[method]
      measured[name] = _last(curve)
      if name != VOTE:  # a vote sees how often a text was sampled
        measured[over_null(name)] = _last(curve['over_null'])
  return measured | {NULL: _last(curves[suite.NULL])}


def _last(curve: Mapping[str, Any]) -> Measured:
  return Measured(curve['mean'][-1], tuple(curve['ci95'][-1]))


def read(workdir: pathlib.Path) -> dict[str, Measured]:
  """Reads what a PRM is judged by from its results.json."""
  results = read_results(workdir)
  (found,) = results['localisation'].values()
  (calibration,) = results['calibration'].values()
  steps = calibration['ranking']
  measured = {
    F1: Measured(found['f1'], found['ci95']),
    NOISE: Measured(found['baselines']['noise']['f1']),
    AUC: Measured(steps['auc'], steps['ci95']),
  }
  for name, method in (('PRM', 'prm_min'), ('ORM', 'orm')):
    if method in results['ranking']:  # only some runs train an ORM
      within = results['ranking'][method]['within_problem']
      measured[f'{WITHIN}, {name}'] = Measured(within['value'], within['ci95'])
  return measured | read_choices(results['best_of_n'], CURVES)


@exit_on_user_error()
def run(ablation: Ablation) -> None:
  """Runs an ablation as its command line says, and writes what it found."""
  parser = command_line.make_parser(
    f'Ablation: {ablation.thing}.',
    ablation.file,
    *('--workdir', '--jobs', '--seeds'),
  )
  parser.add_argument(
    '--arms', nargs='+', choices=ablation.arms, default=ablation.arms
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  runner.all(ablation.prepare, [(runner, seed) for seed in args.seeds])
  pairs = [(arm, seed) for arm in args.arms for seed in args.seeds]
  found = runner.all(
    ablation.measure, [(runner, seed, arm) for arm, seed in pairs]
  )
  runs: dict[str, dict[str, Any]] = {}
  for (arm, seed), measured in zip(pairs, found, strict=True):
    runs.setdefault(arm, {})[str(seed)] = {
      name: {'value': it.value, 'ci95': it.ci95 and list(it.ci95)}
      for name, it in measured.items()
    }
  document = command_line.about(args) | {'thing': ablation.thing, 'runs': runs}
  draw(document, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


def known(
  document: Mapping[str, Any], arm: str, name: str
) -> list[dict[str, Any]] | None:
  """Returns one measure of one arm for each seed; None if it is not there."""
  seeds = document['runs'][arm].values()
  found = [seed[name] for seed in seeds if name in seed]
  return found if found and len(found) == len(seeds) else None


def values(
  document: Mapping[str, Any], arm: str, name: str
) -> list[float] | None:
  """Returns the value of a measure for each seed; None if it is not there."""
  found = known(document, arm, name)
  return found and [it['value'] for it in found]


def intervals(
  document: Mapping[str, Any], arm: str, name: str
) -> list[list[float]] | None:
  """Returns the interval over the problems of each seed, as `values` does."""
  found = known(document, arm, name)
  if found is None or not all(it['ci95'] for it in found):
    return None
  return [it['ci95'] for it in found]


def draws(name: str) -> bool:
  """Tells whether figures show a measure: nulls and leads stand in tables."""
  nulls = (NOISE, LENGTH, NULL)
  return not name.startswith(nulls) and not name.endswith(_OVER)


def names_of(document: Mapping[str, Any]) -> list[str]:
  """Returns all that some arm measures, in the order of its first arm."""
  return list(
    dict.fromkeys(
      name
      for seeds in document['runs'].values()
      for measured in seeds.values()
      for name in measured
    )
  )


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, in percent: the mean of the seeds and each of them.

  Leads over the null are in points, with their intervals over the seeds.
  """
  names = names_of(document)
  rows = []
  for arm, seeds in document['runs'].items():
    row = [arm]
    for name in names:
      found = [seed[name] for seed in seeds.values() if name in seed]
      numbers = [it['value'] for it in found]
      if name.endswith(_OVER) and found:
        row.append(mean_between(numbers, [it['ci95'] for it in found]))
      else:
        row.append(mean_and_seeds(numbers) if found else '')
    rows.append(row)
  return table([document['thing'], *names], rows)


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws a panel for each measure, with a row for each arm.

  Each row shows the seeds with their 95% intervals, and their mean.
  """
  runs, names = document['runs'], [*filter(draws, names_of(document))]
  size = 1.8 + 2.4 * len(names), 0.9 + 0.42 * len(runs)
  figure, panels = figures.make_panels(len(names), size, sharey=True)
  for panel, name in zip(panels, names, strict=True):
    for row, seeds in enumerate(runs.values()):
      found = [seed[name] for seed in seeds.values() if name in seed]
      for k, measured in enumerate(found):
        height = row + 0.16 * (k - (len(found) - 1) / 2)
        _draw_seed(panel, height, measured)
      if found:
        mean = sum(100 * measured['value'] for measured in found) / len(found)
        panel.plot([mean], [row], 'D', color='black', markersize=4)
    panel.set_xlabel(f'{name}, %')
    panel.grid(axis='x', alpha=0.25)
  panels[0].set_yticks(range(len(runs)), list(runs))
  panels[0].invert_yaxis()
  figure.tight_layout()
  figures.save(figure, path)


def _draw_seed(panel: Any, height: float, measured: Mapping[str, Any]) -> None:
  """Draws one number as a dot, and its interval as a line through it."""
  value = 100 * measured['value']
  if measured['ci95']:
    low, high = (100 * bound for bound in measured['ci95'])
    panel.plot([low, high], [height] * 2, color='tab:blue', linewidth=1)
  panel.plot([value], [height], 'o', color='tab:blue', markersize=2.5)

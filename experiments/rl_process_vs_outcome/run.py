"""Verified accuracy against sampled chains, for rewards with and without a PRM.

    pip install -e '.[experiments]'
    python -m experiments.rl_process_vs_outcome.run --workdir /tmp/rl_rewards

For each seed and setting of the arithmetic domain a policy is trained by
imitation, of shorter problems, too, and the PRMs of `arms.py`. Every arm then
trains that policy further, at the learning rate of RATES that was best for the
arm at ten operations on another seed, which is not reported. Writes
results.json, figure.svg and the tables of README.md beside this file. A command
for some settings, or for some arms beside the outcome, keeps the results of the
others. To choose the rates again:

    python -m experiments.rl_process_vs_outcome.run --workdir /tmp/rl_rewards \
        --settings 10 --rates 1e-4 2e-4 4e-4 --output /tmp/rl_rates
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments import command_line
from experiments.arithmetic import wrong_facts_for
from experiments.rl_process_vs_outcome import figure, tables
from experiments.rl_process_vs_outcome.arms import (
  ARMS,
  costs,
  make_models,
  run_arm,
)
from experiments.rl_runs import Case, Curve, Size
from experiments.runner import Runner
from prm_jax.runtime.errors import UserError, exit_on_user_error

# Of 1e-4, 2e-4 and 4e-4, where arms that are not named have 2e-4.
RATES = {
  'outcome + exact labels': 4e-4,
  'outcome + PRM': 4e-4,
  'outcome of consistent chains': 4e-4,
  'outcome + refreshed PRM': 4e-4,
}
# The solver has as many wrong beliefs as make it right this often, so that
# longer problems are not harder as well. Sums and differences only: a product
# modulo 10 may be right after an error, the more so in longer problems.
SUCCESS, RARE = 0.2, 0.035
OPS = '+-'
FORMED = 0.95  # share of a policy's chains that take the problem's own steps
# Policies learn from problems of mixed lengths: from long ones alone some never
# learn which operation is the next.
SHORTEST = {5: 2, 10: 3, 20: 5}  # operations -> those of the shortest problems


class Setting(NamedTuple):
  """Problems of one length and difficulty.

  Attributes:
    success: share of the solver's chains that end right.
    imitation: updates after which policies write well-formed chains.
    arms: those that run.
    modulus: of the problems; at ten, one wrong chain of ten ends right.
    prm: updates of a PRM, which has modulus^2 facts of each operation to learn.
    labelled: chains with exact labels that it learns from.
    levels: accuracies whose chains are counted.
    shares: setting whose policies and PRMs it has; '' has its own.
  """

  title: str
  operations: int
  success: float
  imitation: int
  arms: tuple[str, ...]
  modulus: int = 10
  prm: int = 1200
  labelled: int = 16_384
  levels: tuple[float, ...] = tables.WANTED
  shares: str = ''

  def size(self, quick: bool) -> Size:
    """Returns the numbers of updates."""
    shortest = SHORTEST[self.operations]
    if quick:
      return Size(shortest, 20, 20, self.labelled, 40, 0.0)
    return Size(shortest, self.imitation, self.prm, self.labelled, 200, FORMED)


MAIN = (
  'outcome',
  'outcome + exact labels',
  'outcome + PRM',
  'outcome + PRM, wrong chains',
)
# Rewards of other PRMs than the one that learned from labelled chains once.
OTHERS = (
  'outcome + PAV',
  'outcome + PAV, own chains',
  'outcome + PAV, best of 4',
  'outcome + lowest of 3 PRMs',
  'outcome + refreshed PRM',
  'lowest of 3 PRMs',
  'refreshed PRM',
)
ONE_PRM = tuple(arm for arm in ARMS if arm not in OTHERS)
SETTINGS = {
  '5': Setting('5 operations', 5, SUCCESS, 1500, MAIN),
  '10': Setting('10 operations', 10, SUCCESS, 1500, ONE_PRM),
  # Beside runs of their own of the arms that they are compared with: those of
  # '10' ran on another machine, whose arithmetic differs in the last bits.
  '10_prms': Setting(
    '10 operations, other PRMs',
    *(10, SUCCESS, 1500, ('outcome', 'outcome + PRM', *OTHERS)),
    shares='10',
  ),
  '20': Setting('20 operations', 20, SUCCESS, 3000, MAIN),
  '10_rare': Setting(
    '10 operations, rarely right',
    *(10, RARE, 4500, MAIN),
    modulus=40,
    prm=4000,
    labelled=32_768,
    levels=(0.1, 0.2, 0.4),
  ),
}


def try_rates(
  runner: Runner,
  case: Case,
  size: Size,
  arms: Sequence[str],
  rates: Sequence[float],
) -> dict[str, dict[float, Curve]]:
  """Runs every arm at every rate on the case that chooses among them."""
  make_models(case, size, arms)
  tried = [(arm, rate) for arm in arms for rate in rates]
  found = runner.all(run_arm, [(case, size, arm, rate) for arm, rate in tried])
  tuning: dict[str, dict[float, Curve]] = {arm: {} for arm in arms}
  for (arm, rate), curve in zip(tried, found, strict=True):
    tuning[arm][rate] = curve
  return tuning


def measure(
  runner: Runner,
  cases: Sequence[Case],
  size: Size,
  rates: Mapping[str, float],
) -> dict[str, list[Curve]]:
  """Runs every arm at its rate on the case of each seed."""
  runner.all(make_models, [(case, size, tuple(rates)) for case in cases])
  pairs = [(arm, case) for arm in rates for case in cases]
  found = runner.all(
    run_arm, [(case, size, arm, rates[arm]) for arm, case in pairs]
  )
  curves: dict[str, list[Curve]] = {arm: [] for arm in rates}
  for (arm, _), curve in zip(pairs, found, strict=True):
    curves[arm].append(curve)
  return curves


def render(document: Mapping[str, Any]) -> str:
  """Makes all tables."""
  return tables.render(document['results'])


def make_case(runner: Runner, name: str, seed: int) -> Case:
  """Makes the case of a setting and a seed."""
  setting = SETTINGS[name]
  operations, modulus = setting.operations, setting.modulus
  wrong = wrong_facts_for(setting.success, operations, seed, modulus, OPS)
  return Case(
    runner,
    f'operations_{setting.shares or name}/seed_{seed}',
    seed,
    operations,
    (('modulus', modulus), ('ops', OPS), ('wrong_facts', wrong)),
  )


def with_arms_kept(
  known: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the results of a setting with the arms that ran before.

  Every arm is compared with the outcome alone, so that has to have come out as
  it did before.

  Args:
    known: the results of before.
    found: those of the arms that ran now, which replace theirs of before.

  Raises:
    UserError: the outcome alone came out otherwise.
  """

  def compared_with(results: Mapping[str, Any]) -> tuple:
    outcome = results['arms'].get(tables.REFERENCE, {})
    facts = [results[key] for key in ('title', 'success', 'seeds', 'chains')]
    return *facts, outcome.get('rate'), outcome.get('accuracy')

  if compared_with(known) != compared_with(found):
    raise UserError(
      f'{found["title"]}: the arm {tables.REFERENCE!r} came out otherwise than '
      'in the results.json of before, so the other arms there cannot be kept; '
      'run all arms, or write to another folder with --output'
    )

  def all_of(key: str) -> dict[str, Any]:
    both = {**known[key], **found[key]}
    return {arm: both[arm] for arm in ARMS if arm in both}

  return {**found, 'arms': all_of('arms'), 'costs': all_of('costs')}


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument(
    '--settings', nargs='+', choices=SETTINGS, default=tuple(SETTINGS)
  )
  parser.add_argument(
    '--arms', nargs='+', choices=ARMS, help='default: those of the setting'
  )
  parser.add_argument('--rates', type=float, nargs='+', help='default: RATES')
  args = command_line.parse(parser, free=('settings', 'arms'))
  runner = Runner(args.workdir, args.jobs)
  known = command_line.read_known(args).get('results', {})
  kept = [name for name in args.settings if args.arms and name in known]
  if kept and tables.REFERENCE not in args.arms:
    raise UserError(
      f'--arms: name {tables.REFERENCE!r}, too, as {kept[0]} keeps the results '
      'of its other arms, and all are compared with that one'
    )
  for name in args.settings:
    setting = SETTINGS[name]
    size = setting.size(args.quick)
    arms = args.arms or setting.arms
    tuning: dict[str, dict[float, Curve]] = {arm: {} for arm in arms}
    if not args.rates:
      rates = {arm: RATES.get(arm, 2e-4) for arm in arms}
    elif len(args.rates) == 1:
      rates = dict.fromkeys(arms, args.rates[0])
    else:
      case = make_case(runner, name, command_line.TUNING_SEED)
      tuning = try_rates(runner, case, size, arms, args.rates)
      rates = {arm: tables.best_rate(curves) for arm, curves in tuning.items()}
    cases = [make_case(runner, name, seed) for seed in args.seeds]
    curves = measure(runner, cases, size, rates)
    results = {
      'title': setting.title,
      'success': setting.success,
      'shares': setting.shares,
      'seeds': list(args.seeds),
      **tables.summarise(curves, tuning, rates, args.seeds, setting.levels),
      'costs': {
        arm: costs(cases[0], size, arm, int(curves[arm][0].chains[-1]))
        for arm in arms
      },
    }
    if name in kept:
      results = with_arms_kept(known[name], results)
    known[name] = results
    document = command_line.made_by(args) | {
      'results': {name: known[name] for name in SETTINGS if name in known},
    }
    figure.draw(document['results'], args.output / 'figure.svg')
    command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()

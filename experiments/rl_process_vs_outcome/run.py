"""Verified accuracy against sampled chains, for rewards with and without a PRM.

    pip install -e '.[experiments]'
    python -m experiments.rl_process_vs_outcome.run --workdir /tmp/rl_rewards

For each seed and setting of the arithmetic domain a policy is trained by
imitation, of shorter problems, too, and the PRMs of `arms.py`. Every arm then
trains that policy further, at the learning rate of RATES that is best for the
arm on another seed, which is not reported. Writes results.json, figure.svg and
the tables of README.md beside this file. A command for some settings leaves the
others in them as they are.
"""

import json
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
from prm_jax.runtime import manifest

RATES = (1e-4, 2e-4, 4e-4)
# The solver has as many wrong beliefs as make it right this often, so that
# longer problems are not harder as well. Sums and differences only: a product
# modulo 10 may be right after an error, the more so in longer problems.
SUCCESS, RARE = 0.2, 0.035
OPS = '+-'
# Policies learn from problems of mixed lengths: from long ones alone some never
# learn which operation is the next.
SHORTEST = {5: 2, 10: 3, 20: 5}  # operations -> those of the shortest problems
IMITATION = {5: 600, 10: 1500, 20: 3000}  # operations -> updates


class Setting(NamedTuple):
  """Problems of one length and difficulty.

  Attributes:
    success: share of the solver's chains that end right.
    arms: those that run; () is all.
    modulus: of the problems; at ten, one wrong chain of ten ends right.
  """

  title: str
  operations: int
  success: float
  arms: tuple[str, ...] = ()
  modulus: int = 10

  def size(self, quick: bool) -> Size:
    """Returns the numbers of updates."""
    shortest = SHORTEST[self.operations]
    if quick:
      return Size(shortest, 20, 20, 40)
    return Size(shortest, IMITATION[self.operations], 1200, 200)


MOST = (
  'outcome',
  'outcome + exact labels',
  'outcome + exact PAV',
  'outcome + PRM',
  'outcome + PAV',
  'outcome + refreshed PRM',
)
SETTINGS = {
  '5': Setting('5 operations', 5, SUCCESS),
  '10': Setting('10 operations', 10, SUCCESS),
  '20': Setting('20 operations', 20, SUCCESS, MOST),
  '10_rare': Setting('10 operations, rarely right', 10, RARE, MOST, 40),
}


def measure(
  runner: Runner,
  cases: Sequence[Case],
  tuning_case: Case,
  size: Size,
  arms: Sequence[str],
  rates_tried: Sequence[float],
) -> dict[str, Any]:
  """Measures one length: every arm at its own rate, on all seeds.

  Args:
    cases: the case of each seed.
    tuning_case: the case that chooses each arm's rate, where there is a choice.
  """
  choice = [tuning_case] if len(rates_tried) > 1 else []
  runner.all(make_models, [(case, size, arms) for case in (*choice, *cases)])
  tried = [(arm, rate) for arm in arms for rate in rates_tried if choice]
  found = runner.all(
    run_arm, [(tuning_case, size, arm, rate) for arm, rate in tried]
  )
  tuning: dict[str, dict[float, Curve]] = {arm: {} for arm in arms}
  for (arm, rate), curve in zip(tried, found, strict=True):
    tuning[arm][rate] = curve
  rates = {
    arm: tables.best_rate(curves) if curves else rates_tried[0]
    for arm, curves in tuning.items()
  }
  pairs = [(arm, case) for arm in arms for case in cases]
  found = runner.all(
    run_arm, [(case, size, arm, rates[arm]) for arm, case in pairs]
  )
  curves: dict[str, list[Curve]] = {arm: [] for arm in arms}
  for (arm, _), curve in zip(pairs, found, strict=True):
    curves[arm].append(curve)
  seeds = [case.seed for case in cases]
  return tables.summarise(curves, tuning, rates, seeds)


def render(document: Mapping[str, Any]) -> str:
  """Makes all tables."""
  return tables.render(document['results'])


def make_case(runner: Runner, name: str, seed: int) -> Case:
  """Makes the case of a setting and a seed."""
  _, operations, success, _, modulus = SETTINGS[name]
  wrong = wrong_facts_for(success, operations, seed, modulus, OPS)
  return Case(
    runner,
    f'operations_{name}/seed_{seed}',
    seed,
    operations,
    (('modulus', modulus), ('ops', OPS), ('wrong_facts', wrong)),
  )


def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument(
    '--settings', nargs='+', choices=SETTINGS, default=tuple(SETTINGS)
  )
  parser.add_argument('--arms', nargs='+', choices=ARMS, help='default: all')
  parser.add_argument('--rates', type=float, nargs='+', default=RATES)
  args = command_line.parse(parser, free=('settings',))
  runner = Runner(args.workdir, args.jobs)
  path = args.output / 'results.json'
  known = json.loads(path.read_text())['results'] if path.exists() else {}
  # Results of before there was a setting for each are of other problems.
  known = {name: found for name, found in known.items() if 'success' in found}
  for name in args.settings:
    tuning_case, *cases = (
      make_case(runner, name, seed)
      for seed in (command_line.TUNING_SEED, *args.seeds)
    )
    setting = SETTINGS[name]
    size = setting.size(args.quick)
    arms = args.arms or setting.arms or tuple(ARMS)
    known[name] = {
      'title': setting.title,
      'success': setting.success,
      'seeds': list(args.seeds),
      'git_commit': manifest.git_commit(),
      **measure(runner, cases, tuning_case, size, arms, args.rates),
      'costs': {arm: costs(cases[0], arm) for arm in arms},
    }
    document = {
      'command': args.command,
      'results': {name: known[name] for name in SETTINGS if name in known},
    }
    figure.draw(document['results'], args.output / 'figure.svg')
    command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()

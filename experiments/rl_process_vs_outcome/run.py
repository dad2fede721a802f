"""Verified accuracy against sampled chains, for rewards with and without a PRM.

    pip install -e '.[experiments]'
    python -m experiments.rl_process_vs_outcome.run --workdir /tmp/rl_rewards

For each seed and length of the arithmetic domain a policy is trained by
imitation, and a PRM on chains of the solver. Every arm then trains that policy
further, at the learning rate of RATES that is best for the arm on another seed,
which is not reported. Writes results.json, figure.svg and the tables of
README.md beside this file. A command for some lengths leaves the others in them
as they are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.arithmetic import check_formed
from experiments.rl_process_vs_outcome import figure, tables
from experiments.rl_runs import (
  Case,
  Curve,
  Size,
  learn,
  make_policy,
  make_prm,
)
from experiments.runner import Runner, slug
from prm_jax.runtime import manifest

RATES = (1e-4, 2e-4, 4e-4)
# Operations of a problem, which are the steps of a chain -> updates.
SIZES = {
  5: Size(imitation=400, prm=1200, rewards=200),
  10: Size(imitation=3200, prm=1200, rewards=240),
  20: Size(imitation=6400, prm=1200, rewards=240),
}
QUICK = Size(40, 40, 20)
# The PRM's chains have more slips than the solver makes, so that it has seen
# errors that the solver does not make by itself.
LABELLED, SLIP = 16_384, 0.15
ALONE = '--config.reward.outcome_weight=0'
EQUAL = '--config.reward.weight=1'
RETURN = '--config.advantage.process=return'
CHAIN = '--config.advantage.process=chain'
# Arm -> (variant of configs/rl_math.py, flags).
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
  'outcome': ('outcome', ()),
  'outcome + PRM': ('grpo', (EQUAL,)),
  'outcome + exact labels': ('exact', (EQUAL,)),
  'outcome + exact PAV': (
    'exact',
    (EQUAL, '--config.prm.exact=value', '--config.reward.form=advantage'),
  ),
  'outcome + PRM, min form': (
    'grpo',
    (EQUAL, '--config.reward.form=min_form', RETURN),
  ),
  'PRM, min form': (
    'grpo',
    (EQUAL, '--config.reward.form=min_form', RETURN, ALONE),
  ),
  'PRM, sum': ('grpo', (EQUAL, CHAIN, ALONE, '--config.reward.centre=0')),
}
LONGEST = tuple(ARMS)[:3]  # the arms of 20 operations


def make_models(case: Case, size: Size) -> None:
  """Trains the policy and the PRM that all arms of a case share."""
  make_policy(case, size.imitation)
  if size != QUICK:
    check_formed(case.policy)
  make_prm(case, size.prm, LABELLED, SLIP)


def run_arm(case: Case, size: Size, arm: str, rate: float) -> Curve:
  """Trains the policy of a case with one reward and one learning rate."""
  variant, flags = ARMS[arm]
  if variant == 'grpo':
    flags += (f'--config.prm.path={case.prm}',)
  return learn(
    case,
    f'{slug(arm)}_{rate:g}',
    variant,
    size.rewards,
    f'--config.optim.lr={rate}',
    *flags,
  )


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
  runner.all(make_models, [(case, size) for case in (*choice, *cases)])
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


def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument(
    '--operations', type=int, nargs='+', choices=SIZES, default=tuple(SIZES)
  )
  parser.add_argument('--arms', nargs='+', choices=ARMS, help='default: all')
  parser.add_argument('--rates', type=float, nargs='+', default=RATES)
  args = command_line.parse(parser, free=('operations',))
  runner = Runner(args.workdir, args.jobs)
  path = args.output / 'results.json'
  known = json.loads(path.read_text())['results'] if path.exists() else {}
  for operations in args.operations:
    tuning_case, *cases = (
      Case(runner, f'operations_{operations}/seed_{seed}', seed, operations)
      for seed in (command_line.TUNING_SEED, *args.seeds)
    )
    size = QUICK if args.quick else SIZES[operations]
    arms = args.arms or (LONGEST if operations == 20 else tuple(ARMS))
    known[str(operations)] = {
      'seeds': list(args.seeds),
      'git_commit': manifest.git_commit(),
      **measure(runner, cases, tuning_case, size, arms, args.rates),
    }
    document = {
      'command': args.command,
      'labelled_chains': LABELLED,
      'results': {k: known[k] for k in sorted(known, key=int)},
    }
    figure.draw(document['results'], args.output / 'figure.svg')
    command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()

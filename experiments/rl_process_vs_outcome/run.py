"""Verified accuracy against sampled chains, for rewards with and without a PRM.

    pip install -e '.[experiments]'
    python -m experiments.rl_process_vs_outcome.run --workdir /tmp/rl_rewards

For each seed and length of the arithmetic domain a policy is trained by
imitation, and a PRM on chains of the solver. Every arm then goes on with that
policy; its learning rate is the best of RATES on seed 0. What is there already
is not made again. Writes results.json, figure.svg and the tables of README.md
beside this file; lengths that are not asked for stay as they are there.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.arithmetic import check_formed
from experiments.rl_process_vs_outcome import figure, tables
from experiments.rl_runs import (
  Curve,
  Size,
  learn,
  make_policy,
  make_prm,
  read_curve,
)
from experiments.runner import Runner
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'python -m experiments.rl_process_vs_outcome.run --workdir DIR'
SEEDS = (0, 1, 2)
RATES = (1e-4, 2e-4, 4e-4)
# Operations of a problem, so many steps of a chain.
SIZES = {
  5: Size(imitation=400, prm=1200, rewards=200),
  10: Size(imitation=3200, prm=1200, rewards=240),
  20: Size(imitation=6400, prm=1200, rewards=240),
}
# What the PRM is trained on: more slips than the solver makes, so that it has
# seen errors that the solver does not know.
LABELLED, SLIP = 16_384, 0.15
ALONE = '--config.reward.outcome_weight=0'
EQUAL = '--config.reward.weight=1'
TO_GO = '--config.advantage.process=to_go'
CHAIN = '--config.advantage.process=chain'
# Arm -> (variants of configs/rl_math.py, flags).
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
    (EQUAL, '--config.reward.form=min_form', TO_GO),
  ),
  'PRM, min form': (
    'grpo',
    (EQUAL, '--config.reward.form=min_form', TO_GO, ALONE),
  ),
  'PRM, sum': ('grpo', (EQUAL, CHAIN, ALONE, '--config.reward.centre=0')),
}
LONGEST = tuple(ARMS)[:3]  # the arms of 20 operations


def folder(seed: int, operations: int) -> str:
  return f'operations_{operations}/seed_{seed}'


def models(
  runner: Runner, seed: int, operations: int, sizes: Mapping[int, Size]
) -> None:
  """The policy and the PRM that all arms of a seed share."""
  size, at = sizes[operations], folder(seed, operations)
  policy = make_policy(runner, f'{at}/policy', seed, operations, size.imitation)
  if sizes is SIZES:
    check_formed(policy)
  make_prm(runner, f'{at}/prm', seed, operations, size.prm, LABELLED, SLIP)


def run_arm(
  runner: Runner,
  seed: int,
  operations: int,
  arm: str,
  rate: float,
  sizes: Mapping[int, Size],
) -> Curve:
  at, (variant, flags) = folder(seed, operations), ARMS[arm]
  if variant == 'grpo':
    flags += (f'--config.prm.path={runner.workdir / at / "prm"}',)
  name = arm.replace(' + ', '_').replace(', ', '_').replace(' ', '_')
  done = learn(
    runner,
    f'{at}/{name}_{rate:g}',
    seed,
    operations,
    sizes[operations].rewards,
    runner.workdir / at / 'policy',
    variant,
    f'--config.optim.lr={rate}',
    *flags,
  )
  return read_curve(done)


def measure(
  runner: Runner,
  operations: int,
  arms: Sequence[str],
  seeds: Sequence[int],
  sizes: Mapping[int, Size],
  rates_tried: Sequence[float] = RATES,
) -> dict:
  """One length: every arm at its own rate, all seeds."""
  runner.all(models, [(runner, seed, operations, sizes) for seed in seeds])
  tried = [(arm, rate) for arm in arms for rate in rates_tried]
  first = runner.all(
    run_arm,
    [(runner, seeds[0], operations, arm, rate, sizes) for arm, rate in tried],
  )
  tuning = {
    arm: {
      rate: curve
      for (name, rate), curve in zip(tried, first, strict=True)
      if name == arm
    }
    for arm in arms
  }
  rates = {arm: tables.best_rate(curves) for arm, curves in tuning.items()}
  others = [(arm, seed) for arm in arms for seed in seeds[1:]]
  rest = runner.all(
    run_arm,
    [
      (runner, seed, operations, arm, rates[arm], sizes) for arm, seed in others
    ],
  )
  curves = {arm: [tuning[arm][rates[arm]]] for arm in arms}
  for (arm, _), curve in zip(others, rest, strict=True):
    curves[arm].append(curve)
  return tables.summarise(curves, tuning, rates)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=2, help='side by side')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument(
    '--operations', type=int, nargs='+', choices=SIZES, default=tuple(SIZES)
  )
  parser.add_argument('--arms', nargs='+', choices=ARMS, help='default: all')
  parser.add_argument('--rates', type=float, nargs='+', default=RATES)
  parser.add_argument(
    '--quick', action='store_true', help='to see that it runs'
  )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  runner = Runner(args.workdir, args.jobs)
  sizes = {k: Size(40, 40, 20) for k in SIZES} if args.quick else SIZES
  for operations in args.operations:
    arms = args.arms or (LONGEST if operations == 20 else tuple(ARMS))
    found = measure(runner, operations, arms, args.seeds, sizes, args.rates)
    write(args.output, operations, found | {'seeds': list(args.seeds)})


def render(document: Mapping[str, Any]) -> str:
  """All tables, Markdown."""
  return tables.render(document['results'])


def write(output: pathlib.Path, operations: int, found: dict) -> None:
  """One length into results.json, the figure and the README's tables."""
  path = output / 'results.json'
  known = json.loads(path.read_text())['results'] if path.exists() else {}
  known[str(operations)] = found | {'git_commit': manifest.git_commit()}
  results = {k: known[k] for k in sorted(known, key=int)}
  document = {
    'command': COMMAND,
    'labelled_chains': LABELLED,
    'results': results,
  }
  manifest.write_json(path, document)
  figure.draw(results, output / 'figure.svg')
  text = render(document)
  if (output / 'README.md').exists():
    readme_table.fill(output / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()

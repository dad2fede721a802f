"""How large has a PRM to be for policies of several sizes?

    pip install -e '.[experiments]'
    python -m experiments.model_sizes.run --workdir /tmp/ablations

Policies and PRMs have equal depth and different widths, and are trained on the
solver's chains, a policy until it writes its steps. Each PRM chooses among 16
chains of each policy. Writes results.json, figure.svg and the table of
README.md beside this file.
"""

import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.arithmetic import check_formed, domain_flags
from experiments.runner import Runner, read_results, slug

WIDTHS = (32, 64, 128)
POLICIES = {64: 1200, 128: 400}  # width -> updates
MAJORITY, BEST = 'majority', 'best of 16, policy of width {}'
ARMS = {MAJORITY: 0} | {f'PRM of width {width}': width for width in WIDTHS}


def size_flags(width: int) -> tuple[str, ...]:
  """Returns the flags of a model of this width."""
  return (
    f'--config.model.d_model={width}',
    f'--config.model.d_ff={3 * width}',
  )


def make_policy(runner: Runner, seed: int, width: int) -> pathlib.Path:
  """Trains a policy of this width."""
  updates = POLICIES[width]
  return ablations.train_policy(
    runner,
    seed,
    f'policy_{width}',
    *size_flags(width),
    f'--config.train.steps={updates}',
    f'--config.train.checkpoint_every={updates}',
  )


def make_prm(runner: Runner, seed: int, width: int) -> pathlib.Path:
  """Trains a PRM of this width."""
  if width == WIDTHS[-1]:  # the default
    return ablations.train(runner, seed, ablations.DEFAULT)
  return ablations.train(runner, seed, f'prm_{width}', *size_flags(width))


def prepare(runner: Runner, seed: int) -> None:
  for width in POLICIES:
    check_formed(make_policy(runner, seed, width))


def search(
  runner: Runner, seed: int, arm: str, width: int, *flags: str
) -> Measured:
  """Measures the accuracy of one choice among 16 chains of one policy.

  Args:
    width: width of the policy.
    flags: the PRM that chooses.
  """
  method = 'majority' if arm == MAJORITY else 'best_of_n'
  workdir = runner.main(
    f'search_math.py:{method}',
    f'seed_{seed}/policy_{width}_{slug(arm)}',
    *domain_flags(seed, ablations.OPERATIONS, 'problems'),
    '--config.problems.train_problems=2048',
    '--config.problems.test_problems=200',
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={make_policy(runner, seed, width)}',
    *flags,
  )
  accuracy = read_results(workdir)['search']['accuracy']
  return Measured(accuracy['mean'], accuracy['ci95'])


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Measures how well one PRM, or majority, chooses for each policy."""
  measured = {}
  flags = ['--config.prm.kind=none']
  if arm != MAJORITY:
    prm = make_prm(runner, seed, ARMS[arm])
    measured[ablations.F1] = ablations.read(prm)[ablations.F1]
    flags = ['--config.prm.kind=workdir', f'--config.prm.path={prm}']
  for width in POLICIES:
    found = search(runner, seed, arm, width, *flags)
    measured[BEST.format(width)] = found
  return measured


ABLATION = Ablation(__file__, 'chosen by', list(ARMS), measure, prepare)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

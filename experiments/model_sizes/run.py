"""How large has a PRM to be for policies of several sizes?

    pip install -e '.[experiments]'
    python -m experiments.model_sizes.run --workdir /tmp/ablations

Policies and PRMs of equal depth and other widths, trained on the solver's
chains, a policy until it writes its steps; each PRM chooses among 16 chains of
each policy. Writes results.json, figure.svg and the table of README.md beside
this file.
"""

import json
import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.arithmetic import check_formed, domain_flags
from experiments.runner import Runner

WIDTHS = (32, 64, 128)
POLICIES = {64: 1200, 128: 400}  # width -> updates
MAJORITY, BEST = 'majority', 'best of 16, policy of width {}'
ARMS = {MAJORITY: 0} | {f'PRM of width {width}': width for width in WIDTHS}


def size(width: int) -> tuple[str, ...]:
  return (
    f'--config.model.d_model={width}',
    f'--config.model.d_ff={3 * width}',
  )


def policy(runner: Runner, seed: int, width: int) -> pathlib.Path:
  updates = POLICIES[width]
  return ablations.train_policy(
    runner,
    seed,
    f'policy_{width}',
    *size(width),
    f'--config.train.steps={updates}',
    f'--config.train.checkpoint_every={updates}',
  )


def prm(runner: Runner, seed: int, width: int) -> pathlib.Path:
  if width == WIDTHS[-1]:  # the default
    return ablations.train(runner, seed, ablations.AS_IT_IS)
  return ablations.train(runner, seed, f'prm_{width}', *size(width))


def prepare(runner: Runner, seed: int) -> None:
  for width in POLICIES:
    check_formed(policy(runner, seed, width))


def search(
  runner: Runner, seed: int, arm: str, of: int, method: str, *flags: str
) -> Measured:
  """The share of test problems that 16 chains of one policy answer."""
  done = runner.main(
    f'search_math.py:{method}',
    f'seed_{seed}/policy_{of}_{arm.replace(" ", "_")}',
    *domain_flags(seed, ablations.OPERATIONS, 'problems'),
    '--config.problems.train_problems=2048',
    '--config.problems.test_problems=200',
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={policy(runner, seed, of)}',
    *flags,
  )
  results = json.loads((done / 'results.json').read_text())['results']
  accuracy = results['search']['accuracy']
  return Measured(accuracy['mean'], accuracy['ci95'])


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  found = {}
  method, flags = 'majority', ('--config.prm.kind=none',)
  if arm != MAJORITY:
    judge = prm(runner, seed, ARMS[arm])
    found[ablations.F1] = ablations.read(judge)[ablations.F1]
    method = 'best_of_n'
    flags = ('--config.prm.kind=workdir', f'--config.prm.path={judge}')
  for of in POLICIES:
    found[BEST.format(of)] = search(runner, seed, arm, of, method, *flags)
  return found


ABLATION = Ablation(__file__, 'chosen by', list(ARMS), measure, prepare)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

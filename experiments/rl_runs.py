"""Policies, PRMs and RL jobs in the arithmetic domain, and their curves.

For experiments that compare rewards: every arm of a seed starts from the same
policy and reads the same PRM.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.arithmetic import domain_flags, row_flags
from experiments.runner import Runner

SMALL = ('--config.model.d_model=128', '--config.model.d_ff=384')
# The splits are one draw, so all jobs of an experiment name the same numbers.
TEST_PROBLEMS = 100
EXTRA_STEPS = 3  # room beyond what is needed, as more steps may pay more


class Size(NamedTuple):
  """Numbers of updates: of the imitation, of the PRM, and of the RL job."""

  imitation: int
  prm: int
  rewards: int


class Case(NamedTuple):
  """One seed and problem length, with a policy and a PRM that its arms share.

  Attributes:
    runner: runs its jobs.
    folder: folder of its jobs, below the runner's workdir.
    seed: seed of problems, solver and weights.
    operations: operations of a problem, which is also the steps of a chain.
  """

  runner: Runner
  folder: str
  seed: int
  operations: int

  @property
  def policy(self) -> pathlib.Path:
    """Workdir of the policy."""
    return self.runner.workdir / self.folder / 'policy'

  @property
  def prm(self) -> pathlib.Path:
    """Workdir of the PRM."""
    return self.runner.workdir / self.folder / 'prm'

  @property
  def max_tokens(self) -> int:
    """Tokens that the policy may write."""
    return 6 * (self.operations + EXTRA_STEPS) + 1


def make_policy(case: Case, updates: int) -> None:
  """Trains a policy that imitates the solver."""
  case.runner.main(
    'policy_math.py',
    f'{case.folder}/policy',
    *domain_flags(case.seed, case.operations, 'data'),
    *row_flags(case.operations, end=True, extra_steps=EXTRA_STEPS),
    *SMALL,
    f'--config.sampling.max_tokens={case.max_tokens}',
    '--config.data.train_samples=4',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.evaluation.samples=4',
    '--config.evaluation.ns=1,4',
    '--config.data.test_samples=4',
    f'--config.train.steps={updates}',
  )


def make_prm(case: Case, updates: int, chains: int, slip: float) -> None:
  """Trains a PRM on chains of the solver.

  Args:
    chains: number of its chains.
    slip: the solver's rate of slips in them.
  """
  case.runner.main(
    'prm_math.py',
    f'{case.folder}/prm',
    *domain_flags(case.seed, case.operations, 'data'),
    *row_flags(case.operations, end=False, extra_steps=EXTRA_STEPS),
    f'--config.data.arithmetic.slip={slip}',
    f'--config.data.train_problems={chains}',
    '--config.data.batch_size=8',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.data.test_samples=16',
    '--config.evaluation.ns=1,4,16',
    '--config.orm_baseline=False',
    f'--config.train.steps={updates}',
  )


def learn(
  case: Case, name: str, variant: str, updates: int, *flags: str
) -> 'Curve':
  """Trains the policy with rewards and returns how its accuracy went.

  Args:
    name: folder of the job, below that of the case.
    variant: variant of configs/rl_math.py.
  """
  workdir = case.runner.main(
    f'rl_math.py:{variant}',
    f'{case.folder}/{name}',
    *domain_flags(case.seed, case.operations, 'problems'),
    f'--config.policy.workdir={case.policy}',
    f'--config.sampling.max_tokens={case.max_tokens}',
    f'--config.problems.test_problems={TEST_PROBLEMS}',
    f'--config.train.updates={updates}',
    '--config.optim.schedule=constant',
    '--config.train.evaluate_every=10',
    '--config.held_out.problems=128',
    '--config.held_out.samples=2',
    '--config.test.samples=4',
    '--config.evaluation.ns=1,4',
    *flags,
  )
  return read_curve(workdir)


class Curve(NamedTuple):
  """What the L evaluations of one run found on Q held-out problems.

  Attributes:
    chains: [L] chains that had been learned from.
    right: [Q, L] share of right chains.
    score: [Q, L] lowest PRM score of a chain, mean over its chains.
    paid: [Q, L] reward that a chain gets for its steps.
    steps: [L] mean number of steps of a chain.
    hacked: whether the run raised its alarm of reward hacking.
  """

  chains: np.ndarray
  right: np.ndarray
  score: np.ndarray
  paid: np.ndarray
  steps: np.ndarray
  hacked: bool

  def smooth(self) -> np.ndarray:  # [Q, L]
    """Returns `right`, averaged over each evaluation and its neighbours."""
    count = self.right.shape[1]
    return np.stack(
      [
        self.right[:, max(0, k - 1) : min(count, k + 2)].mean(1)
        for k in range(count)
      ],
      1,
    )


def read_curve(workdir: pathlib.Path) -> Curve:
  """Reads the evaluations of an RL job."""
  train = json.loads((workdir / 'config.json').read_text())['train']
  lines = (workdir / 'evaluations.jsonl').read_bytes().splitlines()
  found = [json.loads(line) for line in lines]
  return Curve(
    train['problems']
    * train['samples']
    * np.array([it['update'] for it in found]),
    np.array([it['right'] for it in found]).T,
    np.array([it['score'] for it in found]).T,
    np.array([it['paid'] for it in found]).T,
    np.array([it['told']['steps'] for it in found]),
    any(it['alarm']['hacked'] for it in found),
  )


def pool(curves: Sequence[Curve]) -> Curve:
  """Puts the problems of several seeds together, as if one run had them."""
  first = curves[0]
  return Curve(
    first.chains,
    np.concatenate([curve.right for curve in curves]),
    np.concatenate([curve.score for curve in curves]),
    np.concatenate([curve.paid for curve in curves]),
    np.mean([curve.steps for curve in curves], 0),
    any(curve.hacked for curve in curves),
  )

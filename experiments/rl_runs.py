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
from prm_jax.runtime.workdir import read_results

SMALL = ('--config.model.d_model=128', '--config.model.d_ff=384')
# The splits are one draw, so all jobs of an experiment name the same numbers.
TEST_PROBLEMS = 100
EXTRA_STEPS = 3  # room beyond what is needed, as more steps may pay more


class Size(NamedTuple):
  """Says how much is learned.

  Attributes:
    shortest: operations of the shortest problems that the policy imitates.
    imitation: updates of the policy.
    prm: updates of a PRM.
    labelled: chains with exact labels that it learns from.
    rewards: updates of the RL job.
    formed: share of the policy's chains that must take the problem's own steps.
  """

  shortest: int
  imitation: int
  prm: int
  labelled: int
  rewards: int
  formed: float


class Case(NamedTuple):
  """One seed and problem length, with the models that its arms share.

  Attributes:
    runner: runs its jobs.
    folder: folder of its jobs, below the runner's workdir.
    seed: seed of problems, solver and weights.
    operations: operations of a problem, which is also the steps of a chain.
    arithmetic: further settings of the domain, by name.
  """

  runner: Runner
  folder: str
  seed: int
  operations: int
  arithmetic: tuple[tuple[str, float | str], ...] = ()

  @property
  def policy(self) -> pathlib.Path:
    """Workdir of the policy."""
    return self.path('policy')

  @property
  def prm(self) -> pathlib.Path:
    """Workdir of the PRM."""
    return self.path('prm')

  def path(self, name: str) -> pathlib.Path:
    """Returns the workdir of a job."""
    return self.runner.workdir / self.folder / name

  @property
  def max_tokens(self) -> int:
    """Tokens that the policy may write."""
    return 6 * (self.operations + EXTRA_STEPS) + 1

  def domain(self, section: str) -> list[str]:
    """Returns the flags of its problems and of its solver."""
    place = f'--config.{section}.arithmetic'
    return [
      *domain_flags(self.seed, self.operations, section),
      *(f'{place}.{name}={value}' for name, value in self.arithmetic),
    ]

  def run(self, config: str, name: str, *flags: str) -> pathlib.Path:
    """Runs a job unless it is done; returns its workdir."""
    return self.runner.main(config, f'{self.folder}/{name}', *flags)


def make_policy(case: Case, updates: int, *flags: str) -> None:
  """Trains a policy that imitates the solver."""
  case.run(
    'policy_math.py',
    'policy',
    *case.domain('data'),
    *row_flags(case.operations, end=True, extra_steps=EXTRA_STEPS),
    *SMALL,
    f'--config.sampling.max_tokens={case.max_tokens}',
    '--config.data.train_samples=4',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.evaluation.samples=4',
    '--config.evaluation.ns=1,4',
    '--config.data.test_samples=4',
    f'--config.train.steps={updates}',
    *flags,
  )


def make_prm(
  case: Case,
  updates: int,
  chains: int,
  slip: float,
  name: str = 'prm',
  *flags: str,
) -> pathlib.Path:
  """Trains a PRM on chains of the solver; returns its workdir.

  Args:
    chains: number of its chains.
    slip: the solver's rate of slips in them.
  """
  return _train_prm(
    case,
    'prm_math.py',
    name,
    updates,
    f'--config.data.arithmetic.slip={slip}',
    f'--config.data.train_problems={chains}',
    *flags,
  )


def refresh_prm(
  case: Case,
  name: str,
  before: pathlib.Path,
  labels: pathlib.Path,
  updates: int,
  *flags: str,
) -> pathlib.Path:
  """Trains a PRM that begins with the backbone of a run; returns its workdir.

  Args:
    before: workdir of that run, of a PRM or a policy.
    labels: workdir of its chains.
  """
  return _train_prm(
    case,
    'prm_math.py:from_run',
    name,
    updates,
    f'--config.base={before}',
    f'--config.data.labels={labels}',
    # A policy's steps may be as short as a token and its separator.
    f'--config.data.max_steps_per_row={case.max_tokens}',
    *flags,
  )


def _train_prm(
  case: Case, config: str, name: str, updates: int, *flags: str
) -> pathlib.Path:
  return case.run(
    config,
    name,
    *case.domain('data'),
    *row_flags(case.operations, end=False, extra_steps=EXTRA_STEPS),
    '--config.data.batch_size=8',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.data.test_samples=16',
    '--config.evaluation.ns=1,4,16',
    '--config.orm_baseline=False',
    f'--config.train.steps={updates}',
    *flags,
  )


def learn(
  case: Case,
  name: str,
  policy: pathlib.Path,
  variant: str,
  updates: int,
  *flags: str,
) -> 'Curve':
  """Trains the policy with rewards and returns how its accuracy went.

  Args:
    name: folder of the job, below that of the case.
    policy: workdir of the policy that it starts with.
    variant: variant of configs/rl_math.py.
  """
  workdir = case.run(
    f'rl_math.py:{variant}',
    name,
    *case.domain('problems'),
    f'--config.policy.workdir={policy}',
    f'--config.sampling.max_tokens={case.max_tokens}',
    f'--config.problems.test_problems={TEST_PROBLEMS}',
    f'--config.train.updates={updates}',
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
    commits: of the code that ran it.
  """

  chains: np.ndarray
  right: np.ndarray
  score: np.ndarray
  paid: np.ndarray
  steps: np.ndarray
  hacked: bool
  commits: tuple[str, ...] = ()

  def smooth(self) -> np.ndarray:  # [Q, L]
    """Returns `right`, averaged over each evaluation and its neighbours.

    The first stays as it is: runs that begin with one policy begin alike.
    """
    count = self.right.shape[1]
    averaged = [
      self.right[:, max(0, k - 1) : k + 2].mean(1) for k in range(count)
    ]
    return np.stack([self.right[:, 0], *averaged[1:]], 1)


def read_curve(workdir: pathlib.Path) -> Curve:
  """Reads the evaluations of an RL job."""
  config = json.loads((workdir / 'config.json').read_text())
  train = config['train']
  lines = (workdir / 'evaluations.jsonl').read_bytes().splitlines()
  found = [json.loads(line) for line in lines]
  return Curve(
    train['problems']
    * train['samples']
    * np.array([it['update'] for it in found]),
    np.array([it['right'] for it in found]).T,
    np.array([it['score'] for it in found]).T,
    # A run may have noted what steps are worth that it pays nothing for.
    bool(config['reward']['weight']) * np.array([it['paid'] for it in found]).T,
    np.array([it['told']['steps'] for it in found]),
    any(it['alarm']['hacked'] for it in found),
    (read_results(workdir)['manifest']['git_commit'],),
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
    tuple(sorted({commit for curve in curves for commit in curve.commits})),
  )

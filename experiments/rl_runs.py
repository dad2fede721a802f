"""Policies, PRMs and RL jobs in the arithmetic domain, and what they learned.

For experiments that compare rewards: every arm starts from the same policies.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.arithmetic import domain_flags, row_flags
from experiments.runner import Runner

SMALL = ('--config.model.d_model=128', '--config.model.d_ff=384')
# The splits are one draw: all jobs of an experiment name equal numbers.
TEST_PROBLEMS = 100
EXTRA_STEPS = 3  # that there is room for: more steps may be more reward


class Size(NamedTuple):
  """Updates of the policy by imitation, of its PRM, and by rewards."""

  imitation: int
  prm: int
  rewards: int


def make_policy(
  runner: Runner, folder: str, seed: int, operations: int, updates: int
) -> pathlib.Path:
  """A policy that imitates the solver."""
  return runner.main(
    'policy_math.py',
    folder,
    *domain_flags(seed, operations, 'data'),
    *row_flags(operations, end=True, extra_steps=EXTRA_STEPS),
    *SMALL,
    f'--config.sampling.max_tokens={most_tokens(operations)}',
    '--config.data.train_samples=4',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.evaluation.samples=4',
    '--config.evaluation.ns=1,4',
    '--config.data.test_samples=4',
    f'--config.train.steps={updates}',
  )


def make_prm(
  runner: Runner,
  folder: str,
  seed: int,
  operations: int,
  updates: int,
  chains: int,
  slip: float,
) -> pathlib.Path:
  """A PRM on so many of the solver's chains, which has seen other slips."""
  return runner.main(
    'prm_math.py',
    folder,
    *domain_flags(seed, operations, 'data'),
    *row_flags(operations, end=False, extra_steps=EXTRA_STEPS),
    f'--config.data.arithmetic.slip={slip}',
    f'--config.data.train_problems={chains}',
    '--config.data.batch_size=8',
    f'--config.data.test_problems={TEST_PROBLEMS}',
    '--config.data.test_samples=16',
    '--config.evaluation.ns=1,4,16',
    '--config.orm_baseline=False',
    f'--config.train.steps={updates}',
  )


def most_tokens(operations: int) -> int:
  """That a policy may write."""
  return 6 * (operations + EXTRA_STEPS) + 1


def learn(
  runner: Runner,
  folder: str,
  seed: int,
  operations: int,
  updates: int,
  policy: pathlib.Path,
  variant: str,
  *flags: str,
) -> pathlib.Path:
  """One RL job."""
  return runner.main(
    f'rl_math.py:{variant}',
    folder,
    *domain_flags(seed, operations, 'problems'),
    f'--config.policy.workdir={policy}',
    f'--config.sampling.max_tokens={most_tokens(operations)}',
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


class Curve(NamedTuple):
  """One run: what each look at Q held-out problems found.

  Attributes:
    chains: [L] that had been learned from.
    right: [Q, L] shares of right chains.
    score: [Q, L] lowest PRM score of a chain, and
    paid: what it is paid for its steps.
    steps: [L] of a chain.
    hacked: whether the run's own alarm rang.
  """

  chains: np.ndarray
  right: np.ndarray
  score: np.ndarray
  paid: np.ndarray
  steps: np.ndarray
  hacked: bool

  def smooth(self) -> np.ndarray:  # [Q, L]
    """`right`, each look the mean of it and its neighbours."""
    looks = self.right.shape[1]
    return np.stack(
      [
        self.right[:, max(0, k - 1) : min(looks, k + 2)].mean(1)
        for k in range(looks)
      ],
      1,
    )


def read_curve(workdir: pathlib.Path) -> Curve:
  train = json.loads((workdir / 'config.json').read_text())['train']
  lines = (workdir / 'evaluations.jsonl').read_bytes().splitlines()
  looks = [json.loads(line) for line in lines]
  return Curve(
    train['problems']
    * train['samples']
    * np.array([look['update'] for look in looks]),
    np.array([look['right'] for look in looks]).T,
    np.array([look['score'] for look in looks]).T,
    np.array([look['paid'] for look in looks]).T,
    np.array([look['told']['steps'] for look in looks]),
    any(look['alarm']['hacked'] for look in looks),
  )


def together(curves: Sequence[Curve]) -> Curve:
  """The problems of several seeds as those of one run."""
  first = curves[0]
  return Curve(
    first.chains,
    np.concatenate([curve.right for curve in curves]),
    np.concatenate([curve.score for curve in curves]),
    np.concatenate([curve.paid for curve in curves]),
    np.mean([curve.steps for curve in curves], 0),
    any(curve.hacked for curve in curves),
  )

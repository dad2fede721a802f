"""Flags of jobs in the arithmetic domain, for problems of any length."""

import bisect
import dataclasses
import pathlib

import numpy as np

from experiments.runner import read_results
from prm_jax.data.domains import arithmetic
from prm_jax.data.domains.arithmetic import OPS, ArithmeticConfig

ROW = 188  # about as many tokens as a packed row of the configs has
# A problem of K operations takes 2 K + 6 tokens, each of its K steps six.
AROUND = 6
FORMED = 0.8  # share of a policy's chains that take the problem's own steps


def domain_flags(seed: int, operations: int, section: str) -> list[str]:
  """Returns the flags of problems of a length and of a solver with a seed."""
  return [
    f'--config.seed={seed}',
    f'--config.{section}.arithmetic.solver_seed={seed}',
    f'--config.{section}.arithmetic.operations={operations}',
  ]


def wrong_facts_for(
  success: float, operations: int, seed: int, modulus: int, ops: str
) -> float:
  """Returns the share of wrong facts at which a solver succeeds so often.

  Args:
    success: probability that a chain of the solver ends right, on average over
      problems of this many operations; exact, and not by sampling.
    seed: seed of the problems and of the solver's beliefs.
  """
  config = ArithmeticConfig(
    modulus=modulus, operations=operations, ops=ops, solver_seed=seed
  )
  facts = len(OPS) * config.modulus**2
  problems = arithmetic.sample_problems(config, 256, seed)

  def share(count: int) -> float:
    return count / facts

  def failure(count: int) -> float:
    changed = dataclasses.replace(config, wrong_facts=share(count))
    solver = arithmetic.make_solver(changed)
    values = arithmetic.prefix_values(solver, problems, config.modulus)
    return 1 - values[np.arange(len(values)), 0, problems.start].mean()

  count = bisect.bisect_left(range(facts + 1), 1 - success, key=failure)
  if count > facts:
    raise SystemExit(
      f'error: {operations} operations modulo {modulus} are never right as '
      f'seldom as {success:g}: errors cancel each other'
    )
  return share(count)


def chains_per_row(operations: int, end: bool = False) -> int:
  """Returns how many chains of this many steps fit one row."""
  return max(1, ROW // (8 * operations + AROUND + end))


def row_flags(operations: int, end: bool, extra_steps: int = 0) -> list[str]:
  """Returns the flags of windows and rows for chains of this many steps.

  Args:
    end: whether a token marks the end of a chain, as it does for a policy.
    extra_steps: steps that a chain may have beyond those it needs.
  """
  chain = 8 * operations + AROUND + end
  longest = chain + 6 * extra_steps
  many = chains_per_row(operations, end)
  return [
    f'--config.data.max_length={longest}',
    f'--config.data.row_length={max(longest, many * chain)}',
    f'--config.data.max_steps_per_row={many * operations}',
  ]


def check_formed(policy: pathlib.Path, least: float = FORMED) -> None:
  """Stops where a policy has not learned to write the steps of a problem.

  What such a policy's chains say would tell nothing about rewards or searches.
  """
  sampling = read_results(policy)['sampling']
  formed = sampling['arithmetic']['policy']['formed']
  if formed < least:
    raise SystemExit(
      f'error: only {100 * formed:.0f}% of the chains of {policy} take the '
      "problem's own steps; raise the policy's updates in the run.py of this "
      'experiment, and use a new --workdir'
    )

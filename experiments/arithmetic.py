"""Jobs in the arithmetic domain with problems of another length."""

import json
import pathlib

ROW = 188  # tokens of a packed row, about
# What stands around the steps of six tokens: a problem takes 2 K + 6.
AROUND = 6
FORMED = 0.8  # share of a policy's chains that take the problem's own steps


def domain_flags(seed: int, operations: int, section: str) -> list[str]:
  """Problems of so many operations, by a solver of this seed."""
  return [
    f'--config.seed={seed}',
    f'--config.{section}.arithmetic.solver_seed={seed}',
    f'--config.{section}.arithmetic.operations={operations}',
  ]


def chains_per_row(operations: int, end: bool = False) -> int:
  """How many chains of so many steps a row has room for."""
  return max(1, ROW // (8 * operations + AROUND + end))


def row_flags(operations: int, end: bool, extra_steps: int = 0) -> list[str]:
  """Windows of chains of so many steps.

  Args:
    end: whether a chain's end is a token, as it is for a policy.
    extra_steps: that a chain which goes on for too long may have.
  """
  chain = 8 * operations + AROUND + end
  longest = chain + 6 * extra_steps
  many = chains_per_row(operations, end)
  return [
    f'--config.data.max_length={longest}',
    f'--config.data.row_length={max(longest, many * chain)}',
    f'--config.data.max_steps_per_row={many * operations}',
  ]


def check_formed(policy: pathlib.Path) -> None:
  """Stops where a policy has not learned to write steps: nothing tells then."""
  found = json.loads((policy / 'results.json').read_text())['results']
  formed = found['sampling']['arithmetic']['policy']['formed']
  if formed < FORMED:
    raise SystemExit(
      f'error: {100 * formed:.0f}% of the chains of {policy} are well formed; '
      'raise its updates in the run.py of this experiment, and use a new '
      '--workdir'
    )

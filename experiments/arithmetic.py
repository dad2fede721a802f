"""Flags of jobs in the arithmetic domain with problems of another length."""

ROW = 188  # tokens of a packed row, about
# What stands around the steps of six tokens: a problem takes 2 K + 6.
AROUND = 6


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

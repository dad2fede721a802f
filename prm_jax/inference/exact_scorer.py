"""What a perfect PRM would say of the arithmetic domain's chains.

An upper bound for trained ones, and the truth that search is tested with.
"""

import functools
from collections.abc import Sequence

import numpy as np

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic import OPS, ArithmeticConfig
from prm_jax.inference.protocols import Scored, Scoring
from prm_jax.runtime.errors import UserError

KINDS = ('value', 'steps')


class ExactScorer:
  """A `policy.StepScorer` that knows.

  Args:
    config: the domain; its solver's beliefs where values are asked for.
    kind: 'value': the exact probability that the solver ends right from here;
      'steps': 1 for a right step, 0 for a wrong one, as the verifier has it.
  """

  counts_flops = False

  def __init__(self, config: ArithmeticConfig, kind: str = 'value') -> None:
    if kind not in KINDS:
      raise UserError(
        f'exact scorer of {kind!r}: expected one of {", ".join(KINDS)}'
      )
    self.name = f'exact {kind} modulus {config.modulus}'
    self._kind, self._modulus = kind, config.modulus
    self._transitions = arithmetic.make_solver(config)
    self._values = functools.lru_cache(maxsize=65_536)(self._values_of)

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    """See `policy.StepScorer`. It reads no tokens.

    Raises:
      UserError: a problem is not of this domain or has another modulus.
    """
    return [[Scored(self._scores(each), 0)] for each in requests]

  def _scores(self, asked: Scoring) -> tuple[float, ...]:
    right = arithmetic_text.check_steps(asked.problem, asked.steps)
    if self._kind == 'steps':
      return tuple(map(float, right))
    values = self._values(asked.problem)
    scores = []
    for p, step in enumerate(asked.steps, 1):
      state = arithmetic_text.result_of(step)
      known = state is not None and state < self._modulus and p < len(values)
      scores.append(float(values[p, state]) if known else 0.0)
    return tuple(scores)

  def _values_of(self, problem: str) -> np.ndarray:  # [K + 1, m]
    written = arithmetic_text.read_problem(problem)
    if written.modulus != self._modulus:
      raise UserError(
        f'{problem[:60]!r} is modulo {written.modulus}, the exact values are '
        f'modulo {self._modulus}; give them the same modulus'
      )
    ops, operands = zip(*written.parts, strict=True)
    alone = arithmetic.Problems(
      np.array([written.start], np.int32),
      np.array([[OPS.index(op) for op in ops]], np.int32),
      np.array([operands], np.int32) % self._modulus,
    )
    return arithmetic.prefix_values(self._transitions, alone, self._modulus)[0]

"""Scores chains of the arithmetic domain exactly, as a perfect PRM would.

    Scoring requests -> the domain's exact values -> ScoredSteps

Search experiments use it as an upper bound of trained PRMs, and tests as truth.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic import OPS, ArithmeticConfig
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.runtime.errors import UserError

KINDS = ('value', 'steps')


class ExactScorer:
  """Is a `protocols.StepScorer` that knows the truth.

  Args:
    config: the domain; 'value' needs its solver's beliefs, too.
    kind: 'value' scores a step with the exact probability that the solver ends
      with the right answer from there; 'steps' with 1 if the verifier calls
      the step right and 0 if wrong.

  Raises:
    UserError: the kind is unknown.
  """

  counts_flops = False

  def __init__(self, config: ArithmeticConfig, kind: str = 'value') -> None:
    if kind not in KINDS:
      raise UserError(
        f'exact scorer of {kind!r}: expected one of {", ".join(KINDS)}'
      )
    self._kind, self._modulus = kind, config.modulus
    self._transitions = arithmetic.make_solver(config)
    self.name = f'exact {kind} modulus {config.modulus}'
    if kind == 'value':
      belief = hashlib.sha256(self._transitions.tobytes()).hexdigest()[:12]
      self.name += f' of {belief}'
    self._values = functools.lru_cache(maxsize=65_536)(self._values_of)

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; no tokens are read.

    Raises:
      UserError: a problem is not of this domain or, for 'value', has another
        modulus.
    """
    return [[ScoredSteps(self._scores(request), 0)] for request in requests]

  def _scores(self, request: Scoring) -> tuple[float, ...]:
    if self._kind == 'steps':
      right = arithmetic_text.check_steps(request.problem, request.steps)
      return tuple(map(float, right))
    values = self._values(request.problem)
    scores = []
    truth = arithmetic_text.true_answer(request.problem)
    for p, step in enumerate(request.steps, 1):
      state = arithmetic_text.result_of(step)
      if p + 1 >= len(values):  # nothing is left to do: it is the answer
        scores.append(float(final_answer([step]) == truth))
      elif state is None:
        scores.append(0.0)
      else:  # the solver goes on from it modulo m
        scores.append(float(values[p, state % self._modulus]))
    return tuple(scores)

  def _values_of(self, problem: str) -> np.ndarray:  # [K + 1, m]
    written = arithmetic_text.read_problem(problem)
    if written.modulus != self._modulus:
      raise UserError(
        f'{problem[:60]!r} is modulo {written.modulus}, but the exact values '
        f'are for modulo {self._modulus}; use the same modulus'
      )
    ops, operands = zip(*written.parts, strict=True)
    alone = arithmetic.Problems(
      np.array([written.start % self._modulus], np.int32),
      np.array([[OPS.index(op) for op in ops]], np.int32),
      np.array([operands], np.int32) % self._modulus,
    )
    return arithmetic.prefix_values(self._transitions, alone, self._modulus)[0]

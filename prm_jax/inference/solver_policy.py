"""The arithmetic domain's solver as a policy: rollouts with known answers.

Label sources and search ask it as they ask a trained model (`protocols.py`),
and `arithmetic.prefix_values` says exactly how often it ends right from where.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic import OPS, ArithmeticConfig
from prm_jax.inference.protocols import Completion, Request, sample_seed
from prm_jax.runtime.errors import UserError

# Numbers are written with at most two digits, so a step is one of 3 * 100^3.
_BASE = 100
_STEP_TOKENS = 6  # five words and the separator
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class SolverPolicy:
  """Completes chains by the solver's exact transition probabilities.

  It goes on from whatever result the last step states, right or wrong, and
  ends the chain when all operations are done; `config.operations` is not read.
  Where the last step states no result it writes nothing. A stated number
  counts modulo m. Each step has its own draw, so a sample that goes on after
  its own first steps goes on as it would have without a stop.

  Args:
    config: the domain, with the solver's beliefs.
    seed: of its samples.
  """

  counts_flops = False

  def __init__(self, config: ArithmeticConfig, seed: int = 0) -> None:
    self.modulus = config.modulus
    self.seed = seed
    transitions = arithmetic.make_solver(config)
    rows = transitions.reshape(-1, config.modulus)
    # Without the last (1 up to rounding) no result reaches m.
    self._thresholds = np.cumsum(rows, axis=-1).T[:-1]
    with np.errstate(divide='ignore'):
      self._log_probabilities = np.log(rows)
    belief = hashlib.sha256(transitions.tobytes()).hexdigest()[:16]
    self.name = f'arithmetic solver {belief} modulus {self.modulus} seed {seed}'

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """See `Policy`; none fails.

    Raises:
      UserError: a problem is not of this domain or has another modulus.
    """
    todo = [self._remaining(request) for request in requests]
    samples = [request.samples for request in requests]
    owner = np.repeat(np.arange(len(requests)), samples)
    seeds = np.array(
      [
        sample_seed(self.seed, request.key, request.first + i)
        for request in requests
        for i in range(request.samples)
      ],
      np.uint64,
    )
    texts, logprobs = self._write(
      np.array([state for state, _ in todo], np.int64)[owner],
      [parts for _, parts in todo],
      np.array([len(r.steps) for r in requests], np.uint64)[owner],
      owner,
      seeds,
    )
    texts, logprobs = texts.tolist(), logprobs.tolist()
    completions: list[list[Completion | None]] = []
    row = 0
    for request, (state, parts) in zip(requests, todo, strict=True):
      # A limit stops the solver before it could write the chain's end.
      finished = state >= 0 and not 0 < request.max_steps <= len(parts)
      tokens = _STEP_TOKENS * len(parts) + finished
      completions.append(
        [
          Completion(
            tuple(texts[row + i][: len(parts)]),
            finished,
            tokens,
            0 if i else _prompt_tokens(request),
            logprobs[row + i],
          )
          for i in range(request.samples)
        ]
      )
      row += request.samples
    return completions

  def _remaining(
    self, request: Request
  ) -> tuple[int, tuple[tuple[str, int], ...]]:
    """The last result (-1 where none is stated) and what is to be written."""
    problem = arithmetic_text.read_problem(request.problem)
    if problem.modulus != self.modulus:
      raise UserError(
        f'{request.problem[:60]!r} is modulo {problem.modulus}, the solver '
        f'calculates modulo {self.modulus}; give them the same modulus'
      )
    if not request.steps:
      state: int | None = problem.start
    else:
      state = arithmetic_text.result_of(request.steps[-1])
    if state is None:
      return -1, ()
    parts = problem.parts[len(request.steps) :]
    return state, parts[: request.max_steps or None]

  def _write(
    self,
    state: np.ndarray,  # [C] the number that the first step restates
    parts: list[tuple[tuple[str, int], ...]],  # of each request
    before: np.ndarray,  # [C] uint64, steps that are written
    owner: np.ndarray,  # [C] index into parts
    seeds: np.ndarray,  # [C] uint64
  ) -> tuple[np.ndarray, np.ndarray]:  # [C, K] steps as text, [C]
    """All completions at once, and their log-probabilities."""
    length = np.array([len(each) for each in parts], np.int64)[owner]
    steps = int(length.max(initial=0))
    ops = np.zeros((len(parts), steps), np.int64)
    operands = np.zeros((len(parts), steps), np.int64)
    for i, each in enumerate(parts):
      ops[i, : len(each)] = [OPS.index(op) for op, _ in each]
      operands[i, : len(each)] = [operand for _, operand in each]
    # The step as one number: operation, operands as written, result.
    codes = np.zeros((len(owner), steps), np.int64)
    logprobs = np.zeros(len(owner))
    m = self.modulus
    for k in range(steps):
      op, operand = ops[owner, k], operands[owner, k]
      fact = (op * m + state % m) * m + operand % m
      uniform = uniforms(seeds, before + np.uint64(k))
      result = np.zeros(len(owner), np.int64)
      for threshold in self._thresholds:
        result += threshold[fact] <= uniform
      codes[:, k] = ((op * _BASE + state) * _BASE + operand) * _BASE + result
      logprobs += np.where(k < length, self._log_probabilities[fact, result], 0)
      state = result
    different, index = np.unique(codes, return_inverse=True)
    texts = np.array([_step_text(code) for code in different.tolist()], object)
    return texts[index.reshape(codes.shape)], logprobs


def uniforms(
  seeds: np.ndarray,  # [C] uint64
  draw: np.ndarray,  # [C] uint64
) -> np.ndarray:  # [C] float64 in [0, 1)
  """Output `draw` of splitmix64 for each seed (Steele et al., 2014).

  A generator for each of 10^5 samples would take seconds to set up; this hash
  of seed and counter needs none, and the draws of a seed do not depend on
  which others are asked for.
  """
  # uint64 arithmetic wraps, as the algorithm wants it to.
  z = seeds + _GOLDEN * (draw + np.uint64(1))
  z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  z ^= z >> np.uint64(31)
  return (z >> np.uint64(11)) * 2.0**-53


def _step_text(code: int) -> str:
  code, result = divmod(code, _BASE)
  code, operand = divmod(code, _BASE)
  op, state = divmod(code, _BASE)
  return f'{state} {OPS[op]} {operand} = {result}'


def _prompt_tokens(request: Request) -> int:
  """Words, one id before and one after the problem, one after each step."""
  texts = (request.problem, *request.steps)
  return 1 + sum(len(text.split()) + 1 for text in texts)

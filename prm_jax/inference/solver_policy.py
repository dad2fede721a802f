"""Makes a policy of the arithmetic domain's solver, with known truth.

    Request -> the solver's transition probabilities -> Completion

Label sources and search ask it as they ask a trained model (`protocols.py`);
`arithmetic.prefix_values` gives its exact success rate from every step.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic import OPS, ArithmeticConfig
from prm_jax.inference.protocols import Completion, Request, sample_seed
from prm_jax.runtime.errors import UserError

# Numbers have at most two digits, so there are 3 * 100^3 different steps.
_BASE = 100
_STEP_TOKENS = 6  # five words and the separator
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class SolverPolicy:
  """Is a `protocols.Policy` that samples from the solver's exact distribution.

  It continues from the result that the last step states, right or wrong, taken
  modulo m, and ends the chain after the problem's last operation. If the last
  step states no result, it writes nothing. Each step has a random number of its
  own, so a sample that is continued after some of its steps is the same as one
  written without a stop.

  Args:
    config: the domain, with the solver's beliefs; its `operations` is not used.
    seed: seeds all samples.
  """

  counts_flops = False

  def __init__(self, config: ArithmeticConfig, seed: int = 0) -> None:
    self.modulus = config.modulus
    self.seed = seed
    transitions = arithmetic.make_solver(config)
    rows = transitions.reshape(-1, config.modulus)
    # Without the last threshold, which is 1 up to rounding, results stay < m.
    self._thresholds = np.cumsum(rows, axis=-1).T[:-1]
    with np.errstate(divide='ignore'):
      self._log_probabilities = np.log(rows)
    belief = hashlib.sha256(transitions.tobytes()).hexdigest()[:16]
    self.name = f'arithmetic solver {belief} modulus {self.modulus} seed {seed}'

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """Returns completions of each request; see `protocols.Policy`.

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
      # max_steps stops the solver before it could end the chain.
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
    """Returns the last result, -1 if none is stated, and what remains to do."""
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
    state: np.ndarray,  # [C] the number that the first step begins with
    parts: list[tuple[tuple[str, int], ...]],  # each request's operations
    before: np.ndarray,  # [C] uint64, number of steps written before
    owner: np.ndarray,  # [C] index into parts
    seeds: np.ndarray,  # [C] uint64
  ) -> tuple[np.ndarray, np.ndarray]:  # [C, K] steps as text, [C]
    """Writes all completions at once, with their log-probabilities."""
    length = np.array(list(map(len, parts)), np.int64)[owner]
    steps = int(length.max(initial=0))
    ops = np.zeros((len(parts), steps), np.int64)
    operands = np.zeros((len(parts), steps), np.int64)
    for i, own in enumerate(parts):
      ops[i, : len(own)] = [OPS.index(op) for op, _ in own]
      operands[i, : len(own)] = [operand for _, operand in own]
    # Encodes a step as one number: operation, operands as written, result.
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
  """Returns output number `draw` of splitmix64 for each seed.

  (Steele et al., 2014.) Setting up a generator for each of 10^5 samples would
  take seconds; this hash of seed and counter needs no setup.
  """
  # The algorithm relies on uint64 arithmetic wrapping around.
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
  """Counts words, an id before and after the problem, and one for each step."""
  texts = (request.problem, *request.steps)
  return 1 + sum(len(text.split()) + 1 for text in texts)

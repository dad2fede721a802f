"""Modular arithmetic: a reasoning domain in which the truth is known exactly.

Stands in front of the pipeline where data readers stand for real data: it
makes problems and chains with exact step labels, and tells what no real
dataset can, the exact probability that a chain ends right from every step.

    problem  mod 10 : 7 * 3 + 4      a start value, K operations, left to right
    step 0   7 * 3 = 1               restates its operands and the result
    step 1   1 + 4 = 5               starts from the result written before it

Chains are written by a solver with misconceptions. It believes some facts
wrongly, always in the same way, so its samples agree on wrong answers and a
majority vote fails where a verifier of steps does not.

    make_solver -> transitions [3, m, m, m]
    sample_problems -> Problems -> sample_results -> results [N, S, K]
      -> step_correct, outcomes, chain_values, to_chains

Shapes in this file: N problems, S samples of each, K operations (one step
each), m the modulus; operations are indices into OPS.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.runtime.errors import UserError

OPS = ('+', '-', '*')

# First word of each random stream's spawn key: equal seeds for the solver, the
# problems and the chains still give independent streams.
_SOLVER_STREAM, _PROBLEM_STREAM, _RESULT_STREAM = range(3)

# Labels are immutable and there are two of them, so all chains share them.
_RIGHT = StepLabel(1.0, source='verifier')
_WRONG = StepLabel(0.0, source='verifier')


@dataclasses.dataclass(frozen=True)
class ArithmeticConfig:
  """The domain and its solver.

  Attributes:
    modulus: m, 2 to 99 (the tokenizer's largest number; `mod m` is a word
      of every problem).
    operations: K, the steps of every chain.
    wrong_facts: share of the 3 m^2 facts (op, a, b) that are believed wrongly,
      rounded to a whole number of facts.
    use_wrong: probability that a wrong belief is used where it applies; else
      the right result is.
    slip: probability of writing another result than the intended one.
    solver_seed: chooses the misconceptions. At equal seeds, more `wrong_facts`
      add misconceptions and change none.
    ops: the operations that problems are made of, of OPS.
  """

  modulus: int = 10
  operations: int = 5
  wrong_facts: float = 0.18
  use_wrong: float = 0.75
  slip: float = 0.03
  solver_seed: int = 0
  ops: str = ''.join(OPS)

  def __post_init__(self) -> None:
    if not isinstance(self.modulus, int) or not 2 <= self.modulus <= 99:
      raise UserError(
        f'arithmetic modulus={self.modulus!r}: expected a whole number from 2 '
        'to 99, the largest number of the arithmetic tokenizer'
      )
    _check_count('operations', self.operations)
    for name in ('wrong_facts', 'use_wrong', 'slip'):
      value = getattr(self, name)
      if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(
          f'arithmetic {name}={value!r}: expected a probability in [0, 1]'
        )
    _check_seed('solver_seed', self.solver_seed)
    if not self.ops or not set(self.ops) <= set(OPS):
      raise UserError(
        f'arithmetic ops={self.ops!r}: expected one or more of {"".join(OPS)}'
      )


class Problems(NamedTuple):
  """N problems; a slice is `Problems(*(x[i:j] for x in problems))`."""

  start: np.ndarray  # [N] int32 in [0, m)
  ops: np.ndarray  # [N, K] int32 indices into OPS
  operands: np.ndarray  # [N, K] int32 in [0, m)


def make_solver(config: ArithmeticConfig) -> np.ndarray:
  """The solver's exact transition probabilities.

  For every fact the solver first intends a result: the right one or, at the
  facts it believes wrongly, its fixed wrong one (uniform over the m - 1) with
  probability `use_wrong`. Then with probability `slip` it writes one of the
  m - 1 other results, uniformly. With q the probability of intending r,

      P(r | op, a, b) = (1 - slip) q(r) + slip (1 - q(r)) / (m - 1).

  Steps are independent given their operands: a belief is used or not afresh at
  each step. A slip from a wrong intention may hit the right result.

  Returns:
    [3, m, m, m] float64, P(result | op, a, b) over the last axis.
  """
  m = config.modulus
  rng = _generator('solver_seed', config.solver_seed, _SOLVER_STREAM)
  truth = _true_table(m).ravel()
  facts = np.arange(len(truth))
  wrong = rng.permutation(facts)[: round(config.wrong_facts * len(facts))]
  believed = (truth + rng.integers(1, m, len(facts))) % m

  intended = np.zeros((len(facts), m))
  intended[facts, truth] = 1
  intended[wrong, truth[wrong]] = 1 - config.use_wrong
  intended[wrong, believed[wrong]] = config.use_wrong
  written = (1 - config.slip) * intended
  written += config.slip * (1 - intended) / (m - 1)
  return written.reshape(len(OPS), m, m, m)


def sample_problems(
  config: ArithmeticConfig, count: int, seed: int
) -> Problems:
  """Distinct problems, uniform over the m (O m)^K that exist with O operations.

  A smaller `count` gives the first problems of a larger one, so held-out
  problems are a slice of one call, never a second call (two calls overlap).

  Raises:
    UserError: more problems are wanted than exist.
  """
  _check_count('count', count)
  m, k = config.modulus, config.operations
  ops = np.array([OPS.index(op) for op in OPS if op in config.ops], np.int32)
  exist = m * (len(ops) * m) ** k
  if count > exist:
    raise UserError(
      f'{count} distinct arithmetic problems wanted, but only {exist} exist '
      f'with modulus={m} and operations={k}; raise one of these or lower the '
      'count'
    )
  rng = _generator('seed', seed, _PROBLEM_STREAM)
  high = np.array([m] + [len(ops), m] * k)
  rows = np.zeros((0, len(high)), np.int64)
  while len(rows) < count:
    rows = np.concatenate([rows, rng.integers(high, size=(count, len(high)))])
    # Order of first appearance keeps the draw uniform and its prefixes equal;
    # np.unique's own order would keep the smallest rows.
    _, first = np.unique(rows, axis=0, return_index=True)
    rows = rows[np.sort(first)]
  rows = rows[:count].astype(np.int32)
  return Problems(rows[:, 0], ops[rows[:, 1::2]], rows[:, 2::2])


def sample_results(
  transitions: np.ndarray,  # [3, m, m, m]
  problems: Problems,
  samples: int,
  seed: int,
) -> np.ndarray:  # [N, S, K]
  """What the solver writes: the result of each step of each chain.

  Chain (n, s) depends on the seed, n, s and problem n only: fewer samples or
  fewer problems (a prefix of them) give the same chains.

  Returns:
    int32 results in [0, m), S = `samples`.
  """
  _check_count('samples', samples)
  modulus = transitions.shape[-1]
  shape = problems.ops.shape
  uniform = np.stack(
    [
      _generator('seed', seed, _RESULT_STREAM, s).random(shape)
      for s in range(samples)
    ],
    axis=1,
  )
  # By inverse CDF: the result is the number of thresholds at or below the
  # draw. One pass per threshold holds no [N, S, m] array, and leaving out the
  # last threshold (1 up to rounding) keeps every result below m.
  thresholds = np.cumsum(transitions, axis=-1).reshape(-1, modulus).T[:-1]
  results = np.zeros(uniform.shape, np.int32)
  state = np.broadcast_to(problems.start[:, None], uniform.shape[:2])
  for k in range(shape[1]):
    fact = problems.ops[:, k, None] * modulus + state
    fact = fact * modulus + problems.operands[:, k, None]
    for threshold in thresholds:
      results[..., k] += threshold[fact] <= uniform[..., k]
    state = results[..., k]
  return results


def true_results(problems: Problems, modulus: int) -> np.ndarray:  # [N, K]
  """The value after each step when every step is right, int32 in [0, m)."""
  table = _true_table(modulus)
  results = np.empty(problems.ops.shape, np.int32)
  state = problems.start
  for k in range(results.shape[1]):
    state = table[problems.ops[:, k], state, problems.operands[:, k]]
    results[:, k] = state
  return results


def step_correct(
  problems: Problems,
  results: np.ndarray,  # [N, S, K]
  modulus: int,
) -> np.ndarray:  # [N, S, K]
  """Is each step's own calculation right, given the operand that it restates?

  This is what a verifier of single steps says. An error carried forward is not
  a second error: the step after a wrong result is right if it calculates
  rightly from that result. What to learn from the steps after the first error
  is the loss's decision. The first error is the first False;
  `chains.first_error` gives it from the labels.
  """
  operands = problems.operands[:, None]
  start = np.broadcast_to(
    problems.start[:, None, None], (*results.shape[:2], 1)
  )
  restated = np.concatenate([start, results[..., :-1]], axis=-1)
  right = _true_table(modulus)[problems.ops[:, None], restated, operands]
  return results == right


def outcomes(
  problems: Problems,
  results: np.ndarray,  # [N, S, K]
  modulus: int,
) -> np.ndarray:  # [N, S]
  """Is the final result the true answer? It can be, by errors that cancel."""
  return results[..., -1] == true_results(problems, modulus)[:, None, -1]


def prefix_values(
  transitions: np.ndarray,  # [3, m, m, m]
  problems: Problems,
  modulus: int,
) -> np.ndarray:  # [N, K + 1, m]
  """Exact probability that the solver ends right from every state.

  Backward dynamic programming, with V_K(s) = 1 where s is the true answer:

      V_p(s) = sum_r P(r | op_p, s, operand_p) V_{p+1}(r)

  This is what Monte Carlo rollouts by the same solver estimate.

  Returns:
    float64 in [0, 1]: entry [n, p, s] is the value when p steps are written and
    the last result is s. At p = 0 the chain has no step yet and only
    s = start[n] is reachable: the value of the problem.
  """
  count, steps = problems.ops.shape
  values = np.zeros((count, steps + 1, modulus))
  answers = true_results(problems, modulus)[:, -1]
  values[np.arange(count), steps, answers] = 1
  # [3, m, m, m] with the operand before the state, so that one index per
  # problem picks a matrix from state to result.
  by_operand = transitions.swapaxes(1, 2)
  for k in reversed(range(steps)):
    step = by_operand[problems.ops[:, k], problems.operands[:, k]]
    values[:, k] = (step @ values[:, k + 1, :, None])[..., 0]
  return values


def chain_values(
  values: np.ndarray,  # [N, K + 1, m], of prefix_values
  results: np.ndarray,  # [N, S, K]
) -> np.ndarray:  # [N, S, K]
  """Value after each step of sampled chains; the last is the outcome."""
  count, _, steps = results.shape
  problem = np.arange(count)[:, None, None]
  return values[problem, np.arange(1, steps + 1), results]


def to_chains(
  config: ArithmeticConfig,
  problems: Problems,
  results: np.ndarray,  # [N, S, K]
) -> list[Chain]:
  """Chains with verifier labels, all samples of a problem in a row.

  `meta['problem_id']` is the problem's text, so that equal problems of
  separate calls are seen to be equal; `meta['id']` adds the sample's index and
  is unique within a call.
  """
  correct = step_correct(problems, results, config.modulus).tolist()
  right = outcomes(problems, results, config.modulus).tolist()
  rows = zip(*(x.tolist() for x in problems), results.tolist(), strict=True)
  chains = []
  for n, (start, ops, operands, samples) in enumerate(rows):
    # ' * 3': what the problem and each step at this place have in common.
    parts = [f' {OPS[op]} {b}' for op, b in zip(ops, operands, strict=True)]
    problem = f'mod {config.modulus} : {start}' + ''.join(parts)
    for s, written in enumerate(samples):
      states = [start, *written]
      steps = tuple(
        f'{states[k]}{part} = {states[k + 1]}' for k, part in enumerate(parts)
      )
      chains.append(
        Chain(
          problem=problem,
          steps=steps,
          answer=str(written[-1]),
          outcome=right[n][s],
          labels=tuple(_RIGHT if ok else _WRONG for ok in correct[n][s]),
          meta={
            'id': f'{problem} # {s}',
            'dataset': 'arithmetic',
            'problem_id': problem,
          },
        )
      )
  return chains


def _true_table(modulus: int) -> np.ndarray:  # [3, m, m]
  """The right result of (op, a, b), in the order of OPS."""
  a, b = np.ogrid[:modulus, :modulus]
  return np.stack([a + b, a - b, a * b]) % modulus


def _generator(name: str, seed: int, *stream: int) -> np.random.Generator:
  """The generator of one stream of a seed."""
  _check_seed(name, seed)
  return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))


def _check_seed(name: str, seed: int) -> None:
  if not isinstance(seed, int | np.integer) or seed < 0:
    raise UserError(f'{name}={seed!r}: expected a whole number from 0 up')


def _check_count(name: str, count: int) -> None:
  if not isinstance(count, int | np.integer) or count < 1:
    raise UserError(f'{name}={count!r}: expected a whole number from 1 up')

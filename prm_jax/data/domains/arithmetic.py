"""Makes problems and chains of modular arithmetic, with exact labels.

This domain stands at the start of the pipeline, where the readers stand for
real data. Its step labels are exact, and it gives what no real data set can:
the exact probability that a chain ends right, after every step.

    problem  mod 10 : 7 * 3 + 4      a start value, K operations, left to right
    step 0   7 * 3 = 1               operands and result
    step 1   1 + 4 = 5               starts from the result written before it

A solver with misconceptions writes the chains. It believes some facts wrongly,
always in the same way. So its samples agree on wrong answers, and a majority
vote fails where a verifier of steps does not.

    make_solver -> transitions [3, m, m, m]
    sample_problems -> Problems -> sample_results -> results [N, S, K]
      -> step_correct, outcomes, chain_values, to_chains

Shapes in this file: N problems, S samples of each, K operations (one step
each), m the modulus; operations are indices into OPS.
"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax.data.chains import VERIFIED, Chain
from prm_jax.data.domains.draws import check_count, make_generator
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, within
from prm_jax.runtime.errors import UserError

OPS = ('+', '-', '*')

# First word of each random stream's spawn key, so that equal seeds for the
# solver, the problems and the chains give independent streams.
_SOLVER_STREAM, _PROBLEM_STREAM, _RESULT_STREAM = range(3)


@dataclasses.dataclass(frozen=True)
class ArithmeticConfig:
  """Describes the problems of the domain and the solver.

  Attributes:
    modulus: m, 2 to 99. Every problem begins with `mod m`, and 99 is the
      largest number of the arithmetic tokenizer.
    operations: K, the number of operations of a problem and of steps of a
      chain.
    wrong_facts: share of the 3 m^2 facts (op, a, b) that the solver believes
      wrongly, rounded to a whole number of facts.
    use_wrong: probability that the solver uses a wrong belief where it has one;
      otherwise it uses the right result.
    slip: probability that the solver writes another result than it intends.
    solver_seed: seed of the misconceptions. With the same seed, more
      `wrong_facts` add misconceptions and change none.
    ops: the operations that occur in problems, some of OPS.
  """

  modulus: Annotated[int, within(2, 99)] = 10
  operations: Annotated[int, at_least(1)] = 5
  wrong_facts: Annotated[float, within(0, 1)] = 0.18
  use_wrong: Annotated[float, within(0, 1)] = 0.75
  slip: Annotated[float, within(0, 1)] = 0.03
  solver_seed: Annotated[int, at_least(0)] = 0
  ops: str = ''.join(OPS)

  def __post_init__(self) -> None:
    checks.check(self)
    if not self.ops or not set(self.ops) <= set(OPS):
      checks.fail('ops', self.ops, f'expected one or more of {"".join(OPS)}')


class Problems(NamedTuple):
  """Holds N problems.

  Take a slice with `Problems(*(x[i:j] for x in problems))`.
  """

  start: np.ndarray  # [N] int32 in [0, m)
  ops: np.ndarray  # [N, K] int32 indices into OPS
  operands: np.ndarray  # [N, K] int32 in [0, m)


def make_solver(config: ArithmeticConfig) -> np.ndarray:
  """Returns the solver's exact transition probabilities.

  For every fact the solver first intends a result. It intends the right one,
  but if it believes the fact wrongly, then with probability `use_wrong` its
  fixed wrong one, which was drawn uniformly from the m - 1 others. With
  probability `slip` it then writes one of the m - 1 results that it does not
  intend, drawn uniformly. If q(r) is the probability of intending r,

      P(r | op, a, b) = (1 - slip) q(r) + slip (1 - q(r)) / (m - 1).

  Steps are independent given their operands: at each step the solver decides
  anew whether to use its belief. A slip may turn a wrong intention into the
  right result.

  Returns:
    [3, m, m, m] float64, P(result | op, a, b) over the last axis.
  """
  m = config.modulus
  rng = make_generator(config.solver_seed, _SOLVER_STREAM)
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
  """Draws distinct problems, uniformly from all m (O m)^K for O operations.

  A smaller `count` gives the first problems of a larger one. Take held-out
  problems as a slice of one call: two calls may return the same problems.

  Raises:
    UserError: fewer than `count` problems exist.
  """
  check_count('count', count)
  m, k = config.modulus, config.operations
  ops = np.array([OPS.index(op) for op in OPS if op in config.ops], np.int32)
  exist = m * (len(ops) * m) ** k
  if count > exist:
    raise UserError(
      f'{count} distinct arithmetic problems wanted, but only {exist} exist '
      f'with modulus={m} and operations={k}; raise one of these or lower the '
      'count'
    )
  rng = make_generator(seed, _PROBLEM_STREAM)
  high = np.array([m] + [len(ops), m] * k)
  rows = np.zeros((0, len(high)), np.int64)
  while len(rows) < count:
    rows = np.concatenate([rows, rng.integers(high, size=(count, len(high)))])
    # Rows stay in the order of their first appearance. In np.unique's own order
    # the draw would keep the smallest rows and not be uniform.
    _, first = np.unique(rows, axis=0, return_index=True)
    rows = rows[np.sort(first)]
  rows = rows[:count].astype(np.int32)
  return Problems(rows[:, 0], ops[rows[:, 1::2]], rows[:, 2::2])


def shorten(problems: Problems, shortest: int) -> list[Problems]:
  """Cuts problems to `shortest` up to K operations, in equal shares.

  Args:
    shortest: least number of operations; 0 leaves the problems as they are.
  """
  operations = problems.ops.shape[1]
  lengths = range(shortest or operations, operations + 1)
  return [
    Problems(
      problems.start[first :: len(lengths)],
      problems.ops[first :: len(lengths), :k],
      problems.operands[first :: len(lengths), :k],
    )
    for first, k in enumerate(lengths)
  ]


def sample_results(
  transitions: np.ndarray,  # [3, m, m, m]
  problems: Problems,
  samples: int,
  seed: int,
) -> np.ndarray:  # [N, S, K]
  """Samples the result of every step of every chain that the solver writes.

  Chain (n, s) depends only on the seed, n, s and problem n, so fewer samples or
  only the first problems give the same chains.

  Returns:
    int32 results in [0, m), with S = `samples`.
  """
  check_count('samples', samples)
  modulus = transitions.shape[-1]
  shape = problems.ops.shape
  uniform = np.stack(
    [
      make_generator(seed, _RESULT_STREAM, s).random(shape)
      for s in range(samples)
    ],
    axis=1,
  )
  # Inverse CDF: the result is the number of thresholds at or below the draw.
  # One pass per threshold needs no [N, S, m] array. The last threshold, which
  # is 1 up to rounding, is left out, so every result is below m.
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
  """Returns the results of the right chains, int32 in [0, m)."""
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
  """Says for each step whether its own calculation is right.

  This is what a verifier of single steps would say. An error that is carried on
  is not a second error: a step is right if it calculates correctly from the
  result before it, even if that is wrong. `targets` decides what is learned
  from the steps after the first error.
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
  """Says whether the final results are right; errors may cancel each other."""
  return results[..., -1] == true_results(problems, modulus)[:, None, -1]


def prefix_values(
  transitions: np.ndarray,  # [3, m, m, m]
  problems: Problems,
  modulus: int,
) -> np.ndarray:  # [N, K + 1, m]
  """Returns the exact probability that the solver ends right, from every state.

  Monte Carlo rollouts by the same solver estimate this value. It is calculated
  by dynamic programming backwards from V_K, which is 1 at the true answer:

      V_p(s) = sum_r P(r | op_p, s, operand_p) V_{p+1}(r)

  Returns:
    float64 in [0, 1]: entry [n, p, s] is the value after p steps if the last
    result is s. At p = 0 only s = start[n] is reachable; its entry is the value
    of the problem.
  """
  count, steps = problems.ops.shape
  values = np.zeros((count, steps + 1, modulus))
  answers = true_results(problems, modulus)[:, -1]
  values[np.arange(count), steps, answers] = 1
  # With the operand before the state, indexing by operation and operand gives a
  # matrix from state to result for each problem.
  by_operand = transitions.swapaxes(1, 2)
  for k in reversed(range(steps)):
    step = by_operand[problems.ops[:, k], problems.operands[:, k]]
    values[:, k] = (step @ values[:, k + 1, :, None])[..., 0]
  return values


def chain_values(
  values: np.ndarray,  # [N, K + 1, m], of prefix_values
  results: np.ndarray,  # [N, S, K]
) -> np.ndarray:  # [N, S, K]
  """Returns the value after each step of sampled chains; the last is 0 or 1."""
  count, _, steps = results.shape
  problem = np.arange(count)[:, None, None]
  return values[problem, np.arange(1, steps + 1), results]


def make_chains(
  config: ArithmeticConfig, problems: Problems, samples: int, seed: int
) -> list[Chain]:
  """Lets the solver write chains of each problem, see `to_chains`."""
  results = sample_results(make_solver(config), problems, samples, seed)
  return to_chains(config, problems, results)


def to_chains(
  config: ArithmeticConfig,
  problems: Problems,
  results: np.ndarray,  # [N, S, K]
) -> list[Chain]:
  """Makes chains with verifier labels; the samples of a problem are in a row.

  `meta['problem_id']` is the text of the problem and so the same in every call.
  `meta['id']` adds the index of the sample and is unique within a call.
  """
  correct = step_correct(problems, results, config.modulus).tolist()
  right = outcomes(problems, results, config.modulus).tolist()
  rows = zip(*(x.tolist() for x in problems), results.tolist(), strict=True)
  chains = []
  for n, (start, ops, operands, samples) in enumerate(rows):
    # A part such as ' * 3' occurs in the problem and in the step.
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
          labels=tuple(VERIFIED[ok] for ok in correct[n][s]),
          meta={
            'id': f'{problem} # {s}',
            'dataset': 'arithmetic',
            'problem_id': problem,
          },
        )
      )
  return chains


def _true_table(modulus: int) -> np.ndarray:  # [3, m, m]
  """Returns the right result of every (op, a, b), operations as in OPS."""
  a, b = np.ogrid[:modulus, :modulus]
  return np.stack([a + b, a - b, a * b]) % modulus

"""Makes problems and chains of short programs, with exact labels.

This domain is like `arithmetic`, but its chains are Python functions, written
statement by statement, and what is right is decided by running them.

    problem  double each ; drop the first 2 ; return the sum
    step 0   xs = [ 2 * x for x in xs ]     one statement per operation
    step 1   xs = xs [ 2 : ]                of the body of `def f ( xs ) :`
    step 2   return sum ( xs )
    answer   -4 28 16 6 0 -22               its outputs on the problem's tests

A solver with misconceptions writes the chains. It believes some facts wrongly,
always in the same way. So its samples agree on wrong answers, and a majority
vote fails where a verifier of steps does not.

    sample_problems -> problems -> make_chains -> chains with labels
    make_solver -> probabilities of variants -> make_chains

Nothing here runs text: `code_operations` has a Python function for each
statement. `code_text` draws the tests, and judges other text in a sandbox.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import numpy as np

from prm_jax.data.chains import VERIFIED, Chain, StepLabel
from prm_jax.data.domains.code_operations import (
  ERROR,
  FACTS,
  LIST_OPERATIONS,
  RETURN_OPERATIONS,
  Fact,
  State,
  advance,
  trace,
)
from prm_jax.data.domains.code_text import (
  MAX_OPERATIONS,
  answer_text,
  draw_inputs,
  read_problem,
)
from prm_jax.data.domains.draws import check_count, make_generator
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, within
from prm_jax.runtime.errors import UserError

# First word of each random stream's spawn key, so that equal seeds for the
# solver, the problems and the chains give independent streams.
_SOLVER_STREAM, _PROBLEM_STREAM, _CHAIN_STREAM = range(3)

# Draws per problem wanted, before the search is given up. Most draws are usable
# (67% with six operations), but all short problems may have been drawn already.
_DRAWS_PER_PROBLEM = 20


@dataclasses.dataclass(frozen=True)
class CodeConfig:
  """Describes the problems of the domain and the solver.

  Attributes:
    operations: K, the number of operations of a problem and of steps of a
      chain; the last one returns a value.
    wrong_facts: share of the facts, that is operations with their numbers, that
      the solver believes wrongly, rounded to a whole number of facts.
    use_wrong: probability that the solver uses a wrong belief where it has one;
      otherwise it uses the right statement.
    slip: probability that the solver writes another variant than it intends.
    solver_seed: seed of the misconceptions. With the same seed, more
      `wrong_facts` add misconceptions and change none.
  """

  operations: Annotated[int, within(2, MAX_OPERATIONS)] = 4
  wrong_facts: Annotated[float, within(0, 1)] = 0.22
  use_wrong: Annotated[float, within(0, 1)] = 0.65
  slip: Annotated[float, within(0, 1)] = 0.05
  solver_seed: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)


@functools.lru_cache(maxsize=16)
def make_solver(config: CodeConfig) -> Mapping[str, tuple[float, ...]]:
  """Returns the probability with which the solver writes each variant.

  For every fact the solver first intends a variant. It intends the right one,
  but if it believes the fact wrongly, then with probability `use_wrong` its
  fixed wrong one, which was drawn uniformly. With probability `slip` it then
  writes one of the variants that it does not intend, drawn uniformly. If q(v)
  is the probability of intending v, one of V variants,

      P(v | fact) = (1 - slip) q(v) + slip (1 - q(v)) / (V - 1).

  At each step the solver decides anew whether to use its belief.

  Returns:
    For the phrase of each fact the probabilities of its variants, in order.
  """
  rng = make_generator(config.solver_seed, _SOLVER_STREAM)
  order = rng.permutation(len(FACTS))
  wrong = set(order[: round(config.wrong_facts * len(FACTS))].tolist())
  draws = rng.random(len(FACTS)).tolist()
  solver = {}
  for i, (fact, draw) in enumerate(zip(FACTS.values(), draws, strict=True)):
    others = len(fact.variants) - 1
    intended = np.zeros(1 + others)
    intended[0] = 1 - config.use_wrong if i in wrong else 1
    intended[1 + int(draw * others)] += 1 - intended[0]
    written = (1 - config.slip) * intended
    written += config.slip * (1 - intended) / others
    solver[fact.phrase] = tuple(written.tolist())
  return solver


def sample_problems(config: CodeConfig, count: int, seed: int) -> list[str]:
  """Draws distinct problems, all operations and numbers equally often.

  Left out are problems whose right output is the same on all tests, and those
  with an empty list before the last list operation. A smaller `count` gives the
  first problems of a larger one. Take held-out problems as a slice of one call:
  two calls may return the same problems.

  Raises:
    UserError: fewer than `count` problems are found.
  """
  check_count('count', count)
  rng = make_generator(seed, _PROBLEM_STREAM)
  # A dictionary keeps the order of the draws.
  problems: dict[str, None] = {}
  for _ in range(_DRAWS_PER_PROBLEM * count):
    operations = [LIST_OPERATIONS] * (config.operations - 1)
    facts = [_draw_fact(kind, rng) for kind in (*operations, RETURN_OPERATIONS)]
    problem = ' ; '.join(fact.phrase for fact in facts)
    if problem not in problems and _is_usable(problem, facts):
      problems[problem] = None
      if len(problems) == count:
        return list(problems)
  raise UserError(
    f'{count} distinct code problems wanted, but only {len(problems)} found '
    f'with operations={config.operations}; raise it or lower the count'
  )


def _draw_fact(
  operations: Sequence[tuple[Fact, ...]], rng: np.random.Generator
) -> Fact:
  """Draws an operation, then its number."""
  facts = operations[rng.integers(len(operations))]
  return facts[rng.integers(len(facts))]


def _is_usable(problem: str, facts: Sequence[Fact]) -> bool:
  right = [fact.variants[0] for fact in facts]
  *lists, _, outputs = trace(right, draw_inputs(problem))
  return len(set(outputs)) > 1 and not any(() in state for state in lists)


def make_chains(
  config: CodeConfig, problems: Sequence[str], samples: int, seed: int
) -> list[Chain]:
  """Samples chains of the solver; the samples of a problem are in a row.

  Chain (n, s) depends only on the seed, n, s and problem n, so fewer samples or
  only the first problems give the same chains. The problems may have any
  numbers of operations.

  A step is right if some continuation of the chain so far gives the right
  outputs on all tests, where a continuation writes any variant of each
  remaining operation. So all steps after a wrong one are wrong, too, and a
  wrong statement that changes no output is right.

  Returns:
    Chains with verifier labels. `meta['problem_id']` is the text of the problem
    and so the same in every call. `meta['id']` adds the index of the sample and
    is unique within a call. `meta['truth']` is the right answer.

  Raises:
    UserError: a text is not a problem of this domain.
  """
  check_count('samples', samples)
  shape = len(problems), MAX_OPERATIONS
  uniform = np.stack(
    [
      make_generator(seed, _CHAIN_STREAM, s).random(shape)
      for s in range(samples)
    ],
    axis=1,
  )
  solver = make_solver(config)
  thresholds = {
    # Without the last threshold, which is 1 up to rounding, all draws are below
    # the number of variants.
    phrase: list(itertools.accumulate(probabilities))[:-1]
    for phrase, probabilities in solver.items()
  }
  chains = []
  for problem, draws in zip(problems, uniform.tolist(), strict=True):
    facts = read_problem(problem)
    bounds = [thresholds[fact.phrase] for fact in facts]
    # Draws for operations that the problem does not have are not used.
    choices = [tuple(map(bisect.bisect_right, bounds, draw)) for draw in draws]
    written = _write(problem, facts, set(choices))
    for s, choice in enumerate(choices):
      chain = written[choice]
      meta = {'id': f'{problem} # {s}', **chain.meta}
      chains.append(dataclasses.replace(chain, meta=meta))
  return chains


def _write(
  problem: str, facts: Sequence[Fact], choices: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], Chain]:
  """Writes the chain of each choice of variants, still without an id."""
  inputs = draw_inputs(problem)
  target = _target(facts, inputs)
  passing = _make_passing(facts, target)
  chains = {}
  for choice in choices:
    variants = [f.variants[c] for f, c in zip(facts, choice, strict=True)]
    states = trace(variants, inputs)
    chains[choice] = Chain(
      problem=problem,
      steps=tuple(variant.statement for variant in variants),
      answer=answer_text(states[-1]),
      outcome=states[-1] == target,
      labels=_labels(states, passing),
      meta={
        'dataset': 'code',
        'problem_id': problem,
        'truth': answer_text(target),
      },
    )
  return chains


def _labels(
  states: Sequence[State], passing: Callable[[int, State], bool]
) -> tuple[StepLabel, ...]:
  """Labels the steps between states; before a right step, all are right."""
  steps = len(states) - 1
  right = steps
  while right and not passing(right, states[right]):
    right -= 1
  return (VERIFIED[True],) * right + (VERIFIED[False],) * (steps - right)


def _target(facts: Sequence[Fact], inputs: State) -> State:
  """Returns the right outputs."""
  return trace([fact.variants[0] for fact in facts], inputs)[-1]


def _make_passing(
  facts: Sequence[Fact], target: State
) -> Callable[[int, State], bool]:
  """Returns whether a state before statement k can still become the target."""

  @functools.cache  # different statements often lead to the same state
  def passing(k: int, state: State) -> bool:
    if k == len(facts):
      return state == target
    if ERROR in state:
      return False
    return any(
      passing(k + 1, advance(variant, state)) for variant in facts[k].variants
    )

  return passing

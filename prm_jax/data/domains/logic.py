"""Makes propositional deductions with exact labels.

Like `arithmetic`, this domain stands at the start of the pipeline, with exact
step labels. Its chains have different lengths, and some of its problems have no
answer but `unknown`.

    problem  q or p ; not p ; not both q and r ; what of r
    step 0   not p ; q or p ; so q by disjunctive syllogism
    step 1   q ; not both q and r ; so not r by conjunctive syllogism
    step 2   the answer is false

The premises of a problem are a path of atoms from the fact to the question,
and distractors. A solver with misconceptions goes along the path. It believes
some fallacies, and misses or inverts some valid rules, always in the same way.
So its samples agree on wrong answers.

    sample_problems -> texts -> make_chains -> Chains
    make_solver -> transitions -> path_transitions -> make_chains

`logic_text` reads the texts, checks steps, and says why the asked atom is
undetermined exactly if somewhere on the path nothing follows.

In this file, K is the number of premises on the path. A fact is a premise with
what is known of one of its atoms. An outcome is what a step states of the other
atom: FALSE, TRUE or NOTHING.
"""

import dataclasses
import math
import string
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from prm_jax.data.chains import VERIFIED, Chain
from prm_jax.data.domains.draws import check_count, make_generator
from prm_jax.data.domains.logic_text import (
  FORMS,
  IFF,
  Literal,
  ParsedProblem,
  Premise,
  Step,
  answer_of,
  check_steps,
  follows,
  read_answer,
  read_problem,
  rule_of,
  true_answer,
)
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, within
from prm_jax.runtime.errors import UserError

FALSE, TRUE, NOTHING = range(3)  # the outcomes, in the order of ANSWERS

# Premises that can relate two given atoms, and how many of them let something
# follow from a given literal of one.
_PREMISES, _FOLLOWING = 32, 20

# First word of each random stream's spawn key, so that equal seeds for the
# solver, the problems and the chains give independent streams.
_SOLVER_STREAM, _PROBLEM_STREAM, _CHAIN_STREAM = range(3)


@dataclasses.dataclass(frozen=True)
class LogicConfig:
  """Describes the problems of the domain and the solver.

  Attributes:
    steps: K, the number of premises on the path from the fact to the question.
      A chain has at most one step for each, and the answer.
    distractors: number of premises that relate an atom of the path to an atom
      that occurs nowhere else.
    unknown_share: probability that the answer is `unknown`, because at a
      uniformly drawn place of the path nothing follows.
    wrong_facts: share of the 64 facts that the solver believes wrongly, rounded
      to a whole number of facts.
    use_wrong: probability that the solver uses a wrong belief where it has one;
      otherwise it uses the right outcome.
    slip: probability that the solver writes another outcome than it intends.
    solver_seed: seed of the misconceptions. With the same seed, more
      `wrong_facts` add misconceptions and change none.
  """

  steps: Annotated[int, within(1, 25)] = 5
  distractors: Annotated[int, at_least(0)] = 2
  unknown_share: Annotated[float, within(0, 1)] = 1 / 3
  wrong_facts: Annotated[float, within(0, 1)] = 0.18
  use_wrong: Annotated[float, within(0, 1)] = 0.7
  slip: Annotated[float, within(0, 1)] = 0.03
  solver_seed: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)
    most = len(string.ascii_lowercase) - 1 - self.steps
    if self.distractors > most:
      expected = f'expected at most {most} with {self.steps} steps (26 letters)'
      checks.fail('distractors', self.distractors, expected)


def make_solver(config: LogicConfig) -> np.ndarray:
  """Returns the solver's exact transition probabilities.

  For every fact the solver first intends an outcome. It intends the right one,
  but if it believes the fact wrongly, then with probability `use_wrong` its
  fixed wrong one. Where nothing follows, that is the conclusion of a fallacy:
  the solver takes the premise for an equivalence. Elsewhere it was drawn
  uniformly from the two others. With probability `slip` the solver then writes
  one of the two outcomes that it does not intend, drawn uniformly. If q(r) is
  the probability of intending r,

      P(r | fact) = (1 - slip) q(r) + slip (1 - q(r)) / 2.

  Steps are independent given their facts.

  Returns:
    [4, 2, 2, 2, 2, 3] float64, P(outcome | fact) over the last axis. `fact_of`
    gives the index of a fact.
  """
  rng = make_generator(config.solver_seed, _SOLVER_STREAM)
  table = _right_outcomes()
  right = table.ravel()
  facts = np.arange(len(right))
  wrong = rng.permutation(facts)[: round(config.wrong_facts * len(facts))]
  # Where nothing follows from a literal, something follows from its opposite.
  fallacy = 1 - table[..., ::-1].ravel()
  others = (right + rng.integers(1, 3, len(facts))) % 3
  believed = np.where(right == NOTHING, fallacy, others)

  intended = np.zeros((len(facts), 3))
  intended[facts, right] = 1
  intended[wrong, right[wrong]] = 1 - config.use_wrong
  intended[wrong, believed[wrong]] = config.use_wrong
  written = (1 - config.slip) * intended
  written += config.slip * (1 - intended) / 2
  return written.reshape(*table.shape, 3)


def fact_of(premise: Premise, literal: Literal) -> tuple[int, ...]:
  """Returns the index of a fact in the solver's transitions.

  Returns:
    The form, the side of the known atom (0 is left), the sign of its literal in
    the premise (0 is `not`), that of the other literal, and what is known
    (FALSE or TRUE).
  """
  own, other = premise.from_atom(literal.atom)
  side = own != premise.left
  return premise.form, *map(int, (side, own.holds, other.holds, literal.holds))


def sample_problems(config: LogicConfig, count: int, seed: int) -> list[str]:
  """Draws the texts of distinct problems.

  The forms of premises are uniform, save that an equivalence cannot stand where
  nothing is to follow. Signs and sides are uniform among those by which
  something follows, or nothing. After the place where nothing follows, premises
  are drawn as if the atom there were known.

  A smaller `count` gives the first problems of a larger one. Take held-out
  problems as a slice of one call: two calls may return the same problems.

  Raises:
    UserError: fewer than `count` problems exist; with both kinds of answers,
      fewer than `count` of either.
  """
  check_count('count', count)
  exist = _count_problems(config)
  if count > exist:
    raise UserError(
      f'{count} distinct logic problems wanted, but only {exist} exist with or '
      f'without an answer for steps={config.steps} and '
      f'distractors={config.distractors}; raise one of these or lower the count'
    )
  rng = make_generator(seed, _PROBLEM_STREAM)
  problems: dict[str, None] = {}
  while len(problems) < count:
    problems[_draw_problem(config, rng)] = None
  return list(problems)


def path_transitions(
  transitions: np.ndarray,  # [4, 2, 2, 2, 2, 3]
  problem: ParsedProblem,
) -> np.ndarray:  # [K, 2, 3]
  """Returns P(outcome | what is known) for each step along the path."""
  return np.array(
    [
      [transitions[fact_of(premise, Literal(atom, x))] for x in (False, True)]
      for premise, atom in zip(problem.path, problem.atoms[:-1], strict=True)
    ]
  )


def make_chains(
  config: LogicConfig, problems: Sequence[str], samples: int, seed: int
) -> list[Chain]:
  """Samples chains of the solver; the samples of a problem are in a row.

  Chain (n, s) depends only on the seed, n, s and problem n, so fewer samples or
  only the first problems give the same chains.

  Returns:
    len(problems) * samples chains with the labels of `logic_text.check_steps`.
    `meta` holds `id`, unique within a call, `dataset`, `problem_id` (the text
    of the problem, the same in every call) and `truth` (the right answer).

  Raises:
    UserError: a text is not a problem of this domain.
  """
  check_count('samples', samples)
  transitions = make_solver(config)
  chains = []
  for n, problem in enumerate(problems):
    parsed, truth = read_problem(problem), true_answer(problem)
    rows = path_transitions(transitions, parsed)
    rng = make_generator(seed, _CHAIN_STREAM, n)
    uniform = rng.random((samples, len(rows))).tolist()
    thresholds = np.cumsum(rows, axis=-1)[..., :-1].tolist()
    # Many samples of a problem are equal, and each is written once.
    written = {}
    for s in range(samples):
      outcomes = _sample_outcomes(thresholds, parsed.fact.holds, uniform[s])
      if outcomes not in written:
        steps = _write_steps(parsed, outcomes)
        right = check_steps(problem, steps)
        labels = tuple(VERIFIED[ok] for ok in right)
        written[outcomes] = steps, labels, read_answer(steps[-1])
      steps, labels, answer = written[outcomes]
      chains.append(
        Chain(
          problem=problem,
          steps=steps,
          answer=answer,
          outcome=answer == truth,
          labels=labels,
          meta={
            'id': f'{problem} # {s}',
            'dataset': 'logic',
            'problem_id': problem,
            'truth': truth,
          },
        )
      )
  return chains


def _right_outcomes() -> np.ndarray:  # [4, 2, 2, 2, 2]
  """Returns the right outcome of every fact, int."""
  table = np.full((len(FORMS), 2, 2, 2, 2), NOTHING)
  for fact in np.ndindex(table.shape):
    form, side, own, other, known = fact
    sides = Literal('a', own == 1), Literal('b', other == 1)
    premise = Premise(form, *(sides[::-1] if side else sides))
    if conclusion := follows(premise, Literal('a', known == 1)):
      table[fact] = int(conclusion.holds)
  return table


def _count_problems(config: LogicConfig) -> int:
  """Counts the problems with or without an answer, whichever are fewer."""
  steps, distractors = config.steps, config.distractors
  atoms = steps + 1 + distractors  # as many as clauses before the question
  answered = _FOLLOWING**steps
  paths = [answered] if config.unknown_share < 1 else []
  paths += [_PREMISES**steps - answered] if config.unknown_share else []
  # Distractors are told apart by the order in which they stand in the text.
  arranged = math.perm(26, atoms) * math.perm(atoms, steps + 1)
  attached = (_PREMISES * (steps + 1)) ** distractors
  return 2 * min(paths) * arranged * attached


def _draw_problem(config: LogicConfig, rng: np.random.Generator) -> str:
  letters = [string.ascii_lowercase[i] for i in rng.permutation(26)]
  path, rest = letters[: config.steps + 1], letters[config.steps + 1 :]
  has_gap = rng.random() < config.unknown_share
  gap = int(rng.integers(config.steps)) if has_gap else -1
  known = Literal(path[0], bool(rng.integers(2)))
  clauses = [str(known)]
  for k, atom in enumerate(path[1:]):
    forms = [form for form in range(len(FORMS)) if k != gap or form != IFF]
    form = forms[rng.integers(len(forms))]
    while True:
      premise = _draw_premise(form, known.atom, atom, rng)
      conclusion = follows(premise, known)
      if (conclusion is None) == (k == gap):
        break
    clauses.append(str(premise))
    known = conclusion or Literal(atom, bool(rng.integers(2)))
  for atom in rest[: config.distractors]:
    form, near = int(rng.integers(len(FORMS))), path[rng.integers(len(path))]
    clauses.append(str(_draw_premise(form, near, atom, rng)))
  shuffled = [clauses[i] for i in rng.permutation(len(clauses))]
  return ' ; '.join([*shuffled, f'what of {path[-1]}'])


def _draw_premise(
  form: int, near: str, far: str, rng: np.random.Generator
) -> Premise:
  """Draws signs and sides uniformly."""
  drawn = int(rng.integers(8))
  sides = Literal(near, bool(drawn & 1)), Literal(far, bool(drawn & 2))
  return Premise(form, *(sides[::-1] if drawn & 4 else sides))


def _sample_outcomes(
  thresholds: list[list[list[float]]],  # [K, 2, 2]
  known: int,  # FALSE or TRUE
  uniform: list[float],  # [K]
) -> tuple[int, ...]:
  """Returns the outcomes along the path, up to the first NOTHING."""
  outcomes = []
  for step, draw in zip(thresholds, uniform, strict=True):
    # Inverse CDF: the outcome is the number of thresholds at or below the draw.
    known = sum(threshold <= draw for threshold in step[known])
    outcomes.append(known)
    if known == NOTHING:
      break
  return tuple(outcomes)


def _write_steps(
  problem: ParsedProblem, outcomes: Sequence[int]
) -> tuple[str, ...]:
  steps, state = [], problem.fact
  parts = zip(problem.path, problem.atoms[1:], outcomes, strict=False)
  for premise, atom, outcome in parts:
    conclusion, rule = None, ''
    if outcome != NOTHING:
      conclusion, rule = Literal(atom, outcome == TRUE), rule_of(premise, state)
    steps.append(str(Step(state, premise, conclusion, rule)))
    state = conclusion
  return (*steps, f'the answer is {answer_of(state)}')

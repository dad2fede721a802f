"""Reads problems and chains of the logic domain back from text.

    problem text -> read_problem -> ParsedProblem
    step text -> read_step -> Step, or read_answer -> the answer
    problem text, step texts -> check_steps, is_formed

A trained policy writes chains as text, well formed or not. This module checks
its steps by truth tables and deduces the right answers. `logic` is the domain.

What follows from one literal is found by walking from premise to premise. This
is exact, because the premises form a tree over the atoms, and each of them
leaves both values of either of its atoms possible:

- Values of the atoms on a route that agree with its premises always extend to
  the rest of the tree, one premise at a time. So only the premises on the route
  from the literal to an atom say anything about that atom.
- If both values of one atom on the route are possible, so are both values of
  the next, and of all after it. So the asked atom is undetermined exactly if
  somewhere on the route nothing follows.
"""

import collections
import functools
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.runtime.errors import UserError

# Premises over two literals. `Premise.form` is an index into them.
FORMS = ('if {} then {}', '{} or {}', '{} iff {}', 'not both {} and {}')
IF, OR, IFF, NOT_BOTH = range(len(FORMS))
_HOLDS = (
  lambda left, right: not left or right,
  lambda left, right: left or right,
  lambda left, right: left == right,
  lambda left, right: not (left and right),
)
RULES = (
  'modus ponens',
  'modus tollens',
  'disjunctive syllogism',
  'conjunctive syllogism',
  'equivalence',
)
ANSWERS = ('false', 'true', 'unknown')

# All words of problems and steps; blanks stand between them.
WORDS = (
  *string.ascii_lowercase,
  *dict.fromkeys(
    ' '.join(('; what of', *FORMS, 'so nothing by', *RULES, 'the answer is'))
    .replace('{}', '')
    .split()
  ),
  *ANSWERS,
)

_LITERAL = '(?:not )?[a-z]'
_PREMISES = [re.compile(form.replace('{}', f'({_LITERAL})')) for form in FORMS]
_QUESTION = re.compile('what of ([a-z])')
_STEP = re.compile(
  f'({_LITERAL}) ; ([a-z ]+) ; '
  f'so (?:nothing|({_LITERAL}) by ({"|".join(RULES)}))'
)
_ANSWER = re.compile(f'the answer is ({"|".join(ANSWERS)})')


class Literal(NamedTuple):
  """Says that an atom is true or false; as text, `p` or `not p`."""

  atom: str  # a letter a-z
  holds: bool

  def __str__(self) -> str:
    return self.atom if self.holds else f'not {self.atom}'


class Premise(NamedTuple):
  """Relates two atoms; as text e.g. `if not p then q`."""

  form: int  # index into FORMS
  left: Literal
  right: Literal

  def __str__(self) -> str:
    return FORMS[self.form].format(self.left, self.right)

  @property
  def atoms(self) -> tuple[str, str]:
    return self.left.atom, self.right.atom

  def from_atom(self, atom: str) -> tuple[Literal, Literal]:
    """Returns the literal of one of its atoms, and the other literal."""
    left, right = self.left, self.right
    return (left, right) if left.atom == atom else (right, left)


class Step(NamedTuple):
  """Holds a deduction such as `not p ; if not p then q ; so q by modus ponens`.

  Attributes:
    literal: what the step starts from.
    premise: the premise that it uses.
    conclusion: what it states; None for `so nothing`.
    rule: one of RULES, or '' for `so nothing`.
  """

  literal: Literal
  premise: Premise
  conclusion: Literal | None
  rule: str

  def __str__(self) -> str:
    end = f'{self.conclusion} by {self.rule}' if self.conclusion else 'nothing'
    return f'{self.literal} ; {self.premise} ; so {end}'


class ParsedProblem(NamedTuple):
  """Holds the parts of a problem.

  Attributes:
    fact: the literal that is given.
    premises: all premises, in the order of the text.
    asked: the atom of the question.
    path: the K premises that lead from the fact's atom to the asked one, in
      order.
    atoms: the K + 1 atoms that they relate.
  """

  fact: Literal
  premises: tuple[Premise, ...]
  asked: str
  path: tuple[Premise, ...]
  atoms: tuple[str, ...]


def is_problem(text: str) -> bool:
  """Says whether a text is a problem of this domain."""
  return _parse(text) is not None


def read_problem(text: str) -> ParsedProblem:
  """Parses a problem.

  Raises:
    UserError: the text is not a problem of this domain.
  """
  parsed = _parse(text)
  if parsed is None:
    raise UserError(
      f'{text[:60]!r} is no problem of the logic domain; expected one fact, '
      'premises that form a tree and a question about another atom, e.g. '
      "'p or q ; not p ; what of q'"
    )
  return parsed


def read_step(text: str) -> Step | None:
  """Parses a deduction, right or wrong; None if it is not well formed."""
  match = _STEP.fullmatch(text)
  if match is None:
    return None
  literal, written, conclusion, rule = match.groups()
  premise = _read_premise(written)
  if premise is None:
    return None
  stated = None if conclusion is None else _read_literal(conclusion)
  return Step(_read_literal(literal), premise, stated, rule or '')


def read_answer(text: str) -> str | None:
  """Returns the answer of an answer step; None for any other text."""
  match = _ANSWER.fullmatch(text)
  return match[1] if match else None


def follows(premise: Premise, literal: Literal) -> Literal | None:
  """Returns what follows from a premise and a literal of one of its atoms.

  Returns:
    The literal of the other atom that the truth table leaves; None if it leaves
    both values.
  """
  own, other = premise.from_atom(literal.atom)
  known, holds = literal == own, _HOLDS[premise.form]
  possible = [
    value
    for value in (False, True)
    if (holds(known, value) if own == premise.left else holds(value, known))
  ]
  if len(possible) == 2:
    return None
  return Literal(other.atom, other.holds == possible[0])


def rule_of(premise: Premise, literal: Literal) -> str:
  """Returns the rule that concludes from a premise and a literal of it.

  Where nothing follows, it is the valid rule that a fallacy is confused with:
  modus ponens for affirming the consequent, modus tollens for denying the
  antecedent, the syllogisms for affirming a disjunct and denying a conjunct.
  """
  if premise.form == IF:
    return RULES[0 if literal in (premise.left, premise.right) else 1]
  return RULES[{OR: 2, NOT_BOTH: 3, IFF: 4}[premise.form]]


def true_answer(problem: str) -> str:
  """Returns the right answer of a problem, one of ANSWERS."""
  parsed = read_problem(problem)
  return answer_of(_settle(parsed, parsed.fact))


def answer_of(literal: Literal | None) -> str:
  """Returns the answer that a literal of the asked atom gives, or None."""
  return ANSWERS[2 if literal is None else literal.holds]


def expected_steps(problem: str, steps: Sequence[str]) -> list[str]:
  """Returns what each step has to be on the path, given what is stated before.

  After an unreadable step it continues from that step's right text; after the
  answer it is ''.
  """
  parsed = read_problem(problem)
  expected: list[str] = []
  state: Literal | None = parsed.fact
  for text in steps:
    if expected and read_answer(expected[-1]) is not None:
      return expected + [''] * (len(steps) - len(expected))
    if state is None or state.atom == parsed.asked:
      expected.append(f'the answer is {answer_of(state)}')
      continue
    premise = parsed.path[parsed.atoms.index(state.atom)]
    right = follows(premise, state)
    rule = rule_of(premise, state) if right else ''
    due = Step(state, premise, right, rule)
    expected.append(str(due))
    written = read_step(text) or due
    state = written.conclusion
    if state is not None and state.atom not in parsed.atoms:
      state = right
  return expected


def mistaken_step(problem: str, step: str, rng: np.random.Generator) -> str:
  """Returns a step that concludes otherwise, drawn at random."""
  del problem
  read, answer = read_step(step), read_answer(step)
  if read is None:
    others = [other for other in ANSWERS if other != answer]
    return f'the answer is {others[rng.integers(len(others))]}'
  if read.conclusion is not None and rng.random() < 0.5:
    return str(read._replace(conclusion=None, rule=''))
  other = read.premise.from_atom(read.literal.atom)[1]
  holds = not read.conclusion.holds if read.conclusion else rng.random() < 0.5
  return str(
    read._replace(
      conclusion=Literal(other.atom, bool(holds)),
      rule=rule_of(read.premise, read.literal),
    )
  )


def check_steps(problem: str, steps: Sequence[str]) -> list[bool]:
  """Says for each step whether it is right.

  A deduction is right if its literal is the fact or the conclusion of an
  earlier step (right or wrong: an error that is carried on is not a second
  error), its premise is one of the problem's, and its conclusion and rule are
  the valid ones; `so nothing` is right where nothing follows. The answers true
  and false are right if that was concluded before. `unknown` is right if the
  last conclusion on the way to the asked atom (or the fact) does not determine
  it. Any other text is wrong and states nothing.
  """
  parsed = read_problem(problem)
  last, stated = parsed.fact, {parsed.fact}
  right = []
  for text in steps:
    step, answer = read_step(text), read_answer(text)
    if step is not None:
      started = step.literal in stated and step.premise in parsed.premises
      right.append(started and _is_valid(step))
      if step.conclusion is not None:
        stated.add(step.conclusion)
        if step.conclusion.atom in parsed.atoms:
          last = step.conclusion
    elif answer == 'unknown':
      right.append(_settle(parsed, last) is None)
    else:
      claim = Literal(parsed.asked, answer == 'true')
      right.append(answer is not None and claim in stated)
  return right


def is_formed(problem: str, steps: Sequence[str]) -> bool:
  """Says whether a whole chain has the domain's form, right or wrong.

  Each deduction starts from what the one before it concludes (the first from
  the fact) and concludes on the other atom of a premise of the problem. The
  last step, and no other, is an answer: that of a literal of the asked atom, or
  unknown after `so nothing`.
  """
  parsed = read_problem(problem)
  state: Literal | None = parsed.fact
  for text in steps[:-1]:
    step = read_step(text)
    if step is None or state is None or step.literal != state:
      return False
    premise = step.premise
    if premise not in parsed.premises or state.atom not in premise.atoms:
      return False
    _, other = premise.from_atom(state.atom)
    state = step.conclusion
    if state is not None and state.atom != other.atom:
      return False
  ends = state is None or state.atom == parsed.asked
  return bool(steps) and ends and read_answer(steps[-1]) == answer_of(state)


def _is_valid(step: Step) -> bool:
  given = step.premise, step.literal
  about = step.literal.atom in step.premise.atoms
  named = step.conclusion is None or step.rule == rule_of(*given)
  return about and named and step.conclusion == follows(*given)


def _settle(problem: ParsedProblem, literal: Literal) -> Literal | None:
  """Returns the asked atom's literal that follows from one, None if none."""
  routes = _routes(problem.premises, literal.atom)
  state: Literal | None = literal if problem.asked in routes else None
  for premise in routes.get(problem.asked, ()):
    state = state and follows(premise, state)
  return state


# A policy's steps are many to a problem.
@functools.lru_cache(maxsize=65_536)
def _parse(text: str) -> ParsedProblem | None:
  *clauses, last = text.split(' ; ')
  question = _QUESTION.fullmatch(last)
  facts = [clause for clause in clauses if re.fullmatch(_LITERAL, clause)]
  premises = tuple(_read_premise(c) for c in clauses if c not in facts)
  if question is None or len(facts) != 1 or None in premises:
    return None
  fact, asked = _read_literal(facts[0]), question[1]
  routes = _routes(premises, fact.atom)
  # Each atom but the first is reached by a premise. Others would close a circle
  # or be out of reach.
  is_tree = len(premises) == len(routes) - 1
  if not is_tree or asked == fact.atom or asked not in routes:
    return None
  path, atoms = routes[asked], [fact.atom]
  for premise in path:
    _, other = premise.from_atom(atoms[-1])
    atoms.append(other.atom)
  return ParsedProblem(fact, premises, asked, path, tuple(atoms))


def _routes(
  premises: Sequence[Premise], start: str
) -> dict[str, tuple[Premise, ...]]:
  """Returns the premises on the way from an atom to each that it reaches."""
  around = collections.defaultdict(list)
  for premise in premises:
    one, other = premise.atoms
    around[one].append((other, premise))
    around[other].append((one, premise))
  routes, todo = {start: ()}, [start]
  for atom in todo:
    for other, premise in around[atom]:
      if other not in routes:
        routes[other] = (*routes[atom], premise)
        todo.append(other)
  return routes


@functools.lru_cache(maxsize=65_536)
def _read_premise(text: str) -> Premise | None:
  for form, pattern in enumerate(_PREMISES):
    if match := pattern.fullmatch(text):
      left, right = map(_read_literal, match.groups())
      return Premise(form, left, right)
  return None


def _read_literal(text: str) -> Literal:
  return Literal(text[-1], len(text) == 1)

"""Lists the operations of the code domain: phrases, statements and meanings.

    operation        double each
    right statement  xs = [ 2 * x for x in xs ]
    wrong ones       xs = 2 * xs, xs = [ x ** 2 for x in xs ]

A fact is an operation with its number, such as `drop the first 2`. Its variants
are the statements that the solver of `code` may write for it, the right one
first. Each has a Python function of the same meaning, so that the domain makes
its data without running text. All words stand between single blanks.

A statement gets a list of integers, or None after `xs = xs . sort ( )`. It
leaves the same or, as the last of a program, an integer; or it fails.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# What a program leaves on a test in which it has failed.
ERROR = 'error'

# The variable of a program on each of its tests: a list before the last
# statement, an integer after it, and ERROR from the first failure on.
State = tuple[tuple[int, ...] | int | str | None, ...]

# What failing statements of the table raise, on a list or on None.
_FAILURES = (AttributeError, IndexError, TypeError, ValueError)

_Meaning = Callable[[Any, int], Any]


class Variant(NamedTuple):
  """Holds one way to write an operation.

  Attributes:
    statement: the text of the statement.
    apply: returns what the statement assigns or returns for a list or None, or
      raises what it raises. It may change its argument.
  """

  statement: str
  apply: Callable[[Any], Any]


class Fact(NamedTuple):
  """Holds an operation with its number; the first variant is right."""

  phrase: str
  variants: tuple[Variant, ...]


def advance(variant: Variant, state: State) -> State:
  """Returns the state after one more statement, on all tests."""
  return tuple(_apply(variant, value) for value in state)


def trace(variants: Sequence[Variant], state: State) -> list[State]:
  """Returns the given state and those after each of the statements."""
  states = [state]
  for variant in variants:
    states.append(advance(variant, states[-1]))
  return states


def _apply(variant: Variant, value: Any) -> Any:
  if value == ERROR:
    return ERROR
  try:
    result = variant.apply(None if value is None else list(value))
  except _FAILURES:
    return ERROR
  return tuple(result) if isinstance(result, list) else result


def _make_facts(
  phrase: str, numbers: Sequence[int], *variants: tuple[str, _Meaning]
) -> tuple[Fact, ...]:
  """Returns the facts of an operation, one for each number.

  Args:
    phrase: how a problem names it, with {n} for the number.
    numbers: the single digits that n may be.
    variants: statements, with {n}, {less} for n - 1 and {more} for n + 1, and
      their meanings as functions of xs and n.
  """
  return tuple(
    Fact(
      phrase.format(n=n),
      tuple(
        Variant(
          statement.format(n=n, less=n - 1, more=n + 1),
          lambda xs, meaning=meaning, n=n: meaning(xs, n),
        )
        for statement, meaning in variants
      ),
    )
    for n in numbers
  )


# Values and lengths must stay small, so that programs stay fast: only `double
# each` has a variant that repeats the list, and only it and `square each` have
# variants that square.
LIST_OPERATIONS = (
  _make_facts(
    'double each',
    (2,),
    ('xs = [ 2 * x for x in xs ]', lambda xs, n: [2 * x for x in xs]),
    ('xs = 2 * xs', lambda xs, n: 2 * xs),
    ('xs = [ x ** 2 for x in xs ]', lambda xs, n: [x**2 for x in xs]),
  ),
  _make_facts(
    'add {n} to each',
    range(1, 9),
    ('xs = [ x + {n} for x in xs ]', lambda xs, n: [x + n for x in xs]),
    ('xs = xs + [ {n} ]', lambda xs, n: [*xs, n]),
    ('xs = xs + {n}', lambda xs, n: xs + n),
    ('xs = [ {n} * x for x in xs ]', lambda xs, n: [n * x for x in xs]),
  ),
  _make_facts(
    'subtract {n} from each',
    range(1, 9),
    ('xs = [ x - {n} for x in xs ]', lambda xs, n: [x - n for x in xs]),
    ('xs = [ {n} - x for x in xs ]', lambda xs, n: [n - x for x in xs]),
    ('xs = xs - {n}', lambda xs, n: xs - n),
  ),
  _make_facts(
    'multiply each by {n}',
    range(3, 8),
    ('xs = [ {n} * x for x in xs ]', lambda xs, n: [n * x for x in xs]),
    ('xs = [ x + {n} for x in xs ]', lambda xs, n: [x + n for x in xs]),
    (
      'xs = [ {less} * x for x in xs ]',
      lambda xs, n: [(n - 1) * x for x in xs],
    ),
  ),
  _make_facts(
    'square each',
    (2,),
    ('xs = [ x ** 2 for x in xs ]', lambda xs, n: [x**2 for x in xs]),
    ('xs = [ x * 2 for x in xs ]', lambda xs, n: [x * 2 for x in xs]),
    ('xs = xs ** 2', lambda xs, n: xs**2),
  ),
  _make_facts(
    'keep those at least {n}',
    range(7),
    (
      'xs = [ x for x in xs if x >= {n} ]',
      lambda xs, n: [x for x in xs if x >= n],
    ),
    (
      'xs = [ x for x in xs if x > {n} ]',
      lambda xs, n: [x for x in xs if x > n],
    ),
    (
      'xs = [ x for x in xs if x <= {n} ]',
      lambda xs, n: [x for x in xs if x <= n],
    ),
  ),
  _make_facts(
    'keep those below {n}',
    range(2, 9),
    (
      'xs = [ x for x in xs if x < {n} ]',
      lambda xs, n: [x for x in xs if x < n],
    ),
    (
      'xs = [ x for x in xs if x <= {n} ]',
      lambda xs, n: [x for x in xs if x <= n],
    ),
    (
      'xs = [ x for x in xs if x > {n} ]',
      lambda xs, n: [x for x in xs if x > n],
    ),
  ),
  _make_facts(
    'keep the even ones',
    (2,),
    (
      'xs = [ x for x in xs if x % 2 == 0 ]',
      lambda xs, n: [x for x in xs if x % 2 == 0],
    ),
    ('xs = [ x for x in xs if x % 2 ]', lambda xs, n: [x for x in xs if x % 2]),
    (
      'xs = [ x for x in xs if x // 2 == 0 ]',
      lambda xs, n: [x for x in xs if x // 2 == 0],
    ),
  ),
  _make_facts(
    'drop the first {n}',
    range(1, 4),
    ('xs = xs [ {n} : ]', lambda xs, n: xs[n:]),
    ('xs = xs [ : {n} ]', lambda xs, n: xs[:n]),
    ('xs = xs [ {more} : ]', lambda xs, n: xs[n + 1 :]),
    ('xs = xs [ : - {n} ]', lambda xs, n: xs[:-n]),
  ),
  _make_facts(
    'take the first {n}',
    range(2, 6),
    ('xs = xs [ : {n} ]', lambda xs, n: xs[:n]),
    ('xs = xs [ {n} : ]', lambda xs, n: xs[n:]),
    ('xs = xs [ : {less} ]', lambda xs, n: xs[: n - 1]),
    ('xs = xs [ : {more} ]', lambda xs, n: xs[: n + 1]),
  ),
  _make_facts(
    'drop the last {n}',
    range(1, 4),
    ('xs = xs [ : - {n} ]', lambda xs, n: xs[:-n]),
    ('xs = xs [ - {n} : ]', lambda xs, n: xs[-n:]),
    ('xs = xs [ {n} : ]', lambda xs, n: xs[n:]),
    ('xs = xs [ : {n} ]', lambda xs, n: xs[:n]),
  ),
  _make_facts(
    'reverse the list',
    (0,),
    ('xs = xs [ : : - 1 ]', lambda xs, n: xs[::-1]),
    ('xs = xs . reverse ( )', lambda xs, n: xs.reverse()),
    ('xs = xs [ : - 1 ]', lambda xs, n: xs[:-1]),
    (
      'xs = sorted ( xs , reverse = True )',
      lambda xs, n: sorted(xs, reverse=True),
    ),
  ),
  _make_facts(
    'sort ascending',
    (0,),
    ('xs = sorted ( xs )', lambda xs, n: sorted(xs)),
    ('xs = xs . sort ( )', lambda xs, n: xs.sort()),
    ('xs = sorted ( set ( xs ) )', lambda xs, n: sorted(set(xs))),
  ),
  _make_facts(
    'sort descending',
    (0,),
    (
      'xs = sorted ( xs , reverse = True )',
      lambda xs, n: sorted(xs, reverse=True),
    ),
    ('xs = sorted ( xs )', lambda xs, n: sorted(xs)),
    ('xs = xs [ : : - 1 ]', lambda xs, n: xs[::-1]),
    ('xs = xs . sort ( reverse = True )', lambda xs, n: xs.sort(reverse=True)),
  ),
  _make_facts(
    'take every second one',
    (2,),
    ('xs = xs [ : : 2 ]', lambda xs, n: xs[::2]),
    ('xs = xs [ 1 : : 2 ]', lambda xs, n: xs[1::2]),
    ('xs = xs [ 2 : ]', lambda xs, n: xs[2:]),
  ),
  _make_facts(
    'replace by running totals',
    (0,),
    (
      'xs = [ sum ( xs [ : i + 1 ] ) for i in range ( len ( xs ) ) ]',
      lambda xs, n: [sum(xs[: i + 1]) for i in range(len(xs))],
    ),
    (
      'xs = [ sum ( xs [ : i ] ) for i in range ( len ( xs ) ) ]',
      lambda xs, n: [sum(xs[:i]) for i in range(len(xs))],
    ),
    (
      'xs = [ sum ( xs [ i : ] ) for i in range ( len ( xs ) ) ]',
      lambda xs, n: [sum(xs[i:]) for i in range(len(xs))],
    ),
  ),
  _make_facts(
    'remove duplicates',
    (0,),
    (
      'xs = list ( dict . fromkeys ( xs ) )',
      lambda xs, n: list(dict.fromkeys(xs)),
    ),
    ('xs = sorted ( set ( xs ) )', lambda xs, n: sorted(set(xs))),
    (
      'xs = [ x for x in xs if xs . count ( x ) == 1 ]',
      lambda xs, n: [x for x in xs if xs.count(x) == 1],
    ),
  ),
  _make_facts(
    'move the first to the end',
    (1,),
    ('xs = xs [ 1 : ] + xs [ : 1 ]', lambda xs, n: xs[1:] + xs[:1]),
    ('xs = xs [ 1 : ] + xs [ 0 ]', lambda xs, n: xs[1:] + xs[0]),
    ('xs = xs [ - 1 : ] + xs [ : - 1 ]', lambda xs, n: xs[-1:] + xs[:-1]),
  ),
)

RETURN_OPERATIONS = (
  _make_facts(
    'return the sum',
    (0,),
    ('return sum ( xs )', lambda xs, n: sum(xs)),
    ('return sum ( xs [ 1 : ] )', lambda xs, n: sum(xs[1:])),
    ('return len ( xs )', lambda xs, n: len(xs)),
  ),
  _make_facts(
    'return the largest or 0',
    (0,),
    ('return max ( xs , default = 0 )', lambda xs, n: max(xs, default=0)),
    ('return max ( xs + [ 0 ] )', lambda xs, n: max([*xs, 0])),
    ('return max ( xs )', lambda xs, n: max(xs)),
    ('return xs [ - 1 ] if xs else 0', lambda xs, n: xs[-1] if xs else 0),
  ),
  _make_facts(
    'return the count',
    (0,),
    ('return len ( xs )', lambda xs, n: len(xs)),
    ('return len ( xs ) - 1', lambda xs, n: len(xs) - 1),
    ('return sum ( xs )', lambda xs, n: sum(xs)),
    ('return len ( set ( xs ) )', lambda xs, n: len(set(xs))),
  ),
  _make_facts(
    'return the first or 0',
    (0,),
    ('return xs [ 0 ] if xs else 0', lambda xs, n: xs[0] if xs else 0),
    ('return xs [ 0 ]', lambda xs, n: xs[0]),
    ('return xs [ 1 ] if xs else 0', lambda xs, n: xs[1] if xs else 0),
    ('return xs [ - 1 ] if xs else 0', lambda xs, n: xs[-1] if xs else 0),
  ),
  _make_facts(
    'return the last or 0',
    (0,),
    ('return xs [ - 1 ] if xs else 0', lambda xs, n: xs[-1] if xs else 0),
    ('return xs [ - 1 ]', lambda xs, n: xs[-1]),
    (
      'return xs [ len ( xs ) ] if xs else 0',
      lambda xs, n: xs[len(xs)] if xs else 0,
    ),
    ('return xs [ 0 ] if xs else 0', lambda xs, n: xs[0] if xs else 0),
  ),
  _make_facts(
    'return the count of those above {n}',
    range(7),
    (
      'return len ( [ x for x in xs if x > {n} ] )',
      lambda xs, n: len([x for x in xs if x > n]),
    ),
    (
      'return len ( [ x for x in xs if x >= {n} ] )',
      lambda xs, n: len([x for x in xs if x >= n]),
    ),
    (
      'return sum ( [ x for x in xs if x > {n} ] )',
      lambda xs, n: sum(x for x in xs if x > n),
    ),
  ),
)

FACTS = {
  fact.phrase: fact
  for facts in (*LIST_OPERATIONS, *RETURN_OPERATIONS)
  for fact in facts
}
RETURNS = frozenset(f.phrase for facts in RETURN_OPERATIONS for f in facts)

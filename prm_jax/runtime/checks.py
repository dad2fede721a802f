"""Declares and checks what values a settings dataclass may hold.

A field states its type and, with `Annotated`, its rule:

    @dataclasses.dataclass(frozen=True)
    class OptimConfig:
      name: Annotated[str, one_of('adamw', 'adafactor')] = 'adamw'
      lr: Annotated[float, above(0)] = 1e-3

      def __post_init__(self) -> None:
        checks.check(self)

Settings that are wrong cannot be built, wherever they come from. `read` builds
them from a config and reports everything that is wrong with it at once.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from prm_jax.runtime.errors import UserError

T = TypeVar('T')


# Types that a config may give for a field of a type, and the type in words.
_EXPECTED = {
  float: ((int, float), 'a number'),
  int: (int, 'a whole number'),
  bool: (bool, 'True or False'),
  str: (str, 'text'),
  types.NoneType: (types.NoneType, 'None'),
}


class Rule(NamedTuple):
  """Holds a condition on one value, and the error's text for it."""

  holds: Callable[[Any], bool]
  expected: str


def at_least(least: float) -> Rule:
  return Rule(lambda value: value >= least, f'expected >= {least}')


def at_most(most: float) -> Rule:
  return Rule(lambda value: value <= most, f'expected <= {most}')


def above(bound: float) -> Rule:
  return Rule(lambda value: value > bound, f'expected a number above {bound}')


def within(low: float, high: float) -> Rule:
  """Returns the rule that a number is in [low, high], ends included."""
  return Rule(
    lambda value: low <= value <= high,
    f'expected a number in [{low}, {high}]',
  )


def from_to_below(low: float, high: float) -> Rule:
  """Returns the rule that a number is in [low, high), without `high`."""
  return Rule(
    lambda value: low <= value < high,
    f'expected a number in [{low}, {high})',
  )


def between(low: float, high: float) -> Rule:
  """Returns the rule that a number is in (low, high), without the ends."""
  return Rule(
    lambda value: low < value < high,
    f'expected a number in ({low}, {high})',
  )


def above_up_to(low: float, high: float) -> Rule:
  """Returns the rule that a number is in (low, high], without `low`."""
  return Rule(
    lambda value: low < value <= high,
    f'expected a number in ({low}, {high}]',
  )


def one_of(*choices: Any) -> Rule:
  shown = ', '.join(choice or "''" for choice in choices)
  return Rule(lambda value: value in choices, f'expected one of {shown}')


def each(rule: Rule) -> Rule:
  """Returns the rule that every element of a tuple obeys `rule`."""
  return Rule(lambda value: all(map(rule.holds, value)), rule.expected)


class Fault(NamedTuple):
  """Describes one wrong value; `name` may be dotted."""

  name: str
  value: Any
  expected: str

  def __str__(self) -> str:
    # A key, or the text of a value, may have line breaks of its own.
    lines = f'{self.name}={self.value!r}'.splitlines()
    return f'{" ".join(lines)}: {self.expected}'

  def below(self, section: str) -> 'Fault':
    """Returns the same fault, named from the section around it."""
    return self._replace(name=f'{section}.{self.name}')


class Faults(UserError):
  """Reports everything that is wrong with some settings, one line each."""

  def __init__(self, faults: Iterable[Fault]) -> None:
    self.faults = tuple(faults)
    super().__init__('\n'.join(map(str, self.faults)))


def fail(name: str, value: Any, expected: str) -> typing.NoReturn:
  """Raises Faults with a single fault, for rules on several fields."""
  raise Faults([Fault(name, value, expected)])


@contextlib.contextmanager
def below(section: str) -> Iterator[None]:
  """Prefixes the names of faults raised inside with their section."""
  try:
    yield
  except Faults as error:
    raise Faults(fault.below(section) for fault in error.faults) from None


def check(settings: Any) -> None:
  """Raises Faults, naming all fields of a dataclass with a wrong value.

  JSON has no tuples, so lists become tuples first.
  """
  faults = []
  for name, hint in field_types(type(settings)).items():
    value = getattr(settings, name)
    if isinstance(value, list):
      value = _as_tuple(value)
      object.__setattr__(settings, name, value)
    expected = _why_not(value, hint)
    if not expected and isinstance(value, float) and math.isnan(value):
      expected = 'expected a number'
    if expected:
      faults.append(Fault(name, value, expected))
  if faults:
    raise Faults(faults)


def check_ascending(name: str, values: tuple[int, ...]) -> None:
  """Raises Faults unless there are numbers, each above the one before."""
  if not values or any(a >= b for a, b in itertools.pairwise(values)):
    fail(name, values, 'expected ascending whole numbers from 1 up')


def read(cls: type[T], config: Mapping[str, Any], section: str = 'config') -> T:
  """Builds settings from a config; sections become nested dataclasses.

  Lists become tuples. A missing key gets its field's default.

  Args:
    section: the dotted name of this config, for errors.

  Raises:
    Faults: for all unknown keys and all wrong values, in all sections.
  """
  hints = field_types(cls)
  faults = [
    Fault(
      name,
      config[name],
      f'unknown; delete it, or name one of {", ".join(hints)}',
    )
    for name in config
    if name not in hints
  ]
  values = {}
  for name, hint in hints.items():
    if name not in config:
      continue
    value, nested = config[name], _dataclass_of(hint)
    try:
      if nested and isinstance(value, Mapping):
        value = read(nested, value, name)
    except Faults as error:
      faults += error.faults
      continue
    values[name] = _as_tuple(value)
  try:
    made = cls(**values)
  except Faults as error:
    # A section that could not be built has its default meanwhile.
    faults += error.faults
  if faults:
    raise Faults(fault.below(section) for fault in faults)
  return made


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
  """Returns the declared type of each field, rules included."""
  hints = typing.get_type_hints(cls, include_extras=True)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def plain_type(hint: Any) -> type:
  """Returns int for `Annotated[int | None, ...]`, and likewise for others."""
  if typing.get_origin(hint) is Annotated:
    hint = typing.get_args(hint)[0]
  if _is_union(hint):
    hint = next(x for x in typing.get_args(hint) if x is not types.NoneType)
  return typing.get_origin(hint) or hint


def _dataclass_of(hint: Any) -> type | None:
  """Returns the dataclass that a hint names, alone or beside None."""
  options = typing.get_args(hint) if _is_union(hint) else (hint,)
  return next(filter(dataclasses.is_dataclass, options), None)


def _is_union(hint: Any) -> bool:
  return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _as_tuple(value: Any) -> Any:
  if isinstance(value, list | tuple):
    return tuple(map(_as_tuple, value))
  if isinstance(value, Mapping):
    return {name: _as_tuple(inner) for name, inner in value.items()}
  return value


def _why_not(value: Any, hint: Any) -> str:
  """Returns what was expected instead of a value; '' if the value is right."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin is Annotated:
    return _why_not_rules(value, *args)
  if _is_union(hint):
    found = [_why_not(value, option) for option in args]
    return '' if '' in found else found[0]
  if origin is tuple:
    return _why_not_tuple(value, args)
  kind = origin or hint
  words = 'section' if dataclasses.is_dataclass(kind) else kind.__name__
  types_, expected = _EXPECTED.get(kind, (kind, f'a {words}'))
  fits = isinstance(value, types_)
  if isinstance(value, bool):  # which Python counts among the numbers
    fits = kind is bool
  return '' if fits else f'expected {expected}'


def _why_not_rules(value: Any, hint: Any, *rules: Rule) -> str:
  expected = _why_not(value, hint)
  if expected or value is None:
    return expected
  return next((rule.expected for rule in rules if not rule.holds(value)), '')


def _why_not_tuple(value: Any, hints: tuple[Any, ...]) -> str:
  if not isinstance(value, tuple):
    return 'expected a list'
  inner = hints[:1] * len(value) if hints[-1] is Ellipsis else hints
  if len(inner) != len(value):
    return f'expected a list of {len(inner)}'
  return next(filter(None, map(_why_not, value, inner)), '')

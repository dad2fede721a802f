"""Splits files into JSON records and checks the fields of records.

`iterate` turns the bytes of a JSON-lines file, or of one JSON array, into
records with their line numbers. It rejects what Python's JSON parser accepts
and a chain cannot hold: NaN, duplicate keys, integers beyond 64 bits, half a
surrogate pair. Format readers get their fields through the functions below it,
each of which raises UserError for a field that is missing or of another type.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError, show

Fields = dict[str, Any]

# What a file of problems with answers may call the problem.
PROBLEM_FIELDS = ('question', 'problem', 'input')

_BLANK = re.compile(r'[ \t\r\n]*')
_COMMA = re.compile(r'[ \t\r\n]*,[ \t\r\n]*')
_END = re.compile(r'[ \t\r\n]*\][ \t\r\n]*\Z')
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')


class BrokenOff(UserError):
  """Says that the rest of a file cannot be split into records."""


class Skip(NamedTuple):
  """Says why the rules of a format leave out a good record."""

  reason: str


class Record(NamedTuple):
  """Holds one record of a file."""

  line: int  # line on which it starts, counted from 1
  raw: str  # the text; bytes that are not UTF-8 become lone surrogates
  value: Any  # the parsed JSON, or a UserError that says what is wrong


def iterate(path: str | os.PathLike) -> Iterator[Record]:
  """Yields the records of a JSON-lines file or the elements of a JSON array.

  Raises:
    UserError: the file cannot be opened. For a fault inside the file, the error
      is the `value` of its record instead, so that reading can continue.
  """
  try:
    file = paths.open_bytes(path)
  except UserError:
    raise
  except (OSError, ValueError) as error:
    why = getattr(error, 'strerror', None) or error
    raise UserError(
      f'{path}: cannot be read ({why}); name a JSON or JSON-lines file'
    ) from None
  with file:
    head = file.read(4096).removeprefix(b'\xef\xbb\xbf').lstrip()
    file.seek(0)
    if head.startswith(b'['):
      yield from _array(_decode(file.read()))
      return
    offset = 0
    for number, line in enumerate(file, 1):
      if line.strip(b'\xef\xbb\xbf \t\r\n'):
        raw = _decode(line.rstrip(b'\r\n'))
        yield _record(number, raw, offset, complete=line.endswith(b'\n'))
      offset += len(line)


def _decode(data: bytes) -> str:
  return data.decode('utf-8', 'surrogateescape')


def _encode(text: str) -> bytes:
  return text.encode('utf-8', 'surrogateescape')


def _array(text: str) -> Iterator[Record]:
  """Yields the elements of one JSON array."""
  # A lenient decoder finds where elements end, so that an element with a bad
  # value, such as NaN, does not hide the elements after it.
  decoder = json.JSONDecoder(parse_int=str, parse_float=str)
  at = text.index('[') + 1
  line, offset, counted = 1, 0, 0
  separator = _BLANK
  while not _END.match(text, at):
    gap = separator.match(text, at)
    begin = (gap or _BLANK.match(text, at)).end()
    line += text.count('\n', counted, begin)
    offset += len(_encode(text[counted:begin]))
    counted = begin
    try:
      at = decoder.raw_decode(text, begin)[1] if gap else None
    except (json.JSONDecodeError, RecursionError):
      at = None
    if at is None:
      fault = BrokenOff(
        'the JSON array is broken off, or goes on after its end'
      )
      yield Record(line, text[begin:], fault)
      return
    yield _record(line, text[begin:at], offset, complete=True)
    separator = _COMMA


def _record(line: int, raw: str, offset: int, complete: bool) -> Record:
  try:
    return Record(line, raw, _parse(raw, offset, complete))
  except UserError as error:
    return Record(line, raw, error)


def _parse(raw: str, offset: int, complete: bool) -> Any:
  try:
    raw.encode()
  except UnicodeEncodeError as error:
    byte = ord(raw[error.start]) - 0xDC00
    place = offset + len(_encode(raw[: error.start]))
    raise UserError(
      f'not UTF-8 (byte 0x{byte:02x} at offset {place} of the file)'
    ) from None
  try:
    value = _DECODER.decode(raw.removeprefix('\ufeff'))
    if _SURROGATE.search(raw):
      json.dumps(value, ensure_ascii=False).encode()
    return value
  except json.JSONDecodeError as error:
    if not complete:
      raise UserError('the file is cut off in mid-record') from None
    raise UserError(
      f'not JSON ({error.msg} at character {error.pos})'
    ) from None
  except UnicodeEncodeError:
    raise UserError('holds half a surrogate pair (\\ud800..dfff)') from None
  except RecursionError:
    raise UserError('nested too deeply to be read') from None


def _object(pairs: list[tuple[str, Any]]) -> Fields:
  fields = dict(pairs)
  if len(fields) < len(pairs):
    counts = Counter(name for name, _ in pairs)
    twice = next(name for name, count in counts.items() if count > 1)
    raise UserError(f'the key {show(twice)} occurs twice')
  return fields


def _integer(digits: str) -> int:
  if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
    raise UserError(f'the integer {digits[:20]}... does not fit 64 bits')
  return int(digits)


def _float(digits: str) -> float:
  value = float(digits)
  if math.isinf(value):
    raise UserError(f'the number {digits[:20]} is too large')
  return value


def _constant(name: str) -> Any:
  raise UserError(f'{name} is not JSON')


_DECODER = json.JSONDecoder(
  object_pairs_hook=_object,
  parse_int=_integer,
  parse_float=_float,
  parse_constant=_constant,
)


def field(record: Any, name: str) -> Any:
  """Returns a field of a record."""
  if not isinstance(record, dict):
    raise UserError(f'{show(record)} where an object with {name!r} belongs')
  if name not in record:
    raise UserError(f'the field {name!r} is missing')
  return record[name]


def text(record: Any, name: str) -> str:
  """Returns a field of non-blank text, without the white space around it."""
  value = field(record, name)
  if not isinstance(value, str) or not value.strip():
    raise UserError(f'{name!r} is {show(value)}: expected a non-blank string')
  return value.strip()


def text_or_none(record: Fields, name: str) -> str | None:
  """Returns a field of text as `text`; None if it is missing, null or blank."""
  value = record.get(name)
  if value is None or (isinstance(value, str) and not value.strip()):
    return None
  return text(record, name)


def lines(record: Any, name: str) -> tuple[str, ...]:
  """Returns the non-blank lines of a text field, stripped of white space.

  Only carriage returns and line feeds end a line; `str.splitlines` would also
  split steps at U+2028 and the like.
  """
  split = (line.strip() for line in re.split(r'[\r\n]', text(record, name)))
  return tuple(line for line in split if line)


def items(record: Any, name: str) -> list[Any]:
  """Returns a field that holds a list, which may be empty."""
  value = field(record, name)
  if not isinstance(value, list):
    raise UserError(f'{name!r} is {show(value)}: expected a list')
  return value


def steps(record: Any, name: str) -> tuple[str, ...]:
  """Returns a field of one or more non-blank texts, stripped of white space."""
  found = []
  for i, step in enumerate(items(record, name)):
    if not isinstance(step, str) or not step.strip():
      raise UserError(f'{name}[{i}] is {show(step)}: expected non-blank text')
    found.append(step.strip())
  if not found:
    raise UserError(f'{name!r} is empty: expected at least one step')
  return tuple(found)


def flag(record: Any, name: str) -> bool:
  """Returns a field that holds true or false."""
  value = field(record, name)
  if not isinstance(value, bool):
    raise UserError(f'{name!r} is {show(value)}: expected true or false')
  return value


def integer(record: Any, name: str, low: int, high: int) -> int:
  """Returns a field that holds an integer in [low, high]."""
  value = field(record, name)
  if type(value) is not int or not low <= value <= high:
    raise UserError(
      f'{name!r} is {show(value)}: expected an integer in [{low}, {high}]'
    )
  return value


def probability(value: Any, name: str) -> float:
  """Returns a number in [0, 1] as a float; `name` is for the error message."""
  if type(value) not in (int, float) or not 0 <= value <= 1:
    raise UserError(f'{name} is {show(value)}: expected a number in [0, 1]')
  return float(value)


def keep(record: Fields, *names: str) -> Fields:
  """Returns the named fields that hold text, a number, true or false."""
  return {
    name: record[name]
    for name in names
    if isinstance(record.get(name), str | int | float)
  }


def keep_as(record: Fields, **names: str) -> Fields:
  """Returns fields as `keep` does, under other names: new='old'."""
  kept = keep(record, *names.values())
  return {new: kept[old] for new, old in names.items() if old in kept}

"""Parses the text of a compiled program: computations, shapes, loops."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_BITS = {'pred': 8, 's4': 4, 'u4': 4, 's8': 8, 'u8': 8, 's16': 16, 'u16': 16}
_BITS |= {'bf16': 16, 'f16': 16, 's32': 32, 'u32': 32, 'f32': 32}
_BITS |= {'s64': 64, 'u64': 64, 'f64': 64, 'f8e4m3fn': 8, 'f8e5m2': 8}
# dtype[dims]{layout}; a layout with S(n) is not in the main memory.
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?')
_NAME = re.compile(r'%([\w.\-]+)')
_TRIPS = re.compile(r'known_trip_count[^\d]*(\d+)')


class Array(NamedTuple):
  """Describes a result: dimensions, bytes, and whether it is in main memory."""

  dims: tuple[int, ...]
  size: float
  in_memory: bool


class Instruction(NamedTuple):
  """Holds one line: the arrays it makes, the names it reads, and the rest."""

  name: str
  arrays: tuple[Array, ...]
  kind: str
  operands: tuple[str, ...]
  text: str


Computation = dict[str, Instruction]


class Program(NamedTuple):
  """Holds all computations by name, and the name of the first to run."""

  computations: dict[str, Computation]
  entry: str


def read_program(text: str) -> Program:
  """Parses the output of `jax.stages.Compiled.as_text`."""
  computations: dict[str, Computation] = {}
  entry, current = '', None
  for line in text.splitlines():
    if line.startswith(('%', 'ENTRY')) and line.rstrip().endswith('{'):
      name = _NAME.search(line)[1]
      entry = name if line.startswith('ENTRY') else entry
      current = computations.setdefault(name, {})
    elif line.startswith('  ') and ' = ' in line and current is not None:
      made = _read_instruction(line.strip())
      current[made.name] = made
  return Program(computations, entry)


def _closing(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += (text[i] == '(') - (text[i] == ')')
    if not depth:
      return i
  raise ValueError(f'unbalanced: {text[:80]}')


def _read_instruction(line: str) -> Instruction:
  left, _, right = line.partition(' = ')
  tuple_of = right.startswith('(')
  end = _closing(right, 0) + 1 if tuple_of else right.index(' ')
  opening = right.index('(', end)
  closing = _closing(right, opening)
  return Instruction(
    _NAME.search(left)[1],
    tuple(_arrays(right[:end])),
    right[end:opening].strip(),
    tuple(_NAME.findall(right[opening:closing])),
    # A constant's value stands where others have operands.
    right[opening:],
  )


def _arrays(shape: str) -> Iterator[Array]:
  for kind, dims, layout in _ARRAY.findall(shape):
    if kind in _BITS:
      sizes = tuple(int(n.strip('<=')) for n in dims.split(',') if n)
      size = math.prod(sizes) * _BITS[kind] / 8
      yield Array(sizes, size, 'S(' not in layout)


def _constant(made: Instruction | None) -> int | None:
  if made is None or made.kind != 'constant':
    return None
  found = re.match(r'\((-?\d+)\)', made.text)
  return int(found[1]) if found else None


def trips(
  loop: Instruction,
  here: Computation,
  computations: Mapping[str, Computation],
) -> int | None:
  """Returns the iterations of a counting loop; None if they are unknown."""
  if known := _TRIPS.search(loop.text):
    return int(known[1])
  condition, body = (
    computations[re.search(rf'{part}=%([\w.\-]+)', loop.text)[1]]
    for part in ('condition', 'body')
  )
  compare = list(condition.values())[-1]
  if compare.kind != 'compare' or 'direction=LT' not in compare.text:
    return None
  counter, limit = (condition.get(name) for name in compare.operands)
  if counter is None or counter.kind != 'get-tuple-element':
    return None
  index = int(re.search(r'index=(\d+)', counter.text)[1])
  root = list(body.values())[-1]
  first = here.get(loop.operands[0])
  if root.kind != 'tuple' or first is None or first.kind != 'tuple':
    return None
  start = _constant(_origin(here, first.operands[index]))
  end = _constant(limit)
  step = body[root.operands[index]]
  steps = [
    _constant(_origin(body, name))
    for name in step.operands
    if step.kind == 'add'
  ]
  by = [n for n in steps if n is not None]
  if start is None or end is None or len(by) != 1:
    return None
  return max(0, -(-(end - start) // by[0]))


def _origin(here: Computation, name: str) -> Instruction | None:
  """Follows copies of a value to where it was made."""
  made = here.get(name)
  while made is not None and made.kind in ('copy', 'bitcast', 'copy-done'):
    made = here.get(made.operands[0])
    if made is not None and made.kind == 'copy-start':
      made = here.get(made.operands[0])
  return made

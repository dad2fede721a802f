"""Makes hostile values, texts and bytes, and holds a case to its limits.

Campaigns of inputs change real samples with these: `change` a JSON value at one
place, `damage` the bytes of a file, and `limited` says that no input may take
long or much memory.
"""

import contextlib
import random
import resource
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np

MIB = 2**20
TEXTS = (
  *('', ' ', '\n', 'P', 'Q', 'Step 1: a', 'Step 2: b', 'ки', '+', '-', '?'),
  *('####', '# Answer', 'The answer is: 7', '[1, 0]', "['a']", 'correct'),
  *('N/A', '0', '1', '-1', 'true', 'null', 'NaN', '\x00', '\x85', '\u2028'),
  *('\ufeff', '\ud800', 'a\udfffb', '\U0001f600', 'e\u0301', '../../x'),
  *('%s{}', '{{ 7 }}', '<script>', "';--", '\\', '"', '\t\r\n', 'a' * 300),
)
NUMBERS = (
  *(0, 1, -1, 2, 3, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63)),
  *(10**30, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5, -0.1, 1e-320),
  *(1e308, float('nan'), float('inf'), float('-inf')),
)


def python_random(generator: np.random.Generator) -> random.Random:
  """Returns Python's own source of numbers, which is faster one by one."""
  return random.Random(int(generator.integers(2**63)))


def value(draw: random.Random, depth: int = 2) -> Any:
  """Returns any value that JSON, or Python's idea of it, can hold."""
  kind = draw.randrange(10 if depth else 7)
  if kind < 3:
    return draw.choice(TEXTS)
  if kind < 5:
    return draw.choice(NUMBERS)
  if kind < 7:
    return draw.choice((None, True, False))
  if kind == 7:
    return [value(draw, depth - 1) for _ in range(draw.randrange(4))]
  if kind == 8:
    return {
      draw.choice(TEXTS): value(draw, depth - 1)
      for _ in range(draw.randrange(4))
    }
  return nested(draw.choice((3, 30, 300)), draw.choice(('list', 'dict')))


def nested(depth: int, kind: str) -> Any:
  """Returns a list in a list in a list, or objects."""
  made: Any = 1
  for _ in range(depth):
    made = [made] if kind == 'list' else {'a': made}
  return made


def places(tree: Any) -> list[tuple[Any, Any]]:
  """Returns (parent, key) of every value inside a JSON value."""
  found, stack = [], [tree]
  while stack:
    parent = stack.pop()
    keys = parent if isinstance(parent, dict) else range(len(parent))
    for key in keys:
      found.append((parent, key))
      if isinstance(parent[key], dict | list):
        stack.append(parent[key])
  return found


def change(draw: random.Random, tree: Any) -> None:
  """Changes a JSON object or list at one place, in place."""
  spots = places(tree)
  if not spots:
    return
  parent, key = draw.choice(spots)
  old = parent[key]
  action = draw.randrange(9)
  if action == 0:
    del parent[key]
  elif action == 1 and isinstance(old, str | list):
    parent[key] = old[: draw.randrange(len(old) + 1)]
  elif action == 2 and isinstance(old, str):
    at = draw.randrange(len(old) + 1)
    parent[key] = old[:at] + draw.choice(TEXTS) + old[at:]
  elif action == 3 and isinstance(parent, list):
    parent.insert(draw.randrange(len(parent) + 1), old)
  elif action == 4 and isinstance(parent, dict):
    parent[draw.choice(TEXTS)] = value(draw)
  elif action == 5:  # a value of another place
    other, name = draw.choice(spots)
    # Never one that holds this place, which would have no end.
    if key in range(len(parent)) or key in parent:
      found = other[name] if name in other or isinstance(other, list) else 0
      parent[key] = 0 if isinstance(found, dict | list) else found
  elif action == 6:
    parent[key] = [old] if draw.randrange(2) else str(old)
  elif action == 7 and isinstance(old, list):
    draw.shuffle(old)
  else:
    parent[key] = value(draw)


def damage(draw: random.Random, data: bytes) -> bytes:
  """Flips, cuts, inserts, doubles or removes some bytes."""
  at = draw.randrange(len(data) + 1)
  end = min(len(data), at + draw.choice((1, 2, 8, 64)))
  action = draw.randrange(6)
  if action == 0 and data:
    at = min(at, len(data) - 1)
    flipped = data[at] ^ (1 << draw.randrange(8))
    return data[:at] + bytes([flipped]) + data[at + 1 :]
  if action == 1:
    return data[:at]
  if action == 2:
    return data[:at] + draw.randbytes(draw.randrange(1, 5)) + data[at:]
  if action == 3:
    return data[:at] + data[at:end] * 2 + data[end:]
  if action == 4:
    return data[:at] + data[end:]
  return data[:at] + bytes(end - at) + data[end:]


@contextlib.contextmanager
def limited(seconds: float, mib: float, what: object = '') -> Iterator[None]:
  """Fails unless what is inside needs less processor time and memory.

  Args:
    seconds: of this process alone, so that a busy machine fails nothing.
    mib: by how much the most memory of the process may grow.
  """

  late = TimeoutError(f'{what}: took more than {seconds} s')
  rung = []

  def ring(*_: object) -> None:
    rung.append(late)
    raise late

  before = signal.signal(signal.SIGPROF, ring)
  held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  signal.setitimer(signal.ITIMER_PROF, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
  if rung:  # what is tried may have caught it
    raise late
  now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  grown = (now - held) * 1024 / MIB  # Linux counts in KiB
  if grown > mib:
    raise MemoryError(f'{what}: took {grown:.0f} MiB, expected {mib:.0f}')

"""What a compiled program sends between devices, read from its text."""

import math
import re
from typing import NamedTuple

_ITEM_BITS = {'pred': 8, 's4': 4, 'u4': 4, 's8': 8, 'u8': 8, 's16': 16}
_ITEM_BITS |= {'u16': 16, 'bf16': 16, 'f16': 16, 's32': 32, 'u32': 32}
_ITEM_BITS |= {'f32': 32, 's64': 64, 'u64': 64, 'f64': 64}
_OPERATION = re.compile(
  r'= (?P<shape>[^=]*?) (?P<kind>all-gather|all-reduce|reduce-scatter|'
  r'all-to-all|collective-permute)(?P<start>-start)?\(.*?'
  r'channel_id=(?P<channel>\d+)(?P<rest>.*)'
)
_ARRAY = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
# Two ways to write groups: [count,size]<=..., and a mesh with the axes that
# a group goes along.
_TILED = re.compile(r'replica_groups=\[(\d+),(\d+)\]<=')
_ON_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}')
_LISTED = re.compile(r'replica_groups=\{\{([\d,]*)\}')


class Collective(NamedTuple):
  """One operation.

  Attributes:
    kind: all-gather, all-reduce, reduce-scatter, all-to-all or
      collective-permute.
    size: bytes of its result on one device.
    group: devices that take part together.
  """

  kind: str
  size: float
  group: int

  @property
  def sent(self) -> float:
    """Bytes that one device sends in a ring algorithm.

    Gathering or scattering passes on all but the own part; a reduction to all
    is a scattering one and a gathering one (Patarasuk and Yuan, 2009).
    """
    others = (self.group - 1) / self.group
    return (
      self.size
      * {
        'all-gather': others,
        'all-reduce': 2 * others,
        'reduce-scatter': self.group - 1,  # of a result that is one part
        'all-to-all': others,
        'collective-permute': 1.0,
      }[self.kind]
    )


def read_collectives(text: str, devices: int) -> list[Collective]:
  """Every collective in a compiled program's text, once.

  What stands in a loop is counted once too. Copies of an operation in several
  fusions share a channel.

  Args:
    devices: in the program; the group of an operation that names none.
  """
  found = {}
  for match in _OPERATION.finditer(text):
    arrays = [
      math.prod(map(int, filter(None, dims.split(',')))) * _ITEM_BITS[kind] / 8
      for kind, dims in _ARRAY.findall(match['shape'])
      if kind in _ITEM_BITS
    ]
    # One operation may have many results; the start of one has its operand in
    # front.
    size = arrays[-1] if match['start'] else sum(arrays)
    group = _group_size(match['rest'], devices)
    found[match['channel']] = Collective(match['kind'], size, group)
  return list(found.values())


def _group_size(text: str, devices: int) -> int:
  if tiled := _TILED.search(text):
    return int(tiled[2])
  if on_mesh := _ON_MESH.search(text):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", on_mesh[1]))
    along = re.findall(r"'(\w+)'", on_mesh[2])
    return math.prod(int(sizes[axis]) for axis in along)
  if listed := _LISTED.search(text):
    return listed[1].count(',') + 1
  return devices

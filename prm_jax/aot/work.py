"""Counts one device's work in a compiled program: products, memory, traffic.

It reads programs for CPUs, TPUs and GPUs. On a GPU a product is a fusion, or a
call of cuBLAS where that is faster.

XLA's own cost analysis counts the body of a loop once, but a training step is
mostly loops: over layers, over microbatches, and on TPU over the parts of a
product whose operand is still arriving. Here a body counts as often as it runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from prm_jax.aot.hlo import Array, Computation, Instruction, Program, trips

_NAME = re.compile(r'%([\w.\-]+)')
_CALLED = re.compile(r'(?:calls|to_apply)=%([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRUE_FALSE = re.compile(r'(?:true|false)_computation=%([\w.\-]+)')
# Three ways to write groups: [count,size]<=..., a mesh with the axes that a
# group goes along, and a list.
_TILED = re.compile(r'replica_groups=\[(\d+),(\d+)\]<=')
_ON_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\].*?\{([^}]*)\}')
_LISTED = re.compile(r'replica_groups=\{\{([\d,]*)\}')
COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
# A TPU's reduce-scatter is a fusion with this name: an all-reduce, and the
# slice of the result that a device keeps.
SCATTERING = 'all-reduce-scatter'
# Operations in a fusion that move no bytes there. A collective that overlaps a
# fusion is counted where it starts.
PASSED_ON = {*COLLECTIVES, 'parameter', 'custom-call'}
# Calls of a library, which get memory to work in as their last result.
_LIBRARY = re.compile(r'custom_call_target="__(cublas|cudnn)\$')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
# These name or pass on existing arrays.
_FREE = {
  'async-start',
  'async-update',
  'bitcast',
  'call',
  'conditional',
  'constant',
  'get-tuple-element',
  'parameter',
  'partition-id',
  'tuple',
  'while',
}


@dataclasses.dataclass
class Count:
  """Holds the work of one device.

  Attributes:
    flops: FLOPs of matrix products and convolutions, without those in kernels.
    memory_bytes: bytes read from and written to main memory (HBM).
    sent_bytes: bytes sent by each kind of collective, with ring algorithms.
    largest_gather: bytes of the largest result of one all-gather.
    unknown_loops: number of loops of unknown length, which were counted once.
  """

  flops: float = 0.0
  memory_bytes: float = 0.0
  sent_bytes: dict[str, float] = dataclasses.field(default_factory=dict)
  largest_gather: float = 0.0
  unknown_loops: int = 0


def count_work(program: Program, devices: int) -> Count:
  """Counts the work of a whole program; loops count as often as they run.

  Args:
    devices: number of devices; the group size where a collective names none.
  """
  total = Count()
  _count(
    program.computations, program.entry, 1.0, devices, total, set(), fused=False
  )
  return total


def _count(
  computations: Mapping[str, Computation],
  name: str,
  times: float,
  devices: int,
  total: Count,
  channels: set[str],
  fused: bool,
) -> None:
  here = computations[name]
  for made in here.values():
    total.flops += times * _product_flops(made, here)
    kind = made.kind.removesuffix('-start')
    if kind in COLLECTIVES and _first_piece(made, channels, fused):
      if name.startswith(SCATTERING):
        kind = 'reduce-scatter'
      sent, gathered = _collective(made, kind, devices)
      total.sent_bytes[kind] = total.sent_bytes.get(kind, 0.0) + times * sent
      total.largest_gather = max(total.largest_gather, gathered)
      if fused:
        in_memory = made.arrays[0].in_memory
        total.memory_bytes += times * made.arrays[0].size * in_memory
    if not fused:
      total.memory_bytes += times * _memory_bytes(made, here, computations)
    for called, runs in _calls(made, here, computations, total):
      _count(
        computations,
        called,
        times * runs,
        devices,
        total,
        channels,
        fused or kind == 'fusion',
      )


def _first_piece(made: Instruction, channels: set[str], fused: bool) -> bool:
  """Says whether a collective was not counted yet.

  A collective that overlaps products is spread over several fusions, all with
  the same channel.
  """
  if not fused:
    return True
  channel = re.search(r'channel_id=(\d+)', made.text)[1]
  new = channel not in channels
  channels.add(channel)
  return new


def _calls(
  made: Instruction,
  here: Computation,
  computations: Mapping[str, Computation],
  total: Count,
) -> Iterator[tuple[str, float]]:
  """Returns the computations that an instruction runs, and how often."""
  if made.kind == 'while':
    body = re.search(r'body=%([\w.\-]+)', made.text)[1]
    runs = trips(made, here, computations)
    total.unknown_loops += runs is None
    yield body, 1 if runs is None else runs
  elif made.kind == 'conditional':
    listed = _BRANCHES.search(made.text)
    branches = _NAME.findall(listed[1]) if listed else None
    # The longest program is the one that matters: that of the update.
    yield (
      max(
        branches or _TRUE_FALSE.findall(made.text),
        key=lambda name: len(computations[name]),
      ),
      1,
    )
  elif made.kind.removesuffix('-start') in ('fusion', 'call', 'async'):
    for called in _CALLED.findall(made.text):
      yield called, 1


def _product_flops(made: Instruction, here: Computation) -> float:
  """Counts two FLOPs per multiplication, without those by padding."""
  if made.kind == 'convolution':
    return _convolution_flops(made, here)
  if made.kind == 'dot':
    contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', made.text)[1]
  elif _calls_library(made, 'cublas'):
    contracted = _CONTRACTED.search(made.text)[1]
  else:
    return 0.0
  left = here[made.operands[0]].arrays[0].dims
  inner = math.prod(left[int(i)] for i in re.findall(r'\d+', contracted))
  return 2.0 * math.prod(made.arrays[0].dims) * inner


def _calls_library(made: Instruction, *names: str) -> bool:
  found = _LIBRARY.search(made.text) if made.kind == 'custom-call' else None
  return found is not None and found[1] in names


def _convolution_flops(made: Instruction, here: Computation) -> float:
  (out,) = made.arrays
  left, right = (here[name].arrays[0].dims for name in made.operands[:2])
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', made.text)
  inputs, kernel, outputs = labels.groups()
  window = re.search(r'window=\{([^}]*)\}', made.text)
  flops = 2.0 * right[kernel.index('i')]
  flops *= out.dims[outputs.index('b')] * out.dims[outputs.index('f')]
  options = dict(re.findall(r'(\w+)=(\S+)', window[1])) if window else {}
  for i in range(len(inputs) - 2):

    def option(name: str, default: int, i: int = i) -> int:
      values = options.get(name, '').split('x')
      return int(values[i]) if values[0] else default

    before = options.get('pad', '').split('x')
    pad = int(before[i].split('_')[0]) if before[0] else 0
    flops *= _valid_pairs(
      left[inputs.index(str(i))],
      right[kernel.index(str(i))],
      out.dims[outputs.index(str(i))],
      pad,
      option('stride', 1),
      option('lhs_dilate', 1),
      option('rhs_dilate', 1),
    )
  return flops


def _valid_pairs(
  size: int,
  kernel: int,
  outputs: int,
  pad: int,
  stride: int,
  spread: int,
  kernel_spread: int,
) -> int:
  """Counts the pairs of output and kernel positions that meet an input.

  All sizes are of one axis; `spread` and `kernel_spread` are the dilations of
  input and kernel.
  """
  return sum(
    0 <= at < size * spread and at % spread == 0
    for o in range(outputs)
    for k in range(kernel)
    for at in [o * stride + k * kernel_spread - pad]
  )


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


def _collective(
  made: Instruction, kind: str, devices: int
) -> tuple[float, float]:
  """Returns the bytes that a device sends in a ring, and those that it gathers.

  Gathering or scattering sends all but the device's own part; an all-reduce is
  a reduce-scatter and an all-gather (Patarasuk and Yuan, 2009).
  """
  size = sum(array.size for array in _results(made))
  group = _group_size(made.text, devices)
  others = (group - 1) / group
  if made.kind.startswith('reduce-scatter'):
    size *= group  # its result is one part
  ring = {
    'all-gather': others,
    'all-reduce': 2 * others,
    'reduce-scatter': others,
    'all-to-all': others,
    'collective-permute': 1.0,
  }
  return size * ring[kind], size if kind == 'all-gather' else 0.0


def _results(made: Instruction) -> tuple[Array, ...]:
  """Returns the results; a `-start` lists its operands first."""
  if len(made.arrays) > 1 and _calls_library(made, 'cublas', 'cudnn'):
    return made.arrays[:-1]
  if not made.kind.endswith('-start') or made.kind == 'all-reduce-start':
    return made.arrays
  count = len(made.operands)
  return made.arrays[count : 2 * count]


def _memory_bytes(
  made: Instruction,
  here: Computation,
  computations: Mapping[str, Computation],
) -> float:
  """Counts bytes that an instruction moves from and to main memory."""
  if made.kind in _FREE or made.kind.endswith('-done'):
    return 0.0
  arrays = [
    array
    for name in made.operands
    if name in here
    for array in here[name].arrays[:1]
  ]
  reads = [array.size if array.in_memory else 0.0 for array in arrays]
  if made.kind in ('copy-start', 'slice-start'):
    # (result, operand, ..) of a copy, and (operand, result, ..) of a slice.
    result = made.arrays[made.kind == 'slice-start']
    return result.size * (result.in_memory + arrays[0].in_memory)
  writes = [array.size for array in _results(made) if array.in_memory]
  if made.kind in ('dynamic-slice', 'gather', 'slice'):
    return sum(writes) + (sum(a.size for a in made.arrays) if reads[0] else 0)
  if made.kind == 'dynamic-update-slice':
    return 2 * reads[1] if reads[0] else reads[1]
  if made.kind in ('fusion', 'fusion-start'):
    inside = computations[_CALLED.search(made.text)[1]]
    # One that runs beside others lists its operands first.
    first = len(made.operands) if made.kind == 'fusion-start' else 0
    return _fusion_bytes(inside, made.arrays[first:], computations)
  return sum(reads) + sum(writes)


def _fusion_bytes(
  inside: Computation,
  out: tuple[Array, ...],
  computations: Mapping[str, Computation],
) -> float:
  """Counts bytes that a fusion moves.

  An operand that is only sliced counts as its slice, also where a fusion within
  this one slices it. One that is only passed on, as for a collective that
  overlaps the fusion, does not count.
  """
  root = list(inside.values())[-1]
  results = [inside[name] for name in root.operands]
  if root.kind != 'tuple':
    results = [root] * len(_results(root))
  total = sum(
    _written(made, array, inside)
    # What follows is memory to work in.
    for made, array in zip(results, out, strict=False)
  )
  for made in inside.values():
    if made.kind == 'parameter' and made.arrays[0].in_memory:
      total += _read(made, inside, computations)
  return total


def _is_passed_on(made: Instruction) -> bool:
  """Says whether an instruction in a fusion passes its arrays on unread.

  Calls of cuBLAS and cuDNN do read theirs, although they are custom calls.
  """
  return made.kind in PASSED_ON and not _calls_library(made, 'cublas', 'cudnn')


def _written(made: Instruction, result: Array, inside: Computation) -> float:
  while made.kind == 'bitcast':
    made = inside[made.operands[0]]
  if _is_passed_on(made) or not result.in_memory:
    return 0.0
  if made.kind == 'dynamic-update-slice':
    return inside[made.operands[1]].arrays[0].size
  return result.size


def _read(
  array: Instruction,
  inside: Computation,
  computations: Mapping[str, Computation],
) -> float:
  """Returns how many bytes of an array its users in a fusion read."""
  users = [user for user in inside.values() if array.name in user.operands]
  read = sum(_read_by(user, array, inside, computations) for user in users)
  return min(array.arrays[0].size, read)


def _read_by(
  user: Instruction,
  array: Instruction,
  inside: Computation,
  computations: Mapping[str, Computation],
) -> float:
  if _is_passed_on(user) or user.kind == 'tuple':
    return 0.0
  if user.kind == 'bitcast':
    return _read(user, inside, computations)
  if user.kind == 'fusion':
    within = computations[_CALLED.search(user.text)[1]]
    number = f'({user.operands.index(array.name)})'
    [given] = [
      each
      for each in within.values()
      if each.kind == 'parameter' and each.text.startswith(number)
    ]
    return _read(given, within, computations)
  if user.operands[0] == array.name:
    if user.kind in ('dynamic-slice', 'gather', 'slice'):
      return user.arrays[0].size
    if user.kind == 'dynamic-update-slice':
      return 0.0  # in place
  return array.arrays[0].size

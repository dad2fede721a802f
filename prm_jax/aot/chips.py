"""Lists published figures of TPU and GPU chips, as bounds on programs."""

import dataclasses

from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class Gpu:
  """Describes a GPU to XLA's compiler, which needs more than rates.

  Attributes:
    capability: compute capability, (major, minor).
    cores: streaming multiprocessors; fpus: float32 units of each.
    threads: threads that a core holds; shared: bytes of its shared memory.
    l2: bytes of the cache that all cores share.
    clock: GHz.
  """

  capability: tuple[int, int]
  cores: int
  fpus: int
  threads: int
  shared: int
  l2: int
  clock: float


@dataclasses.dataclass(frozen=True)
class Chip:
  """Describes one chip.

  Attributes:
    name: short name, as in a topology such as v5e:4x4 or h100:8.
    flops: bfloat16 operations per second, without sparsity.
    hbm_bytes: memory; hbm_rate: its bytes per second.
    ici_rate: bytes per second that leave the chip over all of its links to
      other chips of its slice or host.
    source: where the figures were published.
    gpu: None for TPUs.
  """

  name: str
  flops: float
  hbm_bytes: float
  hbm_rate: float
  ici_rate: float
  source: str
  gpu: Gpu | None = None


_DOCS = 'https://cloud.google.com/tpu/docs'
_NVIDIA = 'https://www.nvidia.com/en-us/data-center'
_HOPPER = Gpu((9, 0), 132, 128, 2048, 233_472, 52_428_800, 1.98)
_AMPERE = Gpu((8, 0), 108, 64, 2048, 167_936, 41_943_040, 1.41)
_ADA = Gpu((8, 9), 58, 128, 1536, 102_400, 50_331_648, 2.04)
# By the `device_kind` of JAX. The links of TPUs are published in Gbit/s per
# chip, NVLink's and PCIe's in bytes of both directions together.
CHIPS = {
  'TPU v5 lite': Chip('v5e', 197e12, 16e9, 819e9, 1600e9 / 8, f'{_DOCS}/v5e'),
  'TPU v5': Chip('v5p', 459e12, 95e9, 2765e9, 4800e9 / 8, f'{_DOCS}/v5p'),
  'TPU v6 lite': Chip('v6e', 918e12, 32e9, 1640e9, 3584e9 / 8, f'{_DOCS}/v6e'),
  'NVIDIA H100 80GB HBM3': Chip(
    'h100', 989e12, 80e9, 3350e9, 900e9 / 2, f'{_NVIDIA}/h100', _HOPPER
  ),
  'NVIDIA H200': Chip(
    'h200', 989e12, 141e9, 4800e9, 900e9 / 2, f'{_NVIDIA}/h200', _HOPPER
  ),
  'NVIDIA A100-SXM4-80GB': Chip(
    'a100', 312e12, 80e9, 2039e9, 600e9 / 2, f'{_NVIDIA}/a100', _AMPERE
  ),
  'NVIDIA L4': Chip('l4', 121e12, 24e9, 300e9, 64e9 / 2, f'{_NVIDIA}/l4', _ADA),
}


def chip_of(device_kind: str) -> Chip:
  """Returns the figures of a device; raises UserError for unknown chips."""
  if device_kind not in CHIPS:
    raise UserError(
      f'no figures for the chip {device_kind!r}: expected one of '
      f'{", ".join(chip.name for chip in CHIPS.values())}'
    )
  return CHIPS[device_kind]

"""Lists published figures of TPU chips, as bounds on programs."""

import dataclasses

from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
  """Describes one chip.

  Attributes:
    flops: bfloat16 operations per second.
    hbm_bytes: memory; hbm_rate: its bytes per second.
    ici_rate: bytes per second that leave the chip over all of its links to
      other chips.
    source: where the figures were published.
  """

  name: str
  flops: float
  hbm_bytes: float
  hbm_rate: float
  ici_rate: float
  source: str


# By the `device_kind` of JAX. Links are published in Gbit/s per chip.
_DOCS = 'https://cloud.google.com/tpu/docs'
CHIPS = {
  'TPU v5 lite': Chip('v5e', 197e12, 16e9, 819e9, 1600e9 / 8, f'{_DOCS}/v5e'),
  'TPU v5': Chip('v5p', 459e12, 95e9, 2765e9, 4800e9 / 8, f'{_DOCS}/v5p'),
  'TPU v6 lite': Chip('v6e', 918e12, 32e9, 1640e9, 3584e9 / 8, f'{_DOCS}/v6e'),
}


def chip_of(device_kind: str) -> Chip:
  """Returns the figures of a device; raises UserError for unknown chips."""
  if device_kind not in CHIPS:
    raise UserError(
      f'no figures for the chip {device_kind!r}: expected a topology of '
      f'{", ".join(chip.name for chip in CHIPS.values())}'
    )
  return CHIPS[device_kind]

"""Our side of the machine: the chip, and what it reaches at most."""

import platform

import jax
import jax.numpy as jnp

from experiments.accelerator import cases
from experiments.accelerator.timing import best_seconds
from prm_jax.aot.chips import CHIPS
from prm_jax.runtime import manifest


def about() -> dict:
  """Describes the device and the versions that it runs with."""
  device = jax.devices()[0]
  chip = CHIPS.get(device.device_kind)  # None for a CPU
  stats = device.memory_stats() or {}
  described = manifest.describe(0, 'experiments.accelerator.run')
  return {
    'device': device.device_kind,
    'platform': device.platform,
    'count': len(jax.devices()),
    'memory_bytes': stats.get('bytes_limit'),
    'peak_flops_per_second': chip.flops if chip else None,
    'processor': platform.processor() or platform.machine(),
    'versions': described['versions'],
    'git_commit': described['git_commit'],
  }


def product(size: int) -> dict:
  """Measures a bfloat16 product of two square matrices of random numbers."""
  a, b = jax.random.normal(jax.random.key(0), (2, size, size), jnp.bfloat16)
  seconds = best_seconds(jax.jit(jnp.matmul), a, b)
  return {'flops_per_second': 2 * size**3 / seconds, 'size': size}


def copy(size: int) -> dict:
  """Measures reading and writing an array of that many bytes."""
  x = jax.random.normal(jax.random.key(0), (size // 4,), jnp.float32)
  seconds = best_seconds(jax.jit(jnp.negative), x)
  return {'bytes_per_second': 2 * size / seconds, 'size': size}


def main() -> None:
  setup = cases.read_arguments()
  size, bytes_moved = (256, 2**20) if setup.tiny else (8192, 2**32)
  cases.run(
    setup,
    {
      'about': about,
      'product': lambda: product(size),
      'copy': lambda: copy(bytes_moved),
    },
  )


if __name__ == '__main__':
  main()

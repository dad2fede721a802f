"""Chooses the dtype that suits a device, in which trained models are opened."""

import functools
import logging
import pathlib

import jaxlib
from jax.sharding import Mesh

FAST = 'bfloat16'  # in which models are opened on TPUs and GPUs
AUTO = 'auto'  # in a config: the best for its devices
CPU_INFO = pathlib.Path('/proc/cpuinfo')
# Names in Linux of instructions that multiply bfloat16.
INSTRUCTIONS = {'avx512_bf16', 'amx_bf16', 'bf16'}
SINCE = 0, 12  # version of jaxlib whose products use them


def fast_dtype(mesh: Mesh, own: str) -> str:
  """Returns the dtype in which the mesh's devices compute best, '' for any.

  The fused attention kernels of GPUs take no other than bfloat16, and TPUs and
  GPUs multiply it at twice the speed or more. CPUs multiply float32, and some
  of them bfloat16; others convert every parameter in every call.

  Args:
    own: dtype in which the model computed when it was trained.
  """
  platform = mesh.devices.flat[0].platform
  if platform != 'cpu':
    logging.info(
      'opened in bfloat16, as this is a %s; dtype=float32 keeps float32',
      platform,
    )
    return FAST
  if own == 'float32':
    return ''
  if own == FAST and not multiplies_bfloat16():
    logging.info(
      'opened in float32, as products of bfloat16 are slow on this CPU; '
      'dtype=bfloat16 keeps bfloat16'
    )
    return 'float32'
  return own


@functools.cache
def multiplies_bfloat16() -> bool:
  """Says whether this CPU multiplies bfloat16, and XLA uses that."""
  version = tuple(map(int, jaxlib.__version__.split('.')[:2]))
  if version < SINCE or not CPU_INFO.is_file():
    return False
  return not INSTRUCTIONS.isdisjoint(CPU_INFO.read_text().split())

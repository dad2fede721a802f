"""Makes programs on NVIDIA GPUs give the same bits each time they run.

XLA adds up scattered numbers (the gradient of an embedding) and cuDNN those of
an attention's gradient in whatever order they come, unless FLAG is set. Without
it a resumed run would not repeat itself. With it XLA sorts all numbers that are
scattered to places that may be equal; `models/take.py` has it sort the places
alone.
"""

import importlib.util
from collections.abc import MutableMapping

FLAG = '--xla_gpu_exclude_nondeterministic_ops'
GPU_PLUGINS = 'jax_cuda13_plugin', 'jax_cuda12_plugin'


def has_gpu_plugin() -> bool:
  """Says whether JAX can compile for NVIDIA GPUs here."""
  return any(map(importlib.util.find_spec, GPU_PLUGINS))


def ask_for_same_bits(environment: MutableMapping[str, str]) -> None:
  """Adds FLAG to XLA_FLAGS, unless it is there, whatever its value.

  Call it before JAX compiles anything.
  """
  given = environment.get('XLA_FLAGS', '')
  if has_gpu_plugin() and FLAG not in given:
    environment['XLA_FLAGS'] = f'{given} {FLAG}=true'.strip()

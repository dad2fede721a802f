"""Computes attention on meshes of eight CPU devices, in a process of its own.

Arguments: REPLICA,FSDP,MODEL of each mesh. It prints JSON with, for each mesh,
the largest difference to one device of the results and gradients on
long_rows.py, and the collectives of the compiled forward pass without a
prefix.
"""

import json
import re
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.models.attention import attention
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import BATCH, fitting_axes, make_mesh
from tests.models.long_rows import (
  some_inputs,
  some_last,
  value_and_gradients,
)


def largest_difference(ours, theirs) -> float:
  differences = [
    np.abs(np.asarray(a) - np.asarray(b)).max()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  ]
  return float(np.max(differences))  # Python's may hide a NaN


def collectives(mesh) -> list[str]:
  """Lists the collectives that attention needs when its inputs are sharded."""

  def place(x):
    axes = fitting_axes((len(x), x.shape[-2]), (BATCH, 'model'))
    spec = P(axes[0], None, axes[1]) if x.ndim == 4 else P(axes[0])
    return jax.device_put(x, NamedSharding(mesh, spec))

  arrays = [place(x) for x in (*some_inputs()[:3], some_last())]
  attend = jax.jit(attention, static_argnames='prefix')
  compiled = attend.lower(*arrays, prefix=None).compile()
  pattern = r'all-gather|all-reduce|all-to-all|collective-permute'
  return sorted(set(re.findall(pattern, compiled.as_text())))


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  processes.compile_afresh_on_cpus()
  inputs = some_inputs()
  expected = value_and_gradients(attention, True, inputs)
  results = {}
  for argument in sys.argv[1:]:
    sizes = map(int, argument.split(','))
    mesh = make_mesh(
      dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    )
    with jax.set_mesh(mesh):
      actual = value_and_gradients(attention, True, inputs)
      results[argument] = {
        'difference': largest_difference(actual, expected),
        'collectives': collectives(mesh),
      }
  json.dump(results, sys.stdout)

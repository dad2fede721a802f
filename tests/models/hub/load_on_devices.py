"""Loads a model onto meshes of eight CPU devices, in a process of its own.

Arguments: the folder, and REPLICA,FSDP,MODEL of each mesh. stdout: JSON, per
mesh whether every parameter equals that of one device, how much of each tensor
was read (1 is all of it once) and the shapes of the parts.
"""

import json
import math
import sys

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import make_mesh


class CountedFiles(TensorFiles):
  """Counts the values that are read of every tensor."""

  def __init__(self, directory):
    super().__init__(directory)
    self.read_of = dict.fromkeys(self.shapes, 0)

  def read_slice(self, name, where):
    part = super().read_slice(name, where)
    self.read_of[name] += part.size
    return part


def load(folder: str, sizes: tuple[int, ...]):
  names = ('replica', 'fsdp', 'model')
  wanted = dict(zip(names, sizes, strict=True))
  mesh = make_mesh(wanted, jax.devices()[: math.prod(sizes)])
  config, _ = read_architecture(folder)
  files = CountedFiles(folder)
  return flatten_dict(load_backbone(files, config, mesh), sep='/'), files


def main(folder: str, *meshes: str) -> None:
  one, _ = load(folder, (1, 1, 1))
  results = {}
  for mesh in meshes:
    params, files = load(folder, tuple(map(int, mesh.split(','))))
    results[mesh] = {
      'equal': all(np.array_equal(params[name], one[name]) for name in one),
      'read': {
        name: files.read_of[name] / math.prod(shape)
        for name, shape in files.shapes.items()
      },
      'parts': {
        name: sorted({part.data.shape for part in leaf.addressable_shards})
        for name, leaf in params.items()
      },
    }
  json.dump(results, sys.stdout)


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  processes.compile_afresh_on_cpus()
  main(*sys.argv[1:])

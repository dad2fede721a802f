"""Loads weights that are not finite onto meshes of eight CPU devices.

A process of its own. Arguments: the folder, and REPLICA,FSDP,MODEL of each
mesh. stdout: JSON, per mesh what is said of which tensor; '' where it loads.
"""

import json
import re
import sys

import jax

from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from tests.models.hub.load_on_devices import load


def main(folder: str, *meshes: str) -> None:
  found = {}
  for mesh in meshes:
    try:
      load(folder, tuple(map(int, mesh.split(','))))
      found[mesh] = ''
    except UserError as error:
      found[mesh] = re.search(r"tensor '\S+' holds NaN", str(error))[0]
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  processes.compile_afresh_on_cpus()
  main(*sys.argv[1:])

"""Loads a model onto eight CPU devices and prints the memory it took.

A process of its own. Arguments: the folder, a mesh as FSDP,MODEL and the dtype
of the parameters. stdout: JSON with the bytes of the parameters and the peak
of anonymous memory (mapped files are the system's cache, not ours) while they
were loaded, above what the process had before.
"""

import json
import pathlib
import re
import sys
import threading

import jax

from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime.sharding import make_mesh


def anonymous_bytes() -> int:
  status = pathlib.Path('/proc/self/status').read_text()
  return int(re.search(r'RssAnon:\s+(\d+) kB', status)[1]) * 1024


def main(folder: str, mesh: str, dtype: str) -> None:
  fsdp, model = map(int, mesh.split(','))
  devices = make_mesh({'replica': 1, 'fsdp': fsdp, 'model': model})
  config, _ = read_architecture(folder)
  files = TensorFiles(folder)
  before = anonymous_bytes()
  peak, done = [before], threading.Event()

  def watch():
    while not done.wait(0.002):
      peak.append(anonymous_bytes())

  watcher = threading.Thread(target=watch)
  watcher.start()
  params = jax.block_until_ready(
    load_backbone(files, config, devices, dtype=dtype)
  )
  done.set()
  watcher.join()
  size = sum(
    part.data.nbytes
    for leaf in jax.tree.leaves(params)
    for part in leaf.addressable_shards
  )
  found = {'bytes': size, 'peak': max(peak) - before}
  json.dump(found | {'after': anonymous_bytes() - before}, sys.stdout)


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  main(*sys.argv[1:])

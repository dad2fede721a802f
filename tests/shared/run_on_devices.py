"""Trains on meshes of eight CPU devices; a process of its own, as JAX asks.

Arguments: REPLICA,FSDP,MODEL,MICROBATCHES of each run. stdout: JSON, per run
its `losses`, `shards` (per array: its shape and the shapes of its parts, device
by device), `made` (by operation of the compiled step, the shapes that it has on
a device) and `kept` (the shapes that arrays of all layers have on a device if
only what is between layers is kept), and for the first and the last run
`scores`.
"""

import dataclasses
import json
import re
import sys

import jax
import numpy as np

from prm_jax.data.encoding import make_format
from prm_jax.inference.scorer import Scorer
from prm_jax.runtime.sharding import make_mesh, path_name
from prm_jax.training.loop import compile_train_step, put_batch
from prm_jax.training.train_state import init_state, make_init
from tests.shared import tiny_training

STEPS = 5
LAYERS = 3
MADE = re.compile(r'= \w+\[([\d,]*)\]\S* (dot|scatter|all-gather|all-reduce)\(')
TEXTS = [
  ('mod 10 : 1 + 2', ['1 + 2 = 3', '3 + 1 = 4', '4 * 2 = 8'][:k])
  for k in (1, 2, 3) * 3
]


def train(mesh, microbatches: int) -> tuple[dict, dict]:
  """The final parameters, and what is reported."""
  state = init_state(tiny_training.init, mesh, seed=0)
  step = compile_train_step(tiny_training.train_step(microbatches), state, mesh)
  losses = []
  with jax.set_mesh(mesh):
    batches = [put_batch(tiny_training.batch(i), mesh) for i in range(STEPS)]
    text = step.lower(state, batches[0]).compile().as_text()
    for batch in batches:
      state, metrics = step(state, batch)
      losses.append(float(metrics['loss']))
  shards = {
    path_name(path): [
      leaf.shape,
      [part.data.shape for part in leaf.addressable_shards],
    ]
    for path, leaf in jax.tree.leaves_with_path(
      {'params': state.params, 'opt_state': state.opt_state}
    )
  }
  made = {}
  for shape, operation in MADE.findall(text):
    sizes = [int(size) for size in shape.split(',') if size]
    made.setdefault(operation, []).append(sizes)
  return state.params, {'losses': losses, 'shards': shards, 'made': made}


def kept_of_layers(mesh) -> list[list[int]]:
  """Shapes [L, ...] on a device in a step that computes layers again."""
  model = dataclasses.replace(
    tiny_training.MODEL, n_layers=LAYERS, remat='full', scan_unroll=1
  )
  init = make_init(model, tiny_training.HEAD, tiny_training.optimizer())
  state = init_state(init, mesh, seed=0)
  step = compile_train_step(tiny_training.train_step(1, model), state, mesh)
  with jax.set_mesh(mesh):
    batch = put_batch(tiny_training.batch(0), mesh)
    text = step.lower(state, batch).compile().as_text()
  shapes = set(re.findall(rf'f32\[({LAYERS}(?:,\d+){{3}})\]', text))
  return [[int(size) for size in shape.split(',')] for shape in shapes]


def score(params, mesh) -> list[float]:
  """Step scores of some chains, packed and with a shared prompt."""
  fmt = make_format('arithmetic', 46)
  scorer = Scorer(params, tiny_training.MODEL, tiny_training.HEAD, fmt, mesh)
  together = scorer.best_of_n(TEXTS[0][0], [steps for _, steps in TEXTS])
  return np.concatenate([*scorer.score_many(TEXTS), *together[2]]).tolist()


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  # XLA warns when it compiles, not when a program comes from the cache.
  jax.config.update('jax_enable_compilation_cache', False)
  results = {}
  for arguments in sys.argv[1:]:
    *sizes, microbatches = map(int, arguments.split(','))
    wanted = dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    devices = jax.devices()[: int(np.prod(sizes))]
    mesh = make_mesh(wanted, devices)
    params, results[arguments] = train(mesh, microbatches)
    results[arguments]['kept'] = kept_of_layers(mesh)
    if arguments in (sys.argv[1], sys.argv[-1]):
      results[arguments]['scores'] = score(params, mesh)
  json.dump(results, sys.stdout)

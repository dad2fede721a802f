"""Searches on meshes of CPU devices; a process of its own, as JAX asks.

stdout: JSON, per mesh 'REPLICA,FSDP,MODEL' and number of problems side by side:
the `chosen` steps of each problem, and all steps of its `tree`.
"""

import json
import sys

import jax
import numpy as np

from prm_jax import search
from prm_jax.data.encoding import make_format
from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.inference.generator import Generator
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import TransformerConfig, init_params
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import make_mesh
from prm_jax.search.method import Task
from tests.shared.tiny_trees import make_scorer

MESHES = ((1, 1, 1), (2, 2, 2))
FORMAT = make_format('arithmetic', 64)
MODEL = TransformerConfig(
  vocab_size=110,
  d_model=16,
  n_layers=2,
  n_heads=4,
  n_kv_heads=2,
  d_ff=24,
  tie_embeddings=False,
)
TASKS = [
  Task(f'{n}{m}', f'mod 10 : {n} + {m} * 3', '')
  for n in (1, 2)
  for m in (4, 5, 6)
]


def make_generator(mesh) -> Generator:
  """Of random weights, likely to write digits and to come to an end."""
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)
  likely = [*FORMAT.tokenizer.encode('1 2 3 4 + ='), STEP_END, PROBLEM_END]
  rows = 2 * np.random.default_rng(0).normal(size=(len(likely), MODEL.d_model))
  head = np.zeros_like(params['lm_head'])
  head[likely] = rows
  params['lm_head'] = head
  sampling = SamplingConfig(slots=8, max_tokens=48, kept=32)
  return Generator(params, MODEL, FORMAT, mesh, sampling, 0, 'tiny')


def searched(mesh, side_by_side: int) -> dict:
  policy = make_generator(mesh)
  prm = TreeScorer(make_scorer(mesh=mesh), rows=32)
  options = {'samples': 8, 'width': 4}
  how = search.RunConfig(concurrent=side_by_side)
  found = search.run(TASKS, policy, prm, 'beam', options, how=how)
  found = sorted(found, key=lambda each: each.task.id)
  return {
    'chosen': [each.chosen and each.chosen.steps for each in found],
    'trees': [
      each.tree and [node.step for node in each.tree.nodes] for each in found
    ],
  }


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  processes.compile_afresh_on_cpus()
  results = {}
  for sizes in MESHES:
    wanted = dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    mesh = make_mesh(wanted, jax.devices()[: int(np.prod(sizes))])
    for side_by_side in (len(TASKS), 2) if mesh.size == 1 else (3,):
      name = f'{",".join(map(str, sizes))} {side_by_side}'
      results[name] = searched(mesh, side_by_side)
  json.dump(results, sys.stdout)

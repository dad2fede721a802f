"""Trees scored on meshes of CPU devices; a process of its own, as JAX asks.

stdout: JSON, per mesh 'REPLICA,FSDP,MODEL' the `scores` and the `tokens` read.
"""

import json
import sys

import jax
import numpy as np

from prm_jax.inference.protocols import Scoring
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import HeadConfig
from prm_jax.runtime.sharding import make_mesh
from tests.shared.tiny_trees import make_scorer, some_chains

MESHES = ((1, 1, 1), (2, 2, 2), (1, 2, 4))


def score(mesh) -> dict:
  head = HeadConfig('two_class', likelihood=True)
  # So few rows that pieces go and are read again.
  trees = TreeScorer(make_scorer(head, mesh=mesh), rows=2)
  chains = [Scoring(*chain) for chain in some_chains(16)]
  found = [
    scored for part in (chains, chains[:6]) for (scored,) in trees.score(part)
  ]
  return {
    'scores': [score for scored in found for score in scored.scores],
    'tokens': [scored.tokens for scored in found],
  }


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  # XLA warns when it compiles, not when a program comes from the cache.
  jax.config.update('jax_enable_compilation_cache', False)
  results = {}
  for sizes in MESHES:
    wanted = dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    mesh = make_mesh(wanted, jax.devices()[: int(np.prod(sizes))])
    results[','.join(map(str, sizes))] = score(mesh)
  json.dump(results, sys.stdout)

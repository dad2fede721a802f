"""Samples on meshes of eight CPU devices; a process of its own, as JAX asks.

stdout: JSON, per mesh 'REPLICA,FSDP,MODEL' its `tokens`, `logprobs`, the
shapes of the `cache` on the first device and those that are `gathered`, and its
`share_of_parameters`.
"""

import dataclasses
import json
import re
import sys

import jax
import numpy as np

from prm_jax.inference.sampler import SamplingConfig, Slots
from prm_jax.inference.writer import SampleRequest, jit_chunk
from prm_jax.models import TransformerConfig, init_cache, unstack_layers
from prm_jax.models.cache_shardings import cache_sharding, decoding_shardings
from prm_jax.runtime.sharding import make_mesh
from tests.shared.tiny_sampling import STOPS, make_writer, params_of, some_jobs

MODEL = TransformerConfig(
  vocab_size=24, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)
SAMPLING = SamplingConfig(slots=8, max_tokens=20, top_p=0.9)
MESHES = (  # and whether parameters are spread over `fsdp`
  ((1, 1, 1), False),
  ((2, 2, 2), False),
  ((1, 8, 1), False),
  ((1, 2, 4), False),
  ((1, 4, 2), True),
  ((2, 2, 2), True),
  ((1, 8, 1), True),
)


def sample(mesh, spread) -> dict:
  """Of some jobs, and of chains that go on from what is kept of them."""
  sampling = dataclasses.replace(SAMPLING, kept=6, spread=spread)
  writer = make_writer(sampling, MODEL, mesh)
  jobs = [
    job._replace(ids=(*job.ids, STOPS.separator))
    for job in some_jobs(20, MODEL)
  ]
  written = writer.write(jobs)
  longer = [
    SampleRequest((*job.ids, *w.tokens[:-1].tolist(), STOPS.separator), n)
    for n, (job, w) in enumerate(zip(jobs, written, strict=True))
  ]
  written += writer.write(longer)
  return {
    'tokens': [w.tokens.tolist() for w in written],
    'logprobs': np.concatenate([w.logprobs for w in written]).tolist(),
  }


def gathered(mesh, spread) -> dict:
  """What a chunk gathers whole, and this device's part of a cache."""
  sampling = dataclasses.replace(SAMPLING, spread=spread)
  split = cache_sharding(MODEL, SAMPLING.slots, mesh)
  cache = jax.jit(
    lambda: init_cache(MODEL, SAMPLING.slots, 32), out_shardings=split
  )()
  params = jax.jit(
    unstack_layers,
    static_argnums=1,
    out_shardings=decoding_shardings(params_of(MODEL), MODEL, mesh, spread),
  )(params_of(MODEL), MODEL)
  B = SAMPLING.slots
  slots = Slots(
    *(np.ones(B, np.int32) for _ in range(4)), np.zeros((B, 2), np.uint32)
  )
  with jax.set_mesh(mesh):
    chunk = jit_chunk(MODEL, mesh, sampling, STOPS)
    text = chunk.lower(params, slots, cache, B).compile().as_text()
  return {
    'gathered': re.findall(r'(\w+\[[\d,]*\])\S* all-gather', text),
    'cache': cache.values[0].addressable_shards[0].data.shape,
    'share_of_parameters': bytes_on(jax.devices()[0], params)
    / sum(x.nbytes for x in jax.tree.leaves(params)),
  }


def bytes_on(device, params) -> int:
  """How much of the parameters a device holds."""
  return sum(
    shard.data.nbytes
    for x in jax.tree.leaves(params)
    for shard in x.addressable_shards
    if shard.device == device
  )


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  # XLA warns when it compiles, not when a program comes from the cache.
  jax.config.update('jax_enable_compilation_cache', False)
  params_of(MODEL)
  results = {}
  for sizes, spread in MESHES:
    wanted = dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    mesh = make_mesh(wanted, jax.devices()[: int(np.prod(sizes))])
    name = ','.join(map(str, sizes)) + ' spread' * spread
    results[name] = sample(mesh, spread) | gathered(mesh, spread)
  json.dump(results, sys.stdout)

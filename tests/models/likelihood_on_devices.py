"""Computes token terms on meshes of eight CPU devices, in a process of its own.

The states are those given and the tokens' own vectors.

Arguments: 'cpu' or 'gpu', as on which the meshes add up gradients, and
ROWS,WORDS,WIDTH,REPLICA,FSDP,MODEL of each case. It prints JSON: for each, the
largest difference to one device of the terms and of their gradients.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models import TransformerConfig, init_params, token_terms
from prm_jax.models.layers import embed
from prm_jax.models.likelihood import TOKENS_PER_PART
from prm_jax.models.splits import whole_rows
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import make_mesh
from tests.models.some_platform import as_on

T = TOKENS_PER_PART // 2 + 9


def value_and_gradients(rows: int, words: int, D: int) -> list:
  """Returns the terms, and the gradients of words, vectors and states."""
  model = TransformerConfig(
    words, D, 1, 2, 1, 16, head_dim=8, tie_embeddings=False
  )
  rng = np.random.default_rng(rows + words)
  params = init_params(jax.random.key(0), model)
  hidden = jnp.asarray(rng.normal(size=(rows, T, D)), jnp.float32)
  tokens = jnp.asarray(rng.integers(0, words, (rows, T)), jnp.int32)
  parents = jnp.asarray(np.maximum(np.arange(T) - 1 - (np.arange(T) % 3), -1))
  parents = jnp.tile(parents, (rows, 1))
  wanted = jnp.asarray(rng.random((rows, T)) < 0.7)
  weights = jnp.asarray(rng.normal(size=(2, rows, T)), jnp.float32)

  def terms(table, vectors, hidden):
    hidden += whole_rows(embed(vectors, tokens, 'float32'))
    found = token_terms(
      params | {'lm_head': table}, model, hidden, tokens, parents, wanted
    )
    return (weights * jnp.stack(found)).sum(), found

  slopes, found = jax.jit(jax.grad(terms, (0, 1, 2), has_aux=True))(
    params['lm_head'], params['embed_tokens'], hidden
  )
  return [np.asarray(x) for x in (*found, *slopes)]


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', 8)
  processes.compile_afresh_on_cpus()
  results = {}
  platform, *arguments = sys.argv[1:]
  for argument in arguments:
    rows, words, width, *sizes = map(int, argument.split(','))
    expected = value_and_gradients(rows, words, width)
    mesh = make_mesh(
      dict(zip(('replica', 'fsdp', 'model'), sizes, strict=True))
    )
    with jax.set_mesh(mesh), as_on(platform):
      actual = value_and_gradients(rows, words, width)
    differences = [
      np.abs(a - b).max() / np.abs(b).max()
      for a, b in zip(actual, expected, strict=True)
    ]
    results[argument] = float(np.max(differences))  # Python's may hide a NaN
  json.dump(results, sys.stdout)

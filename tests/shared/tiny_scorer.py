"""A Scorer over bytes with random parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.data.encoding import make_format
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import make_params

FORMAT = make_format('bytes', 128)
MODEL = TransformerConfig(FORMAT.tokenizer.vocab_size, 16, 2, 2, 1, 16)
HEAD = HeadConfig('logit')
MESH = make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})


@functools.cache
def the_scorer():
  """Returns one scorer for all tests, so that programs are compiled once.

  Its parameters are large enough for scores all over (0, 1).
  """
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda key: make_params(key, MODEL, HEAD), jax.random.key(0)
  )
  params = jax.tree.map(
    lambda x: jnp.asarray(0.7 * rng.normal(size=x.shape), jnp.float32), shapes
  )
  return Scorer(params, MODEL, HEAD, FORMAT, MESH)

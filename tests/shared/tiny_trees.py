"""A small PRM over bytes, and chains that share problems and first steps."""

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.data.encoding import make_format
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import make_params

FORMAT = make_format('bytes', 128)
MODEL = TransformerConfig(FORMAT.tokenizer.vocab_size, 16, 2, 4, 2, 24)


def make_scorer(head=HeadConfig('logit'), fmt=FORMAT, mesh=None, broken=None):  # noqa: B008
  """Its parameters are large enough for scores all over (0, 1).

  Args:
    broken: an id whose embedding is NaN.
  """
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda key: make_params(key, MODEL, head), jax.random.key(0)
  )
  params = jax.tree.map(
    lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), jnp.float32), shapes
  )
  if broken is not None:
    table = params['backbone']['embed_tokens']
    params['backbone']['embed_tokens'] = table.at[broken].set(jnp.nan)
  mesh = mesh or make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})
  return Scorer(params, MODEL, head, fmt, mesh)


def some_chains(count, seed=0):
  """(problem, steps) of ragged lengths, equal ones among them."""
  rng = np.random.default_rng(seed)
  problems = ['two plus 2', 'a problem of some more 12 words', 'x']
  steps = ['1 + 2 = 3', 'a', 'so 17', 'therefore it is 4 and no more']
  return [
    (
      problems[rng.integers(3)],
      tuple(steps[rng.integers(4)] for _ in range(rng.integers(1, 5))),
    )
    for _ in range(count)
  ]

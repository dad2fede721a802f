"""Adapters of the small model of plain_transformer.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models import LoraConfig, init_lora
from tests.models.plain_transformer import VARIANTS, params_of

CONFIG = VARIANTS['bias']
LORA = LoraConfig(rank=3, alpha=6.0)


@functools.cache
def adapters(lora=LORA):
  return init_lora(jax.random.key(0), params_of(CONFIG), lora)


def filled(tree, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), tree
  )

"""A Generator of the arithmetic format with random parameters."""

import dataclasses

import jax

from prm_jax.data.encoding import make_format
from prm_jax.inference.generator import Generator
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.models import TransformerConfig, init_params
from tests.shared.tiny_sampling import one_device

FORMAT = make_format('arithmetic', 48)
MODEL = TransformerConfig(
  vocab_size=110, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)
SAMPLING = SamplingConfig(slots=4, max_tokens=24)
PROBLEM = 'mod 10 : 1 + 2 * 3'


def make_generator(seed=3, **changes):
  sampling = dataclasses.replace(SAMPLING, **changes)
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)
  return Generator(params, MODEL, FORMAT, one_device(), sampling, seed, 'tiny')

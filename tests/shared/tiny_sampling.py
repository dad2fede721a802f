"""A language model so small that all it may write can be counted out."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.inference.sampler import SamplingConfig, Stops
from prm_jax.inference.writer import SampleRequest, Writer
from prm_jax.models import TransformerConfig, forward, init_params, lm_logits
from prm_jax.runtime.sharding import make_mesh

STOPS = Stops(separator=2, end=3)
MODEL = TransformerConfig(
  vocab_size=10, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)


@functools.cache
def params_of(config=MODEL):
  """Random, with logits far enough apart for filters to have an effect."""
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(3), config)
  return params | {'embed_tokens': 12 * params['embed_tokens']}


def one_device():
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])


def make_writer(sampling, config=MODEL, mesh=None, max_length=64):
  mesh = mesh or one_device()
  return Writer(params_of(config), config, mesh, sampling, STOPS, max_length)


@functools.partial(jax.jit, static_argnums=1)
def _logprobs(params, config, tokens):
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  last = jnp.full_like(tokens, tokens.shape[1] - 1)
  hidden = forward(params, config, tokens, positions, last)
  return jax.nn.log_softmax(lm_logits(params, config, hidden))


def forward_logprobs(rows, config=MODEL):
  """[B, T, V] of rows of any lengths, from one forward pass over all."""
  length = max(map(len, rows))
  tokens = np.array([[*row, *[0] * (length - len(row))] for row in rows])
  return np.asarray(_logprobs(params_of(config), config, tokens), np.float64)


def filter_by_sorting(logprobs, sampling):
  """Probabilities of one row [V] after all filters, the plain way."""
  scaled = logprobs / sampling.temperature
  probs = np.exp(scaled - scaled.max())
  order = np.argsort(-probs, kind='stable')
  if sampling.top_k:
    least = probs[order[min(sampling.top_k, len(probs)) - 1]]
    probs = np.where(probs >= least, probs, 0)
  if sampling.top_p < 1:
    reached = np.cumsum(probs[order]) / probs.sum()
    least = probs[order[np.argmax(reached >= sampling.top_p)]]
    probs = np.where(probs >= least, probs, 0)
  probs = np.where(probs >= sampling.min_p * probs.max(), probs, 0)
  return probs / probs.sum()


def exact_distribution(ids, max_steps, sampling, config=MODEL):
  """Probability of all that can be written after `ids`, by its tokens."""
  V, most = config.vocab_size, sampling.max_tokens
  # Every prefix that is one token short of the limit, in one forward pass.
  prefixes = list(itertools.product(range(V), repeat=most - 1))
  rows = forward_logprobs([[*ids, *prefix] for prefix in prefixes], config)
  next_probs = {}
  for prefix, row in zip(prefixes, rows, strict=True):
    for n in range(most):
      next_probs.setdefault(
        prefix[:n], filter_by_sorting(row[len(ids) - 1 + n], sampling)
      )
  found, open_ones = {}, {(): 1.0}
  while open_ones:
    before, probability = open_ones.popitem()
    for token in np.flatnonzero(next_probs[before]).tolist():
      tokens = (*before, token)
      mass = probability * next_probs[before][token]
      is_empty = token == STOPS.separator == [*ids, *before][-1]
      stops = token == STOPS.end or is_empty or len(tokens) == most
      if max_steps and tokens.count(STOPS.separator) == max_steps:
        stops = True
      (found if stops else open_ones)[tokens] = mass
  return found


def some_jobs(count, config=MODEL, seed=0):
  """Ragged prompts and seeds."""
  rng = np.random.default_rng(seed)
  return [
    SampleRequest(
      tuple(rng.integers(4, config.vocab_size, rng.integers(1, 14)).tolist()),
      int(rng.integers(1 << 63)),
    )
    for _ in range(count)
  ]


FILTERS = {
  'off': SamplingConfig(),
  'temperature': SamplingConfig(temperature=0.6),
  'top_k': SamplingConfig(top_k=4),
  'top_p': SamplingConfig(top_p=0.8),
  'min_p': SamplingConfig(min_p=0.2),
  'all': SamplingConfig(temperature=1.7, top_k=7, top_p=0.9, min_p=0.1),
}

"""Computes step probabilities from the hidden state at each step's end.

    hidden states, step_ends -> step_logits -> step_probabilities
    hidden states of step ends -> head_logits -> step_probabilities

A head reads only the P positions in `step_ends`, so its arrays are neither as
large as the vocabulary nor as long as the row.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.models.config import HeadConfig
from prm_jax.models.take import take_tokens

Params = dict[str, Any]

# A head with likelihood starts with the log-odds that a step is right at
# FIRST_BIAS + the log-probabilities of its tokens with a digit and of its other
# tokens, summed and weighted by FIRST_WEIGHTS: see experiments/smollm2_prm.
FIRST_BIAS, FIRST_WEIGHTS = 3.0, (0.5, 0.05)


def init_head(key: jax.Array, d_model: int, head: HeadConfig) -> Params:
  """Makes a random head, float32: kernel [D, C], bias [C].

  A hidden layer of width M adds hidden_kernel [D, M] and hidden_bias [M], and
  kernel is [M, C]. Likelihood adds likelihood_kernel [2, C], and kernel starts
  at 0.
  """
  params = {}
  inputs = d_model
  if head.hidden:
    hidden_key, key = jax.random.split(key)
    params['hidden_kernel'] = _normal(hidden_key, (d_model, head.hidden))
    params['hidden_bias'] = jnp.zeros(head.hidden)
    inputs = head.hidden
  if not head.likelihood:
    kernel = _normal(key, (inputs, head.outputs))
    return params | {'kernel': kernel, 'bias': jnp.zeros(head.outputs)}
  # The wrong class comes first; a logit is that of the right one.
  right = jnp.zeros(head.outputs).at[0].set(1.0 if head.outputs == 1 else -1.0)
  # All other classes are those of right steps, and share the probability.
  bias = FIRST_BIAS - math.log(max(1, head.outputs - 1))
  return params | {
    'kernel': jnp.zeros((inputs, head.outputs)),
    'bias': bias * right,
    'likelihood_kernel': jnp.array(FIRST_WEIGHTS)[:, None] * right,
  }


def _normal(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
  return shape[0] ** -0.5 * jax.random.normal(key, shape)


def _affine(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  highest = jax.lax.Precision.HIGHEST
  return jnp.einsum('BPD,DC->BPC', x, kernel, precision=highest) + bias


def step_logits(
  params: Params,
  hidden: jax.Array,  # [B, T, D]
  step_ends: jax.Array,  # [B, P]; what padding points at is masked later
  likelihood: jax.Array | None = None,  # [B, P, 2], if the head reads it
) -> jax.Array:  # [B, P, C] float32
  """Returns the head's outputs at the end of each step."""
  return head_logits(params, take_tokens(hidden, step_ends), likelihood)


def head_logits(
  params: Params,
  at_ends: jax.Array,  # [B, P, D] hidden states at the end of each step
  likelihood: jax.Array | None = None,  # [B, P, 2], if the head reads it
) -> jax.Array:  # [B, P, C] float32
  """Returns the head's outputs."""
  x = at_ends.astype(jnp.float32)
  if 'hidden_kernel' in params:
    x = jax.nn.relu(_affine(x, params['hidden_kernel'], params['hidden_bias']))
  logits = _affine(x, params['kernel'], params['bias'])
  if 'likelihood_kernel' not in params:
    return logits
  return _affine(likelihood, params['likelihood_kernel'], logits)


def step_probabilities(
  logits: jax.Array,  # [B, P, C]
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """Turns the head's outputs into the probability that a step is right.

  logit: the sigmoid. two_class (wrong, right): the softmax of class 1.
  three_class (wrong, neutral, right): 1 - P(wrong), because a neutral step has
  no error. regression: the value itself, clipped to [0, 1].
  """
  if head.kind == 'logit':
    return jax.nn.sigmoid(logits[..., 0])
  if head.kind == 'regression':
    return jnp.clip(logits[..., 0], 0.0, 1.0)
  # Rounded probabilities of two classes can add up to a little more than 1.
  return jnp.minimum(jax.nn.softmax(logits)[..., 1:].sum(-1), 1.0)

"""Fits a head to a frozen backbone's features of steps.

    features and targets of all steps -> L-BFGS -> the head's parameters

All steps are one batch, so there is neither a learning rate nor an order.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prm_jax.models import HeadConfig, head_logits, init_head
from prm_jax.training import losses

Params = dict[str, Any]

ITERATIONS = 200  # at most
FLAT = 1e-5  # norm of the slope at which a fit ends


class StepData(NamedTuple):
  """Holds the features and targets of S steps."""

  states: jax.Array  # [S, D] float32
  likelihood: jax.Array  # [S, 2] float32
  labels: jax.Array  # [S] in [0, 1]
  weights: jax.Array  # [S], 0 leaves a step out
  trials: jax.Array  # [S]


@functools.partial(jax.jit, static_argnames=('head', 'states', 'loss'))
def fit_head(
  key: jax.Array,
  data: StepData,
  head: HeadConfig,
  states: bool,
  loss: str,
  decay: float,
) -> Params:
  """Returns the parameters of a head that minimise its loss.

  The loss is the weighted mean over the steps, plus decay / 2 times the squared
  kernels of the features in units of their standard deviation.

  Args:
    key: random key of a hidden layer's first weights.
    states: whether the head reads the states; their weights are 0 if not.
    loss: one of losses.LOSSES that needs no chains.
  """
  weights = data.weights[:, None]
  total = jnp.maximum(weights.sum(), 1e-6)

  def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = (weights * x).sum(0) / total
    deviation = jnp.sqrt((weights * (x - mean) ** 2).sum(0) / total)
    # What is constant up to rounding says nothing, and is not magnified.
    varies = deviation > 1e-5 * (jnp.abs(mean) + 1e-6)
    return mean, jnp.where(varies, deviation, 1.0)

  mean, deviation = moments(data.states)
  _, scale = moments(data.likelihood)
  scaled = (data.states - mean) / deviation * states
  likelihood = data.likelihood / scale
  batch = {
    'step_labels': data.labels[None],
    'step_weights': data.weights[None],
    'step_trials': data.trials[None],
  }
  counted = losses.step_loss_weights(loss, batch)
  norm = jnp.maximum(counted.sum(), 1e-6)

  def objective(params: Params) -> jax.Array:
    logits = head_logits(params, scaled[None], likelihood[None])
    values = losses.step_loss(loss, logits, batch, head, margin=0.0)
    squares = sum(
      (x**2).sum() for name, x in params.items() if 'kernel' in name
    )
    return (counted * values).sum() / norm + decay / 2 * squares

  solver = optax.lbfgs()

  def improve(carry: tuple) -> tuple:
    params, state, _, count = carry
    value, slope = optax.value_and_grad_from_state(objective)(
      params, state=state
    )
    change, state = solver.update(
      slope, state, params, value=value, grad=slope, value_fn=objective
    )
    better = optax.apply_updates(params, change)
    # At the optimum the line search divides nothing by nothing.
    fine = jnp.isfinite(optax.tree.norm(better))
    params = jax.tree.map(lambda a, b: jnp.where(fine, a, b), better, params)
    return params, state, optax.tree.norm(slope) * fine, count + 1

  def is_steep(carry: tuple) -> jax.Array:
    _, _, steepness, count = carry
    return (steepness > FLAT) & (count < ITERATIONS)

  params = init_head(key, data.states.shape[1], head)
  if head.likelihood:
    params['likelihood_kernel'] *= scale[:, None]
  params, *_ = jax.lax.while_loop(
    is_steep, improve, (params, solver.init(params), jnp.inf, 0)
  )
  # From units of standard deviations back to those of the features.
  if head.likelihood:
    params['likelihood_kernel'] /= scale[:, None]
  name = 'hidden_' if head.hidden else ''
  kernel = params[f'{name}kernel'] * states / deviation[:, None]
  params[f'{name}kernel'] = kernel
  params[f'{name}bias'] -= mean @ kernel
  return params

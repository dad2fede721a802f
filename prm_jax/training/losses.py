"""Computes step losses and the language-model loss, as pure functions.

A step loss maps the head's outputs to one value per step; `step_loss_weights`
says how much each step counts. The two are separate so that a batch that is
cut into microbatches is normalised by the weight of the whole. Labels and
weights come from `data/targets.py`; `objective.py` adds the losses up.

Every function checks the shapes of its arguments, also under `jax.jit`, and
raises AssertionError with its own name: broadcasting would hide the mistake.
"""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import optax

from prm_jax.models.config import HeadConfig
from prm_jax.runtime import checks

Batch = Mapping[str, jax.Array]

LOSSES = ('bce', 'cross_entropy', 'mse', 'beta_binomial', 'ranking')
HEADS_OF_LOSS = {
  'bce': ('logit',),
  'cross_entropy': ('two_class', 'three_class'),
  'mse': ('regression', 'logit'),
  'beta_binomial': ('two_class',),
  # Only differences between values count, so they leave [0, 1], where those of
  # a regression head are clipped to ties.
  'ranking': ('logit',),
}


def bce(
  logits: jax.Array,  # [B, P, 1]
  labels: jax.Array,  # [B, P] in [0, 1], soft or hard
) -> jax.Array:  # [B, P]
  """Computes binary cross-entropy, -y log s(x) - (1 - y) log(1 - s(x))."""
  chex.assert_rank(labels, 2, custom_message='bce: labels')
  chex.assert_shape(logits, (*labels.shape, 1), custom_message='bce: logits')
  return optax.sigmoid_binary_cross_entropy(logits[..., 0], labels)


def cross_entropy(
  logits: jax.Array,  # [B, P, C], C is 2 or 3
  labels: jax.Array,  # [B, P] in [0, 1]
) -> jax.Array:  # [B, P]
  """Computes softmax cross-entropy against the label's class.

  Two classes take a soft label: -(1 - y) log p_0 - y log p_1. Three classes
  (wrong, neutral, right) take the nearest of 0, 1/2 and 1.
  """
  chex.assert_rank(labels, 2, custom_message='cross_entropy: labels')
  chex.assert_shape(
    logits, (*labels.shape, {2, 3}), custom_message='cross_entropy: logits'
  )
  if logits.shape[-1] == 2:
    target = jnp.stack([1.0 - labels, labels], -1)
  else:
    target = jax.nn.one_hot(jnp.floor(2.0 * labels + 0.5), 3)
  return optax.softmax_cross_entropy(logits, target)


def mse(
  predictions: jax.Array,  # [B, P] in [0, 1], or unbounded for regression
  labels: jax.Array,  # [B, P] in [0, 1]
) -> jax.Array:  # [B, P]
  """Computes (x - y)^2, the Brier score if x is a probability."""
  chex.assert_rank(labels, 2, custom_message='mse: labels')
  chex.assert_shape(
    predictions, labels.shape, custom_message='mse: predictions'
  )
  return (predictions - labels) ** 2


def _log_rising(
  x: jax.Array,  # [...] > 0
  m: jax.Array,  # [...] >= 0
) -> jax.Array:  # [...]
  """Returns log [Gamma(x + m) / Gamma(x)] in full float32 precision.

  Where x is large the two log-gammas agree in all their digits, and their
  difference has none left; there Stirling's series gives the ratio directly.
  """
  large = jnp.maximum(x, 16.0)
  tail = 1.0 / (12.0 * (large + m)) - 1.0 / (12.0 * large)
  stirling = (
    (large - 0.5) * jnp.log1p(m / large) + m * (jnp.log(large + m) - 1.0) + tail
  )
  gamma = jax.scipy.special.gammaln
  small = jnp.minimum(x, 16.0)
  return jnp.where(x > 16.0, stirling, gamma(small + m) - gamma(small))


def beta_binomial(
  logits: jax.Array,  # [B, P, 2]: log b and log a of Beta(a, b)
  successes: jax.Array,  # [B, P], n p where the label is a rate
  trials: jax.Array,  # [B, P]
) -> jax.Array:  # [B, P]
  """Computes -log p(rollout counts) under a Beta prior on the success rate.

  -log [ C(n, k) B(k + a, n - k + b) / B(a, b) ], a = exp(x_1), b = exp(x_0);
  the mean a / (a + b) is softmax(x)_1, so the two-class read-out applies. As
  a + b grows it becomes the binomial likelihood; noisy labels of few rollouts
  weigh less than sure ones of many.
  """
  chex.assert_rank(successes, 2, custom_message='beta_binomial: successes')
  chex.assert_shape(
    trials, successes.shape, custom_message='beta_binomial: trials'
  )
  chex.assert_shape(
    logits, (*successes.shape, 2), custom_message='beta_binomial: logits'
  )
  # exp stays finite in float32; a prior of 3e6 pseudo-counts is a binomial.
  b, a = jnp.exp(jnp.clip(logits, -15.0, 15.0)).transpose(2, 0, 1)
  n, k = trials, successes
  log_choose = -jnp.log1p(n) - jax.scipy.special.betaln(n - k + 1.0, k + 1.0)
  return (
    _log_rising(a + b, n) - _log_rising(a, k) - _log_rising(b, n - k)
  ) - log_choose


def ranking(
  values: jax.Array,  # [B, P] one score per step
  labels: jax.Array,  # [B, P], < 1/2 is wrong
  known: jax.Array,  # [B, P] bool, step takes part
  chain_ids: jax.Array,  # [B, P], compared within a row
  margin: float,
) -> jax.Array:  # [B, P], 0 where the step is wrong or unknown
  """Computes the comparative loss of PQM (Li and Li, 2024).

  For the t-th right step c_t of a chain with wrong steps W:
  -log exp(Q_ct) / (sum_{q <= t} exp(Q_cq) + sum_{w in W} exp(Q_w + margin)).
  Later right steps rank above earlier ones, and all above every wrong one.
  """
  chex.assert_rank(values, 2, custom_message='ranking: values')
  chex.assert_shape(
    [labels, known, chain_ids],
    values.shape,
    custom_message='ranking: labels, known, chain_ids',
  )
  right = known & (labels >= 0.5)
  wrong = known & (labels < 0.5)
  P = values.shape[1]
  same = chain_ids[:, :, None] == chain_ids[:, None, :]
  earlier = same & right[:, None, :] & jnp.tri(P, dtype=bool)  # [B, P, P]
  others = same & wrong[:, None, :]
  rivals = jnp.where(others, values[:, None, :] + margin, values[:, None, :])
  rivals = jnp.where(earlier | others, rivals, -1e30)
  loss = jax.nn.logsumexp(rivals, axis=-1) - values
  return jnp.where(right, loss, 0.0)


def step_loss(
  name: str,
  logits: jax.Array,  # [B, P, C]
  batch: Batch,
  head: HeadConfig,
  margin: float,
) -> jax.Array:  # [B, P]
  """Returns the loss of that name at every step, not yet weighted.

  Args:
    name: one of LOSSES.
    margin: how far a right step should score above a wrong one; ranking only.
  """
  labels = batch['step_labels']
  chex.assert_equal_shape(
    [labels, batch['step_weights']],
    custom_message='step_loss: step_labels, step_weights',
  )
  chex.assert_shape(
    logits, (*labels.shape, None), custom_message='step_loss: logits'
  )
  # A masked step's logits may be infinite, and 0 times their derivative NaN.
  logits = jnp.where(batch['step_weights'][..., None] > 0, logits, 0.0)
  if name == 'bce':
    return bce(logits, labels)
  if name == 'cross_entropy':
    return cross_entropy(logits, labels)
  if name == 'mse':
    x = logits[..., 0]
    return mse(x if head.kind == 'regression' else jax.nn.sigmoid(x), labels)
  if name == 'beta_binomial':
    trials = batch['step_trials']
    return beta_binomial(logits, jnp.round(labels * trials), trials)
  known = batch['step_weights'] > 0
  return ranking(logits[..., 0], labels, known, batch['chain_ids'], margin)


def step_loss_weights(name: str, batch: Batch) -> jax.Array:  # [B, P]
  """Says how much each step counts; the loss is divided by their sum.

  Beta-binomial needs counts: steps without them have weight 0. Ranking is a
  mean over the right steps of a chain, then over chains (PQM).
  """
  weights = batch['step_weights']
  chex.assert_rank(weights, 2, custom_message='step_loss_weights: step_weights')
  if name == 'beta_binomial':
    chex.assert_shape(
      batch['step_trials'],
      weights.shape,
      custom_message='step_loss_weights: step_trials',
    )
    return weights * (batch['step_trials'] > 0)
  if name == 'ranking':
    right = (weights > 0) & (batch['step_labels'] >= 0.5)
    ids = batch['chain_ids']
    chex.assert_shape(
      ids, weights.shape, custom_message='step_loss_weights: chain_ids'
    )
    same = ids[:, :, None] == ids[:, None, :]
    in_chain = (same & right[:, None, :]).sum(-1)
    return jnp.where(right, 1.0 / jnp.maximum(in_chain, 1), 0.0)
  return weights


def check_loss(name: str, head: HeadConfig) -> None:
  """Raises UserError unless `name` is a loss that reads this head."""
  if name not in LOSSES:
    checks.fail('loss.name', name, f'expected one of {", ".join(LOSSES)}')
  if head.kind not in HEADS_OF_LOSS[name]:
    checks.fail(
      'loss.name',
      name,
      f'does not read head.kind={head.kind!r}: use '
      f'{" or ".join(HEADS_OF_LOSS[name])}',
    )

"""Every loss compared with arithmetic written out here, in float64 Python."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import HeadConfig
from prm_jax.models.config import HEADS
from prm_jax.runtime.errors import UserError
from prm_jax.training import losses

LN2 = math.log(2)
beta_binomial = jax.jit(losses.beta_binomial)
# One head for every loss, and one more where a loss reads two.
PAIRS = [
  ('bce', 'logit'),
  ('cross_entropy', 'two_class'),
  ('cross_entropy', 'three_class'),
  ('mse', 'regression'),
  ('mse', 'logit'),
  ('beta_binomial', 'two_class'),
  ('ranking', 'logit'),
]


def column(*values):
  """Values of consecutive steps as [1, P, 1] logits."""
  return jnp.asarray(values, jnp.float32)[None, :, None]


def row(*values):
  """Values of consecutive steps as [1, P]."""
  return jnp.asarray(values, jnp.float32)[None]


def close(actual, expected, rtol=1e-5, atol=1e-6):
  np.testing.assert_allclose(np.asarray(actual), expected, rtol, atol)


def test_bce_by_hand():
  # sigma(ln 3) = 3/4; a soft label of 1/4 mixes both losses, 1 to 3.
  x = math.log(3)
  actual = losses.bce(column(0, x, x, x), row(1, 1, 0, 0.25))
  right, wrong = math.log(4 / 3), math.log(4)
  close(actual, [[LN2, right, wrong, 0.25 * right + 0.75 * wrong]])


def test_bce_of_sure_logits_is_linear_not_infinite():
  close(losses.bce(column(100, -100), row(0, 1)), [[100, 100]])


def test_two_class_cross_entropy_by_hand():
  # exp: 1, 3 -> p = 1/4, 3/4
  logits = jnp.broadcast_to(jnp.array([0, math.log(3)]), (1, 3, 2))
  right, wrong = math.log(4 / 3), math.log(4)
  actual = losses.cross_entropy(logits, row(1, 0, 0.5))
  close(actual, [[right, wrong, (right + wrong) / 2]])


def test_three_class_cross_entropy_takes_the_nearest_class():
  # exp: 1, 2, 5 -> p = 1/8, 2/8, 5/8 of wrong, neutral, right
  logits = jnp.broadcast_to(jnp.log(jnp.array([1.0, 2.0, 5.0])), (1, 7, 3))
  wrong, neutral, right = math.log(8), math.log(4), math.log(8 / 5)
  labels = row(0, 0.5, 1, 0.2, 0.3, 0.7, 0.8)
  close(
    losses.cross_entropy(logits, labels),
    [[wrong, neutral, right, wrong, neutral, neutral, right]],
  )


def test_mse_by_hand():
  close(losses.mse(row(0.5, 1, 3), row(1, 0.25, 0)), [[0.25, 0.5625, 9]])


def test_mse_reads_a_logit_as_its_probability_and_regression_as_it_is():
  batch = {'step_labels': row(1, 0.5), 'step_weights': row(1, 1)}
  logits = column(math.log(3), 2)
  logit, regression = (
    losses.step_loss('mse', logits, batch, HeadConfig(kind), 0.0)
    for kind in ('logit', 'regression')
  )
  sigmoid_of_2 = 1 / (1 + math.exp(-2))
  close(logit, [[1 / 16, (sigmoid_of_2 - 0.5) ** 2]])
  close(regression, [[(math.log(3) - 1) ** 2, 2.25]])


def beta_binomial_by_lgamma(log_a, log_b, k, n):
  a, b, gamma = math.exp(log_a), math.exp(log_b), math.lgamma
  choose = gamma(n + 1) - gamma(k + 1) - gamma(n - k + 1)
  above = gamma(k + a) + gamma(n - k + b) - gamma(n + a + b)
  return -(choose + above - gamma(a) - gamma(b) + gamma(a + b))


def beta_binomial_by_products(log_a, log_b, k, n):
  """The same by rising factorials, which are exact where log-gammas cancel."""

  def rising(x, m):
    return sum(math.log(x + i) for i in range(m))

  a, b = math.exp(log_a), math.exp(log_b)
  choose = math.log(math.comb(n, k))
  return rising(a + b, n) - choose - rising(a, k) - rising(b, n - k)


def counts(log_a, log_b, n):
  """Logits [1, 65, 2] and all k of n trials, the last one repeated."""
  logits = jnp.broadcast_to(jnp.array([log_b, log_a]), (1, 65, 2))
  k = np.minimum(np.arange(65.0), n)
  return logits, row(*k), jnp.full((1, 65), float(n))


def losses_by_count(log_a, log_b, n):
  """The loss of each k from 0 to n of n trials, [n + 1]."""
  return beta_binomial(*counts(log_a, log_b, n))[0, : n + 1]


def test_beta_binomial_of_a_flat_prior_is_uniform():
  # With a = b = 1 every k has the same probability, 1 / (n + 1).
  close(losses_by_count(0, 0, 8), [math.log(9)] * 9)


@pytest.mark.parametrize('log_a', [-3.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize('log_b', [-1.0, 0.5, 4.0])
def test_beta_binomial_is_its_formula(log_a, log_b):
  actual = losses_by_count(log_a, log_b, 16)
  expected = [beta_binomial_by_lgamma(log_a, log_b, k, 16) for k in range(17)]
  close(actual, expected, atol=3e-5)


@pytest.mark.parametrize('log_b', [-15.0, 0.0, 2.7, 2.8, 6.0, 10.0, 15.0])
@pytest.mark.parametrize('n', [1, 16, 64])
def test_beta_binomial_sums_to_1(log_b, n):
  """Also where a + b is so large that log-gammas cancel completely."""
  nll = losses_by_count(log_b - 0.5, log_b, n)
  close(jnp.exp(-nll).sum(), 1.0, rtol=1e-4)


slope_at_5 = jax.jit(
  jax.grad(lambda x, k, n: losses.beta_binomial(x, k, n)[0, 5])
)


@pytest.mark.parametrize('log_a', [2.0, 2.8, 5.0, 10.0, 14.9])
def test_beta_binomial_with_large_counts(log_a):
  log_b, n = log_a - 0.5, 16
  close(
    losses_by_count(log_a, log_b, n),
    [beta_binomial_by_products(log_a, log_b, k, n) for k in range(n + 1)],
    atol=5e-5,
  )
  slope = slope_at_5(*counts(log_a, log_b, n))
  step = 1e-5
  expected = [
    (
      beta_binomial_by_products(log_a + da, log_b + db, 5, n)
      - beta_binomial_by_products(log_a - da, log_b - db, 5, n)
    )
    / (2 * step)
    for da, db in ((0, step), (step, 0))
  ]
  close(slope[0, 5], expected, rtol=1e-4)


def test_a_sure_beta_binomial_is_a_binomial():
  p, n = 0.25, 8
  total = 14.0
  nll = losses_by_count(total + math.log(p / (1 - p)), total, n)
  binomial = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
  close(jnp.exp(-nll), binomial, rtol=1e-4)


def test_beta_binomial_reads_a_rate_as_counts():
  batch = {
    'step_labels': row(0.375, 1),
    'step_trials': row(8, 4),
    'step_weights': row(1, 1),
  }
  logits = jnp.broadcast_to(jnp.array([0.3, 1.2]), (1, 2, 2))
  actual = losses.step_loss(
    'beta_binomial', logits, batch, HeadConfig('two_class'), 0.0
  )
  expected = [
    beta_binomial_by_lgamma(1.2, 0.3, k, n) for k, n in ((3, 8), (4, 4))
  ]
  close(actual, [expected], atol=3e-5)


def ranking_by_loops(values, labels, known, chains, margin):
  """PQM's formula, one right step at a time."""
  out = [0.0] * len(values)
  for i, value in enumerate(values):
    if not (known[i] and labels[i] >= 0.5):
      continue
    total = 0.0
    for j, other in enumerate(values):
      if not known[j] or chains[i] != chains[j]:
        continue
      if labels[j] >= 0.5 and j <= i:
        total += math.exp(other)
      elif labels[j] < 0.5:
        total += math.exp(other + margin)
    out[i] = -math.log(math.exp(value) / total)
  return out


def test_ranking_by_hand():
  # Right, wrong, right: exp(Q) = 2, 3, 4 and a margin of ln 5.
  values = jnp.log(row(2, 3, 4))
  actual = losses.ranking(
    values, row(1, 0, 1), jnp.ones((1, 3), bool), row(1, 1, 1), math.log(5)
  )
  close(actual, [[math.log(17 / 2), 0, math.log(21 / 4)]])


def test_ranking_of_packed_chains_equals_loops():
  """Each row has two chains, some unknown steps, and padding at the end."""
  rng = np.random.default_rng(0)
  values = rng.normal(size=(2, 10))
  labels = rng.random((2, 10)).round(1)
  known = rng.random((2, 10)) < 0.8
  chains = np.array([[1] * 5 + [2] * 3 + [0] * 2, [1] * 2 + [2] * 7 + [0]])
  known &= chains > 0
  actual = losses.ranking(
    jnp.asarray(values), labels, jnp.asarray(known), jnp.asarray(chains), 4.0
  )
  expected = [
    ranking_by_loops(*args, 4.0)
    for args in zip(values, labels, known, chains, strict=True)
  ]
  assert np.count_nonzero(expected) > 5
  close(actual, expected, rtol=1e-5, atol=1e-5)


def test_ranking_weights_are_a_mean_over_right_steps_then_over_chains():
  batch = {
    'step_labels': row(1, 0, 1, 1, 0.9, 0, 1, 0),
    'step_weights': row(1, 1, 1, 0, 1, 1, 1, 0),
    'chain_ids': jnp.array([[1, 1, 1, 1, 2, 3, 3, 0]]),
  }
  actual = losses.step_loss_weights('ranking', batch)
  # Chain 1 has two right steps that count, chains 2 and 3 one each.
  close(actual, [[0.5, 0, 0.5, 0, 1, 0, 1, 0]])


def test_a_step_of_one_half_is_right_in_ranking_and_in_its_weights():
  """Neutral steps may be, and rates of 4 of 8."""
  labels, known = row(0.5, 0), row(True, True)
  chains = jnp.zeros((1, 2), int)
  loss = losses.ranking(row(0.0, 3.0), labels, known > 0, chains, 4.0)
  close(loss, [[math.log1p(math.exp(7)), 0]])
  batch = {'step_labels': labels, 'step_weights': row(1, 1)}
  batch['chain_ids'] = chains
  close(losses.step_loss_weights('ranking', batch), [[1, 0]])


def test_weights_of_the_other_losses():
  batch = {'step_weights': row(1, 0.5, 0, 1), 'step_trials': row(8, 0, 4, 1)}
  for name in ('bce', 'cross_entropy', 'mse'):
    close(losses.step_loss_weights(name, batch), [[1, 0.5, 0, 1]])
  close(losses.step_loss_weights('beta_binomial', batch), [[1, 0, 0, 1]])


def packed_batch():
  """A row of ten steps from two chains; every third step is masked."""
  mask = np.arange(10) % 3 > 0
  trials = np.array([4, 8, 2, 5, 8, 8, 1, 3, 8, 4])
  successes = np.array([1, 7, 0, 5, 6, 3, 1, 3, 2, 0])
  return {
    'step_labels': row(*(successes / trials)),
    'step_weights': row(*mask),
    'step_trials': row(*(trials * mask)),
    'chain_ids': jnp.array([[1] * 5 + [2] * 5]),
  }


@functools.partial(jax.jit, static_argnums=(0, 1))
@functools.partial(jax.value_and_grad, argnums=2)
def weighted(name, head, logits, batch):
  """The weighted sum of a loss, and its gradient for the logits."""
  values = losses.step_loss(name, logits, batch, head, 4.0)
  weights = losses.step_loss_weights(name, batch)
  return jnp.where(weights > 0, weights * values, 0.0).sum()


@pytest.mark.parametrize(('name', 'kind'), PAIRS)
@pytest.mark.parametrize('garbage', [3.0, 1e30, math.inf, -math.inf, math.nan])
def test_a_masked_step_changes_nothing(name, kind, garbage):
  """Neither its label nor its logits change the loss or the gradient."""
  batch, head = packed_batch(), HeadConfig(kind)
  masked = batch['step_weights'] == 0
  logits = jax.random.normal(jax.random.key(0), (1, 10, HEADS[kind]))
  expected = weighted(name, head, logits, batch)
  assert abs(float(expected[0])) > 0.1
  assert float(jnp.abs(expected[1]).max()) > 1e-3

  touched = jnp.where(masked[..., None], garbage, logits)
  relabelled = batch | {
    'step_labels': jnp.where(
      masked, 1 - batch['step_labels'], batch['step_labels']
    )
  }
  actual = weighted(name, head, touched, relabelled)
  np.testing.assert_array_equal(actual[0], expected[0])
  np.testing.assert_array_equal(actual[1], expected[1])
  assert not np.asarray(actual[1])[np.asarray(masked)].any()


@pytest.mark.parametrize(('name', 'kind'), PAIRS)
def test_each_loss_falls_when_a_right_step_scores_higher(name, kind):
  batch = packed_batch() | {'step_labels': row(*[1.0, 0.0] * 5)}
  head = HeadConfig(kind)
  logits = jnp.zeros((1, 10, HEADS[kind]))
  _, slope = weighted(name, head, logits, batch)
  assert slope[0, 4, -1] < 0


@pytest.mark.parametrize(
  ('function', 'shapes'),
  [
    (losses.bce, [(2, 3, 2), (2, 3)]),
    (losses.bce, [(2, 3, 1), (3,)]),
    (losses.cross_entropy, [(2, 3, 1), (2, 3)]),
    (losses.mse, [(2, 3, 1), (2, 3)]),  # would broadcast to [2, 2, 3]
    (losses.beta_binomial, [(2, 3, 2), (2, 3), (2, 1)]),
    (losses.ranking, [(2, 3), (2, 3), (2, 3), (1, 3), ()]),
  ],
)
def test_a_wrong_shape_is_named(function, shapes):
  """Also under jit, where broadcasting would go unseen."""
  arrays = [jnp.ones(shape) for shape in shapes]
  for call in (function, jax.jit(function)):
    with pytest.raises(AssertionError, match=rf'{function.__name__}: \w+'):
      call(*arrays)


def test_a_wrong_shape_in_a_batch_is_named():
  batch, head = packed_batch(), HeadConfig('two_class')
  with pytest.raises(AssertionError, match='step_loss: logits'):
    losses.step_loss('bce', jnp.ones((1, 9, 1)), batch, head, 0.0)
  for name, key in (('beta_binomial', 'step_trials'), ('ranking', 'chain_ids')):
    with pytest.raises(AssertionError, match=f'step_loss_weights: {key}'):
      losses.step_loss_weights(name, batch | {key: jnp.ones((1, 1))})


def test_check_loss():
  with pytest.raises(UserError, match=r"loss.name='nll': expected one of bce"):
    losses.check_loss('nll', HeadConfig())
  with pytest.raises(UserError, match=r"'bce': .* head\.kind='two_class'"):
    losses.check_loss('bce', HeadConfig('two_class'))
  with pytest.raises(UserError, match=r"='ranking': .*'regression': use logit"):
    losses.check_loss('ranking', HeadConfig('regression'))
  accepted = []
  for name in losses.LOSSES:
    for kind in HEADS:
      try:
        losses.check_loss(name, HeadConfig(kind))
      except UserError:
        continue
      accepted.append((name, kind))
  assert sorted(accepted) == sorted(PAIRS)

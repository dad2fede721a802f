"""Log-probabilities of chosen tokens against those of all, and their use."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.data.encoding import DIGITS, WORDS
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  init_head,
  init_params,
  lm_logits,
  step_likelihood,
  step_logits,
  step_probabilities,
  token_logprobs,
  token_terms,
)
from prm_jax.models.likelihood import TOKENS_PER_PART
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import run_module

B, T, D = 3, TOKENS_PER_PART + 9, 16
PARENTS = jnp.tile(jnp.arange(-1, T - 1), (B, 1))
MODEL = TransformerConfig(30, D, 1, 2, 1, 16, tie_embeddings=False)


def some_inputs():
  """hidden [B, T, D], tokens [B, T]."""
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(B, T, D)), jnp.float32)
  return hidden, jnp.asarray(rng.integers(0, 30, (B, T)), jnp.int32)


@functools.cache
def backbone():
  return init_params(jax.random.key(0), MODEL)


def all_logprobs(params, hidden, tokens):
  """Log-probabilities of all tokens but the first, [B, T - 1]."""
  logprobs = jax.nn.log_softmax(lm_logits(params, MODEL, hidden))
  return jnp.take_along_axis(logprobs[:, :-1], tokens[:, 1:, None], -1)[..., 0]


def wanted_tokens(share):
  rng = np.random.default_rng(1)
  wanted = rng.random((B, T)) < share
  wanted[:, 0] = False
  wanted[1] = False  # a row that wants none
  return jnp.asarray(wanted)


@pytest.mark.parametrize('share', [0.0, 0.1, 0.6, 1.0])
def test_chosen_log_probabilities_are_those_of_all(share):
  hidden, tokens = some_inputs()
  wanted = wanted_tokens(share)
  actual = token_logprobs(backbone(), MODEL, hidden, tokens, PARENTS, wanted)
  expected = np.zeros((B, T))
  expected[:, 1:] = all_logprobs(backbone(), hidden, tokens)
  np.testing.assert_allclose(actual, expected * np.asarray(wanted), atol=1e-5)


def test_gradients_equal_those_of_all_log_probabilities():
  hidden, tokens = some_inputs()
  wanted = wanted_tokens(0.5)
  weights = jnp.asarray(np.random.default_rng(2).normal(size=(B, T)))

  def chosen(params, hidden):
    terms = token_terms(params, MODEL, hidden, tokens, PARENTS, wanted)
    return (weights * terms.logprobs + weights**2 * terms.entropy).sum()

  def plain(params, hidden):
    values = all_logprobs(params, hidden, tokens)
    log_p = jax.nn.log_softmax(lm_logits(params, MODEL, hidden))[:, :-1]
    entropy = -(jnp.exp(log_p) * log_p).sum(-1)
    terms = weights[:, 1:] * values + weights[:, 1:] ** 2 * entropy
    return (wanted[:, 1:] * terms).sum()

  ours = jax.jit(jax.grad(chosen, (0, 1)))(backbone(), hidden)
  theirs = jax.jit(jax.grad(plain, (0, 1)))(backbone(), hidden)
  assert jnp.abs(theirs[0]['lm_head']).max() > 0.1
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs
  )


def test_terms_by_hand():
  """The first token is followed by two, as it has a branch; then padding."""
  first, second = [1.0, 2.0, 5.0], [3.0, 0.5, 0.5]
  words = dataclasses.replace(MODEL, vocab_size=3, d_model=3)
  table = {'lm_head': jnp.eye(3)}  # states are logits
  hidden = jnp.log(jnp.array([[first, second, second, second]]))
  tokens = jnp.array([[0, 2, 1, 1]])

  def terms(*parents):
    known = jnp.array([parents])
    return token_terms(table, words, hidden, tokens, known, known > -2)

  branch, chain = terms(-1, 0, 0, -1), terms(-1, 0, 1, -1)
  np.testing.assert_allclose(
    branch.logprobs, [[0, np.log(5 / 8), np.log(2 / 8), 0]], rtol=1e-6
  )
  np.testing.assert_allclose(
    chain.logprobs, [[0, np.log(5 / 8), np.log(0.5 / 4), 0]], rtol=1e-6
  )
  of_first, of_second = (
    -sum(p * np.log(p) for p in np.array(weights) / np.sum(weights))
    for weights in (first, second)
  )
  np.testing.assert_allclose(
    branch.entropy, [[0, of_first, of_first, 0]], rtol=1e-5
  )
  np.testing.assert_allclose(
    chain.entropy, [[0, of_first, of_second, 0]], rtol=1e-5
  )


def test_arrays_that_would_be_broadcast_are_refused():
  hidden, tokens = some_inputs()
  with pytest.raises(AssertionError, match='token_terms: parents, wanted'):
    token_terms(
      backbone(), MODEL, hidden, tokens, PARENTS[:1], wanted_tokens(1.0)
    )


def test_a_distribution_of_one_word_has_no_entropy():
  words = dataclasses.replace(MODEL, vocab_size=4, d_model=4)
  hidden = jnp.array([[[200.0, 0, 0, 0], [0, 0, 0, 0]]])
  parents = jnp.array([[-1, 0]])
  terms = token_terms(
    {'lm_head': jnp.eye(4)}, words, hidden, parents * 0, parents, parents == 0
  )
  assert terms.logprobs[0, 1] == terms.entropy[0, 1] == 0


def test_no_array_holds_the_logits_of_all_tokens():
  """Neither in the forward pass nor in the gradient."""
  hidden, tokens = some_inputs()
  wanted = wanted_tokens(1.0)
  model = dataclasses.replace(MODEL, vocab_size=200)
  params = init_params(jax.random.key(0), model)

  def summed(params, hidden):
    terms = token_terms(params, model, hidden, tokens, PARENTS, wanted)
    return (terms.logprobs + terms.entropy).sum()

  lowered = jax.jit(jax.grad(summed, (0, 1))).lower(params, hidden)
  sizes = [
    math.prod(map(int, shape.split('x')))
    for shape in re.findall(r'tensor<((?:\d+x)+)f32>', lowered.as_text())
    for shape in [shape.rstrip('x')]
  ]
  assert max(sizes) == TOKENS_PER_PART * 200 < B * T * 200


@pytest.mark.slow
@pytest.mark.parametrize(
  ('platform', 'cases'),
  [
    ('cpu', ['8,32,16,2,2,2', '4,32,16,1,1,8', '8,30,16,1,4,2']),
    ('cpu', ['3,30,16,2,2,2', '4,30,16,1,2,4', '8,32,18,1,4,2']),
    ('gpu', ['8,32,16,2,2,2', '3,30,16,2,2,2', '8,32,18,1,4,2']),
  ],
)
def test_devices_share_rows_and_words(platform, cases):
  """Also rows, words and widths that the devices do not divide."""
  found = run_module('tests.models.likelihood_on_devices', platform, *cases)
  assert found.keys() == {*cases}
  assert all(largest < 1e-5 for largest in found.values())


def test_step_likelihood_by_hand():
  hidden, tokens = some_inputs()
  kinds = np.zeros((B, T), np.int8)
  # Row 0: a prompt of 4 tokens; steps end at 9, 70 and 80. Row 2 begins with a
  # step, as candidates of a shared prompt do.
  kinds[0, [5, 9, 12, 40, 70]] = DIGITS
  kinds[0, [6, 7, 75]] = kinds[2, [1, 2]] = WORDS
  rows = Rows(
    tokens,
    jnp.tile(jnp.arange(T), (B, 1)),
    jnp.full((B, T), T - 1),
    PARENTS,
    jnp.asarray(kinds),
    jnp.array([[9, 70, 80, 0], [0, 0, 0, 0], [2, 5, 0, 0]]),
    jnp.array([[4, 10, 71, 0], [0, 0, 0, 0], [0, 3, 0, 0]]),
  )
  actual = np.asarray(step_likelihood(backbone(), MODEL, hidden, rows))
  logprobs = np.zeros((B, T))
  logprobs[:, 1:] = all_logprobs(backbone(), hidden, tokens)
  expected = np.zeros((B, 4, 2))
  for row, step, digits, others in (
    (0, 0, [5, 9], [6, 7]),
    (0, 1, [12, 40, 70], []),
    (0, 2, [], [75]),
    (2, 0, [], [1, 2]),
  ):
    for kind, places in enumerate((digits, others)):
      expected[row, step, kind] = logprobs[row, places].sum()
  np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize('kind', ['logit', 'two_class', 'three_class'])
@pytest.mark.parametrize('hidden', [0, 5])
def test_a_new_head_is_a_rule_on_the_sums(kind, hidden):
  head = HeadConfig(kind, hidden, likelihood=True)
  params = init_head(jax.random.key(0), D, head)
  digits, words = np.array([[0.0, -6.0, -20.0]]), np.array([[-9.0, 0.0, -4.0]])
  likelihood = jnp.asarray(np.stack([digits, words], -1))
  states, _ = some_inputs()
  logits = step_logits(params, states[:1], jnp.array([[1, 5, 9]]), likelihood)
  actual = step_probabilities(logits, head)
  log_odds = 3 + 0.5 * digits + 0.05 * words
  expected = 1 / (1 + np.exp(-log_odds))
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_regression_head_cannot_read_likelihood():
  with pytest.raises(UserError, match='likelihood=True: gives log-odds'):
    HeadConfig('regression', likelihood=True)

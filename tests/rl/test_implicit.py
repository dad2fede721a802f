"""An implicit PRM: its rewards by hand, and that it learns what is right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.models import TransformerConfig, forward, init_params, lm_logits
from prm_jax.rl import credit
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.findings import Findings
from prm_jax.rl.implicit import (
  ImplicitPrm,
  OnlinePrm,
  make_objective,
  to_outcomes,
)
from prm_jax.rl.rating import Rater
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.views import Reference, View
from prm_jax.training.loop import compile_train_step, make_step
from prm_jax.training.train_state import NO_LORA, make_init, split_params
from tests.rl.written_chains import FORMAT, PROBLEM, STEP, WHOLE, sample_of
from tests.shared.tiny_sampling import one_device

pytestmark = pytest.mark.once

MODEL = TransformerConfig(
  vocab_size=110, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=24
)
BETA, LONGEST = 0.5, 32
WRONG = [*FORMAT.tokenizer.encode('1 + 2 = 4'), STEP_END, PROBLEM_END]
SAMPLES = [sample_of(x) for x in (WHOLE, WRONG, [*STEP, STEP_END, *STEP[:2]])]


@functools.cache
def params_of(seed):
  """Random parameters whose log-probabilities differ from token to token."""
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(seed), MODEL)
  return params | {'embed_tokens': 5 * params['embed_tokens']}


@pytest.fixture(scope='module')
def view():
  """Reads two rows per call, so that the second call of three is not full."""
  return View('logprobs', MODEL, one_device(), 2)


@pytest.fixture(scope='module')
def reference(view):
  return Reference(params_of(0), view)


@pytest.fixture(scope='module')
def prm(view):
  return ImplicitPrm('phi', {'backbone': params_of(1)}, view, BETA)


@pytest.fixture(scope='module')
def rated(prm, reference):
  return Rater(FORMAT, prm, reference).rate([PROBLEM], [SAMPLES], learn=True)


@jax.jit
def logits_at(params, tokens, t):
  """Logits [V] at t; later tokens do not change them."""
  positions, last = (
    jnp.arange(LONGEST)[None],
    jnp.full((1, LONGEST), LONGEST - 1),
  )
  hidden = forward(params, MODEL, tokens, positions, last)
  return lm_logits(params, MODEL, hidden)[0, t]


def logprob(params, ids, t):
  """Log-probability of the token at t after those before it, in float64."""
  tokens = jnp.asarray([[*ids[:t], *[0] * (LONGEST - t)]])
  logits = np.asarray(logits_at(params, tokens, t - 1), np.float64)
  return logits[ids[t]] - np.log(np.exp(logits).sum())


@pytest.fixture(scope='module')
def ratios():
  """log pi_phi / pi_ref of all tokens that each sample wrote."""
  found = []
  for sample in SAMPLES:
    ids = [*sample.ids, *sample.written.tokens.tolist()]
    found.append(
      [
        logprob(params_of(1), ids, t) - logprob(params_of(0), ids, t)
        for t in range(len(sample.ids), len(ids))
      ]
    )
  return found


def test_rewards_by_hand(rated, ratios):
  """A step's own tokens and its end count; tokens after the last do not."""
  steps = [(0, 6), (6, 12)], [(0, 6)], [(0, 6)]
  for b, ends in enumerate(steps):
    paid = [BETA * sum(ratios[b][start:end]) for start, end in ends]
    assert abs(paid[0]) > 0.1
    count = len(ends)
    np.testing.assert_allclose(rated.rewards[b, :count], paid, atol=1e-5)
    assert not rated.rewards[b, count:].any()
    expected = 1 / (1 + np.exp(-np.cumsum(paid)))
    np.testing.assert_allclose(rated.episodes[b].scores, expected, atol=1e-5)


def test_the_advantages_are_those_of_prime(rated, ratios):
  """Rewards to go, each minus the mean of the others' steps."""
  rows = rated.rows
  none = np.zeros(rows.tokens.shape, np.float32)
  findings = Findings(
    rated.rewards,
    rows.step_mask,
    rows.step_ends,
    rows.outcomes,
    rows.written,
    none,
  )
  found, _ = credit.token_advantages(
    findings,
    none,
    1.0,
    3,
    RewardConfig('raw', outcome_weight=1.0),
    AdvantageConfig('rloo', 'to_go', 'group'),
  )
  first, second = (BETA * sum(ratios[0][i : i + 6]) for i in (0, 6))
  others = [BETA * sum(ratios[b][:6]) for b in (1, 2)]
  start = len(SAMPLES[0].ids)
  advantages = np.asarray(found)[0, start : start + 13]
  # The outcomes are 1, 0, 0.
  last = second - np.mean(others)
  np.testing.assert_allclose(advantages[6:12], 1 + last, atol=1e-5)
  whole = first - np.mean(others) + last
  np.testing.assert_allclose(advantages[:6], 1 + whole, atol=1e-5)
  np.testing.assert_allclose(advantages[12], 1, atol=1e-6)  # the end


def test_the_loss_in_closed_form(rated, ratios):
  """All tokens that were written count, also the end and a cut-off step."""
  objective = make_objective(MODEL, BETA)
  batch = jax.tree.map(jnp.asarray, to_outcomes(rated.rows))
  params = {'backbone': params_of(1)}
  q = BETA * np.array([sum(each) for each in ratios])
  right = np.array([1, 0, 0])
  expected = np.where(right, np.log1p(np.exp(-q)), np.log1p(np.exp(q)))
  loss, metrics = objective.loss(params, batch, objective.norms(batch))
  assert metrics['loss'] == loss == pytest.approx(expected.mean(), abs=1e-5)
  assert metrics['accuracy'] == pytest.approx(np.mean((q > 0) == right))
  # A chain without written tokens does not count.
  nothing = batch._replace(written=batch.written.at[2].set(False))
  loss, _ = objective.loss(params, nothing, objective.norms(nothing))
  assert loss == pytest.approx(expected[:2].mean(), abs=1e-5)


@pytest.fixture(scope='module')
def online(view):
  """Makes PRMs that start as the reference."""
  mesh, optimizer = one_device(), optax.adam(1e-2)
  init = make_init(MODEL, None, optimizer)
  state = jax.jit(init)(jax.random.key(0), params_of(0))
  step = make_step(
    make_objective(MODEL, BETA),
    lambda params: split_params(params, None, NO_LORA, lm_loss=True),
    MODEL,
    optimizer,
    optax.constant_schedule(1e-2),
    3,  # parts of a batch
  )
  step = compile_train_step(step, state, mesh)
  return lambda: OnlinePrm(
    'phi', jax.tree.map(jnp.copy, state), step, view, BETA, mesh, 3
  )


def test_it_learns_what_is_right(online, reference):
  rater = Rater(FORMAT, online(), reference)
  before = rater.rate([PROBLEM], [SAMPLES])
  assert not before.rewards.any()  # it is the reference
  assert [e.scores[-1] for e in before.episodes] == [0.5] * 3
  steps = [
    rater.rate([PROBLEM], [SAMPLES], learn=True).metrics for _ in range(10)
  ]
  assert steps[0]['prm_loss'] == pytest.approx(np.log(2))
  assert steps[0]['prm_accuracy'] == pytest.approx(2 / 3)
  losses = [each['prm_loss'] for each in steps]
  assert losses == sorted(losses, reverse=True)
  assert steps[-1]['prm_accuracy'] == 1
  after = rater.rate([PROBLEM], [SAMPLES])
  assert not any(name.startswith('prm_') for name in after.metrics)
  right, wrong, cut = (e.scores[-1] for e in after.episodes)
  assert right > 0.6 and wrong < 0.4 and cut < 0.4
  assert int(rater.state.step) == 10


def test_it_learns_before_it_scores(online, reference):
  rater = Rater(FORMAT, online(), reference)
  rated = rater.rate([PROBLEM], [SAMPLES], learn=True)
  assert rated.rewards.any()
  again = rater.rate([PROBLEM], [SAMPLES])
  np.testing.assert_array_equal(rated.rewards, again.rewards)


def test_a_broken_prm_gives_nan(view, reference):
  table = params_of(1)['embed_tokens'].at[STEP_END].set(jnp.nan)
  broken = params_of(1) | {'embed_tokens': table}
  prm = ImplicitPrm('phi', {'backbone': broken}, view, BETA)
  rated = Rater(FORMAT, prm, reference).rate([PROBLEM], [SAMPLES])
  assert all(np.isnan(e.scores).any() for e in rated.episodes)
  assert np.isnan(rated.rewards[rated.rows.step_mask]).all()
  assert not rated.rewards[~rated.rows.step_mask].any()


def test_the_divergence_from_the_reference(rated):
  gaps = [
    logprob(params_of(0), [*s.ids, *s.written.tokens.tolist()], t)
    - s.written.logprobs[t - len(s.ids)]
    for s in SAMPLES
    for t in range(len(s.ids), len(s.ids) + len(s.written.tokens))
  ]
  expected = np.mean(np.exp(gaps) - 1 - gaps)
  assert rated.metrics == {'kl_to_reference': pytest.approx(expected, rel=1e-4)}


def test_a_reference_in_the_memory_of_the_host(view, reference, rated):
  """It is kept there, and gives the same log-probabilities."""
  away = Reference(params_of(0), view, offload=True)
  kinds = {x.sharding.memory_kind for x in jax.tree.leaves(away.backbone)}
  assert kinds == {'pinned_host'}
  there, here = (x.read(rated.rows) for x in (away, reference))
  np.testing.assert_array_equal(
    there.reference_logprobs, here.reference_logprobs
  )

"""Chains in rows of trees: every token is there, and an update is the same."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from prm_jax.data.tries import unique_tokens
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.rl import implicit, losses
from prm_jax.rl.implicit import Outcomes
from prm_jax.rl.objective import (
  Experience,
  Minibatch,
  PolicyLossConfig,
  find_needed,
  make_objective,
  view_tokens,
)
from prm_jax.rl.trees import Layout, interleaved, lay_out, part_of
from prm_jax.training.loop import make_step
from prm_jax.training.train_state import NO_LORA, make_init, split_params
from tests.shared.packed import trees_of

pytestmark = pytest.mark.once

MODEL = TransformerConfig(
  vocab_size=5, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)
VALUE = HeadConfig('regression')
C, T = 8, 12
RATE = 1e3  # so large that the change is not lost in the parameters


@st.composite
def random_groups(draw):
  """Draws C chains [C, T] and their lengths; many begin equally or are equal.

  Some are prefixes of others, some padding.
  """
  token = st.integers(0, 4)
  chains = []
  while len(chains) < C:
    begin = draw(st.lists(token, min_size=1, max_size=6))
    for _ in range(draw(st.integers(1, C - len(chains)))):
      chain = begin + draw(st.lists(token, max_size=6))
      if chains and draw(st.integers(0, 3)) == 0:
        other = draw(st.sampled_from(chains))
        chain = other[: draw(st.integers(0, len(other)))]
      chains.append(chain)
  tokens = np.zeros((C, T), np.int32)
  for row, chain in zip(tokens, chains, strict=True):
    row[: len(chain)] = chain
  return tokens, np.array([len(chain) for chain in chains], np.int32)


@hypothesis.given(
  random_groups(),
  st.sampled_from([1, 2, 4]),
  st.sampled_from([1, 2]),
  st.lists(st.booleans(), min_size=C, max_size=C),
)
def test_each_part_has_the_tokens_of_its_chains_once(
  groups, parts, devices, kept
):
  tokens, lengths = groups
  trees = lay_out(tokens, lengths, parts, Layout(devices), np.array(kept))
  assert all(x.dtype == np.int32 for x in trees)
  assert trees.tokens.size <= tokens.size
  assert len(trees.tokens) % (parts * devices) == 0
  found = 0
  for number in range(parts):
    part = part_of(trees, number, parts)
    flat, depths = part.tokens.ravel(), part.positions.ravel()
    B, L = part.tokens.shape
    above = np.where(
      part.parents < 0, -1, part.parents + L * np.arange(B)[:, None]
    ).ravel()
    mine = range(number, C, parts)
    for c, nodes in zip(mine, part.nodes, strict=True):
      n = lengths[c] if kept[c] else 0
      assert (nodes[n:] == -1).all()
      np.testing.assert_array_equal(flat[nodes[:n]], tokens[c, :n])
      np.testing.assert_array_equal(depths[nodes[:n]], np.arange(n))
      np.testing.assert_array_equal(above[nodes[:n]], [-1, *nodes][:n])
    used = np.unique(part.nodes[part.nodes >= 0])
    np.testing.assert_array_equal(used, np.flatnonzero(depths >= 0))
    if B == 1:
      chains = [tokens[c, : lengths[c]] for c in mine if kept[c]]
      assert part.count() == unique_tokens(chains)
    found += part.count()
  assert found == trees.count()


def test_a_prompt_is_there_once():
  """A row holds as many chains as it can, and few shapes are made."""
  rng = np.random.default_rng(0)
  tokens = np.tile(rng.integers(0, 100, 384).astype(np.int32), (8, 1))
  tokens[:, 100:] = rng.integers(0, 100, (8, 284))
  trees = lay_out(tokens, np.full(8, 300))
  assert trees.tokens.shape == (2, 1536)
  assert trees.count() == 2 * 100 + 8 * 200
  # The length of rows does not change with what chains share.
  same = lay_out(np.tile(tokens[:1], (8, 1)), np.full(8, 300))
  assert same.tokens.shape == (1, 1536)
  # A row for each device, or where attention costs more than all else.
  for layout in (Layout(devices=8), Layout(costly=128)):
    apart = lay_out(tokens, np.full(8, 300), layout=layout)
    assert apart.tokens.shape == (8, 384)
  nothing = lay_out(tokens, np.full(8, 300), 2, kept=np.zeros(8, bool))
  assert nothing.tokens.shape == (2, 1536)
  assert nothing.count() == 0


def test_neighbours_come_into_the_same_part():
  order = interleaved(8, 2)
  assert order[::2].tolist() == [0, 1, 2, 3]
  assert order[1::2].tolist() == [4, 5, 6, 7]


@functools.cache
def make_state():
  init = make_init(MODEL, VALUE, optax.sgd(RATE))
  state = jax.jit(init)(jax.random.key(0))
  embedded = 4 * state.params['backbone']['embed_tokens']
  backbone = state.params['backbone'] | {'embed_tokens': embedded}
  return state._replace(params=state.params | {'backbone': backbone})


VIEW = jax.jit(functools.partial(view_tokens, model=MODEL))


def close(found, expected):
  """Compares to 1e-5 of each number, or of the largest one of all."""
  expected = jax.tree.map(np.asarray, expected)
  largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * largest)


@hypothesis.given(random_groups())
def test_the_view_is_that_of_the_chains_alone(groups):
  state = make_state()
  expected = VIEW(state.params, trees_of(*groups))
  close(VIEW(state.params, lay_out(*groups)), expected)


MORE = {'kl_weight': 0.1, 'entropy_weight': 0.05}


@functools.cache
def step_of(microbatches, reduce, whole=True):
  config = PolicyLossConfig(reduce=reduce, **MORE if whole else {})
  head = VALUE if whole else None
  return jax.jit(
    make_step(
      make_objective(MODEL, config, T),
      lambda params: split_params(params, head, NO_LORA, lm_loss=True),
      MODEL,
      optax.sgd(RATE),
      optax.constant_schedule(RATE),
      microbatches,
    )
  )


def moves(step, state, batch):
  """Returns the change of all parameters, and the metrics."""
  after, metrics = step(state, batch)
  return jax.tree.map(jnp.subtract, after.params, state.params), metrics


# An example's groups take shapes of their own, which are compiled.
FEWER = hypothesis.settings(max_examples=10)


@pytest.mark.slow
@FEWER
@hypothesis.given(
  random_groups(),
  st.sampled_from(losses.REDUCTIONS),
  st.sampled_from([1, 2]),
  st.integers(0, 2**16),
)
def test_an_update_is_that_of_the_chains_alone(
  groups, reduce, microbatches, seed
):
  (tokens, lengths), state = groups, make_state()
  rng = np.random.default_rng(seed)
  at = np.arange(T)
  written = (at >= 1) & (at < lengths[:, None]) & (rng.random((C, 1)) < 0.8)
  seen = np.asarray(VIEW(state.params, trees_of(*groups)).logprobs)
  noise = rng.normal(size=(5, C, T)).astype(np.float32)
  chains = Experience(
    written, *(seen + 0.3 * noise[:2]), *noise[2:4], 0.1 * noise[4]
  )
  kept = written.any(1)
  expected = moves(
    step_of(1, reduce), state, Minibatch(trees_of(*groups), chains)
  )
  trees = lay_out(tokens, lengths, microbatches, kept=kept)
  found = moves(step_of(microbatches, reduce), state, Minibatch(trees, chains))
  close(found[0], expected[0])
  for name, value in expected[1].items():
    near = pytest.approx(float(value), rel=1e-5, abs=1e-5)
    assert float(found[1][name]) == near, name


@FEWER
@hypothesis.given(
  random_groups(),
  st.sampled_from(losses.REDUCTIONS),
  st.lists(st.booleans(), min_size=C, max_size=C),
)
def test_chains_without_advantages_cost_nothing_and_change_nothing(
  groups, reduce, idle
):
  (tokens, lengths), state = groups, make_state()
  backbone = {'backbone': state.params['backbone']}
  state = state._replace(params=backbone)
  rng, at = np.random.default_rng(0), np.arange(T)
  written = (at >= 1) & (at < lengths[:, None])
  seen = np.asarray(VIEW(backbone, trees_of(*groups)).logprobs)
  sampled = seen + 0.3 * rng.normal(size=(C, T)).astype(np.float32)
  advantages = rng.normal(size=(C, T)).astype(np.float32)
  advantages[idle] = 0
  none = np.zeros((C, T), np.float32)
  chains = Experience(written, sampled, none, advantages, none, none)
  config = PolicyLossConfig()
  kept = find_needed(chains, config, has_values=False)
  assert not kept[idle].any()
  for more in (PolicyLossConfig(**MORE), config):
    every = find_needed(chains, more, has_values=more is config)
    np.testing.assert_array_equal(every, written.any(1))
  trees = lay_out(tokens, lengths, kept=kept)
  assert trees.count() <= lengths[kept].sum()
  step = step_of(1, reduce, whole=False)
  expected = moves(step, state, Minibatch(trees_of(*groups), chains))
  # However unlikely they were, where nothing is learned from them.
  unlikely = np.where(kept[:, None], sampled, -200).astype(np.float32)
  other = chains._replace(sampled_logprobs=unlikely)
  found = moves(step, state, Minibatch(trees, other))
  close(found[0], expected[0])
  for name in ('loss', 'policy_loss', 'clipped', 'grad_norm'):
    near = pytest.approx(float(expected[1][name]), rel=1e-5, abs=1e-5)
    assert float(found[1][name]) == near, name
  some = chains._replace(written=written & kept[:, None])
  only = Minibatch(trees_of(*groups), some)
  _, metrics = moves(step, state, only)
  for name in ('entropy', 'ratio', 'kl_to_sampled'):
    near = pytest.approx(float(metrics[name]), rel=1e-5, abs=1e-5)
    assert float(found[1][name]) == near, name


@hypothesis.given(random_groups(), st.integers(0, 2**16))
def test_an_implicit_prm_learns_what_it_learns_from_chains(groups, seed):
  (tokens, lengths), params = groups, make_state().params
  rng = np.random.default_rng(seed)
  at = np.arange(T)
  written = (at >= 1) & (at < lengths[:, None])
  rest = (
    written,
    rng.normal(size=(C, T)).astype(np.float32),
    (rng.random(C) < 0.5).astype(np.float32),
  )
  step = implicit_step()
  expected = step(params, Outcomes(trees_of(*groups), *rest))
  close(step(params, Outcomes(lay_out(tokens, lengths), *rest)), expected)


@functools.cache
def implicit_step():
  objective = implicit.make_objective(MODEL, 0.5)

  def loss(params, batch):
    return objective.loss(params, batch, objective.norms(batch))

  return jax.jit(jax.value_and_grad(loss, has_aux=True))

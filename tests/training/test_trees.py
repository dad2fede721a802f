"""Trains on raw PRM800K sessions, as trees and as flat chains.

Every batch is one session, so both runs see the same chains in each batch.
"""

import jax
import numpy as np
import optax
import pytest

from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import make_batches, pad_rows
from prm_jax.data.readers import read_chains
from prm_jax.data.targets import TargetConfig
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.training.objective import (
  LossConfig,
  ObjectiveConfig,
  batch_loss,
  norms,
)
from prm_jax.training.optim import OptimConfig, make_optimizer
from prm_jax.training.train_state import make_init
from tests.shared.real_data import shared

pytestmark = pytest.mark.once

FORMAT = make_format('bytes', 1152)
MODEL = TransformerConfig(
  FORMAT.tokenizer.vocab_size, 32, 2, n_heads=4, n_kv_heads=2, d_ff=64
)
OPTIM = OptimConfig(lr=3e-3, warmup=0, schedule='constant')
STEPS = 4  # one of each session
ROWS = 4
BCE = (LossConfig('bce', lm_weight=0.5), HeadConfig(likelihood=True))
RANKING = (LossConfig('ranking'), HeadConfig())


def batch_of(chains, loss, trees):
  config = BatchConfig(
    ROWS,
    row_length=1664,
    max_steps_per_row=96,
    seed=0,
    epochs=1,
    trees=trees,
    compare_steps=loss.name == 'ranking',
  )
  targets = TargetConfig(neutral='half')
  census = take_census(chains, FORMAT, targets, config)
  (batch,) = make_batches(census, config)
  return pad_rows(batch, ROWS)  # of one shape, which compiles once


def sessions():
  path = shared('format_samples/samples_prm800k.jsonl')
  chains, _ = read_chains(path, 'prm800k')
  found = {}
  for chain in chains:
    found.setdefault(chain.problem, []).append(chain)
  assert sorted(map(len, found.values())) == [4, 7, 7, 10]
  return list(found.values())


@pytest.mark.slow  # two shapes of batches, each compiled for each loss
@pytest.mark.parametrize(('loss', 'head'), [BCE, RANKING], ids=['bce', 'rank'])
def test_trees_train_like_their_chains(loss, head):
  trees = [batch_of(chains, loss, trees=True) for chains in sessions()]
  flat = [batch_of(chains, loss, trees=False) for chains in sessions()]
  computed = [
    sum((batch['positions'] >= 0).sum() for batch in batches)
    for batches in (flat, trees)
  ]
  assert computed[0] > 4 * computed[1]

  objective = ObjectiveConfig(MODEL, head, loss)
  optimizer = make_optimizer(OPTIM, STEPS)

  @jax.jit
  def gradient(params, batch):
    shares = norms(batch, loss)
    return jax.value_and_grad(batch_loss, has_aux=True)(
      params, batch, *shares, objective
    )

  @jax.jit
  def updated(params, grads, state):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  init = jax.jit(make_init(MODEL, head, optimizer, lm_loss=loss.lm_weight > 0))
  start = init(jax.random.key(0))
  runs = [(start.params, start.opt_state)] * 2
  for i in range(STEPS):
    batches = trees[i], flat[i]
    assert batches[0]['flat_tokens'].sum() == batches[1]['flat_tokens'].sum()
    found = [
      gradient(params, batch)
      for (params, _), batch in zip(runs, batches, strict=True)
    ]
    (_, ours), (_, theirs) = (values for values, _ in found)
    for name, value in ours.items():
      np.testing.assert_allclose(value, theirs[name], rtol=1e-4, err_msg=name)
    one, other = (jax.tree.leaves(grads) for _, grads in found)
    # The ranking loss does not depend on the head's bias: its gradient is 0 up
    # to rounding, so it has no digits to compare.
    least = 1e-3 * optax.tree.norm(other)
    for x, y in zip(one, other, strict=True):
      assert np.linalg.norm(x - y) <= 1e-4 * max(np.linalg.norm(y), least)
    runs = [
      updated(params, grads, state)
      for (params, state), (_, grads) in zip(runs, found, strict=True)
    ]

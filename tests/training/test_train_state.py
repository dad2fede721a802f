"""Which parameters are trained: adapters, and a head that learns first."""

import dataclasses

import jax
import numpy as np
import pytest

from prm_jax.models import HeadConfig, LoraConfig
from prm_jax.runtime.sharding import make_mesh, path_name
from prm_jax.training.loop import make_train_step
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import (
  NO_LORA,
  init_state,
  join_params,
  make_init,
  make_params,
  split_params,
)
from tests.shared import tiny_training

pytestmark = pytest.mark.once

LORA = LoraConfig(rank=2)
# With weight decay, which must not change frozen parameters either.
OPTIM = OptimConfig(lr=1e-2, warmup=0, schedule='constant', weight_decay=0.1)


def run_steps(lora, head_only_steps, steps):
  """Returns the first parameters, those after each step, and opt_state."""
  optimizer = make_optimizer(OPTIM, steps, head_only_steps)
  init = make_init(tiny_training.MODEL, HeadConfig(), optimizer, lora)
  step = jax.jit(
    make_train_step(
      ObjectiveConfig(tiny_training.MODEL, HeadConfig(), LossConfig(), lora),
      optimizer,
      make_schedule(OPTIM, steps),
      head_only_steps=head_only_steps,
    ),
  )
  state = jax.jit(init)(jax.random.key(0))
  params = [state.params]
  for i in range(steps):
    state, _ = step(state, tiny_training.batch(i))
    params.append(state.params)
  return params, state.opt_state


def moved(before, after):
  """Names of the leaves with any changed value."""
  changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
  leaves = jax.tree_util.tree_leaves_with_path(changed)
  return {path_name(path) for path, value in leaves if value}


def test_with_adapters_the_backbone_stays():
  (first, *_, last), opt_state = run_steps(LORA, 0, 3)
  names = moved(first, last)
  assert not {name for name in names if name.startswith('backbone/')}
  assert {name.split('/')[0] for name in names} == {'head', 'lora'}
  # All adapters learn, B from the first step and A from the second.
  assert sum(name.startswith('lora/') for name in names) == 2 * 7
  # The optimizer has moments for trained parameters only.
  moments = {
    path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(opt_state)
  }
  assert not {name for name in moments if 'backbone' in name}


def test_the_head_learns_first():
  params, _ = run_steps(NO_LORA, 2, 4)
  for before, after in ((0, 1), (1, 2)):
    names = moved(params[before], params[after])
    assert names == {'head/kernel', 'head/bias'}
  names = moved(params[2], params[3])
  assert {'head/kernel', 'backbone/embed_tokens'} <= names
  assert any('q_proj' in name for name in names)


def test_a_given_backbone_is_where_training_starts():
  optimizer = make_optimizer(OPTIM, 2)
  mesh = make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})
  for lora in (NO_LORA, LORA):
    init = make_init(tiny_training.MODEL, HeadConfig(), optimizer, lora)
    random = init_state(init, mesh, 0)
    given = jax.tree.map(lambda x: x + 1.0, random.params['backbone'])
    expected = jax.tree.map(np.asarray, given)
    state = init_state(init, mesh, 0, given)
    jax.tree.map(
      np.testing.assert_array_equal, state.params['backbone'], expected
    )
    np.testing.assert_array_equal(
      state.params['head']['kernel'], random.params['head']['kernel']
    )
    assert jax.tree.structure(state) == jax.tree.structure(random)


UNTIED = dataclasses.replace(tiny_training.MODEL, tie_embeddings=False)


@pytest.mark.parametrize(
  ('lm_weight', 'likelihood', 'param_dtype', 'stays'),
  [
    (0.0, False, 'float32', True),
    (0.0, False, 'bfloat16', True),
    (0.5, False, 'float32', False),
    (0.0, True, 'float32', False),
  ],
)
def test_an_unread_output_embedding_is_frozen(
  lm_weight, likelihood, param_dtype, stays
):
  """It has neither moments nor decay."""
  model = dataclasses.replace(UNTIED, param_dtype=param_dtype)
  head, optimizer = HeadConfig(likelihood=likelihood), make_optimizer(OPTIM, 2)
  init = make_init(model, head, optimizer, lm_loss=lm_weight > 0)
  schedule = make_schedule(OPTIM, 2)
  loss = LossConfig(lm_weight=lm_weight)
  objective = ObjectiveConfig(model, head, loss)
  step = make_train_step(objective, optimizer, schedule)
  state = jax.jit(init)(jax.random.key(0))
  after, _ = jax.jit(step)(state, tiny_training.batch(0))
  names = moved(state.params, after.params)
  assert ('backbone/lm_head' not in names) == stays
  assert 'backbone/embed_tokens' in names
  assert jax.tree.structure(state) == jax.tree.structure(after)
  kept = jax.tree_util.tree_leaves_with_path(state.opt_state)
  assert any('lm_head' in path_name(path) for path, _ in kept) != stays


@pytest.mark.parametrize('lora', [NO_LORA, LORA])
@pytest.mark.parametrize('lm_loss', [True, False])
def test_parts_join_to_what_was_split(lora, lm_loss):
  params = jax.eval_shape(
    lambda key: make_params(key, UNTIED, HeadConfig(), lora), jax.random.key(0)
  )
  trained, frozen = split_params(params, HeadConfig(), lora, lm_loss)
  assert set(trained) == (
    {'head', 'lora'} if lora.rank else {'backbone', 'head'}
  )
  assert join_params(trained, frozen) == params

"""What is trained and what stays: adapters, and a head that goes first."""

import jax
import numpy as np
import pytest

from prm_jax.models import HeadConfig, LoraConfig
from prm_jax.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.sharding import make_mesh, path_name
from prm_jax.train import LossConfig, make_train_step
from prm_jax.train_state import NO_LORA, init_state, make_init, trained_parts
from tests import tiny_training
from tests.tiny_training import COMPILE_FAST

LORA = LoraConfig(rank=2)
# Weight decay on: it must not move what is not trained either.
OPTIM = OptimConfig(lr=1e-2, warmup=0, schedule='constant', weight_decay=0.1)


def run_steps(lora, head_only_steps, steps):
  """The parameters before the first step and after each."""
  optimizer = make_optimizer(OPTIM, steps)
  init = make_init(tiny_training.MODEL, HeadConfig(), optimizer, lora)
  step = jax.jit(
    make_train_step(
      tiny_training.MODEL,
      HeadConfig(),
      LossConfig(),
      optimizer,
      make_schedule(OPTIM, steps),
      1,
      lora,
      head_only_steps,
    ),
    compiler_options=COMPILE_FAST,
  )
  state = jax.jit(init, compiler_options=COMPILE_FAST)(jax.random.key(0))
  params = [state.params]
  for i in range(steps):
    state, _ = step(state, tiny_training.batch(i))
    params.append(state.params)
  return params, state.opt_state


def moved(before, after):
  """Names of the leaves of which any value changed."""
  changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
  leaves = jax.tree_util.tree_leaves_with_path(changed)
  return {path_name(path) for path, value in leaves if value}


def test_with_adapters_the_backbone_stays():
  (first, *_, last), opt_state = run_steps(LORA, 0, 3)
  names = moved(first, last)
  assert not {name for name in names if name.startswith('backbone/')}
  assert {name.split('/')[0] for name in names} == {'head', 'lora'}
  # Every adapter learns: B from the first step, A from the second.
  assert sum(name.startswith('lora/') for name in names) == 2 * 7
  # The optimizer holds moments of what is trained only.
  moments = {
    path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(opt_state)
  }
  assert not {name for name in moments if 'backbone' in name}


def test_the_head_goes_first():
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


@pytest.mark.parametrize(
  ('lora', 'parts'),
  [(NO_LORA, ('backbone', 'head')), (LORA, ('head', 'lora'))],
)
def test_trained_parts(lora, parts):
  assert trained_parts(lora) == parts

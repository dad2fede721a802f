"""Adapters: what they add by hand, and what they leave unchanged."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import LoraConfig, attach, merge
from prm_jax.models.lora import TARGETS
from prm_jax.runtime.errors import UserError
from tests.models.plain_transformer import alone, params_of, run
from tests.models.plain_transformer import some_tokens as tokens_of
from tests.models.some_adapters import CONFIG, LORA, adapters, filled


def test_new_adapters_change_nothing():
  backbone = params_of(CONFIG)
  merged = merge(backbone, adapters(), LORA)
  jax.tree.map(np.testing.assert_array_equal, merged, backbone)
  layers = adapters()['layers']
  for name, (parent, inputs) in TARGETS.items():
    a = layers[parent][name]['a']
    std = np.prod(a.shape[1 : 1 + inputs]) ** -0.5
    # Three standard errors of the deviation of so many numbers.
    np.testing.assert_allclose(a.std(), std, rtol=3 / (2 * a.size) ** 0.5)


def test_merged_kernels_by_loops():
  """W + (6 / 3) A B, layer by layer, as matrices."""
  backbone, lora = params_of(CONFIG), filled(adapters())
  merged = merge(backbone, lora, LORA)
  for name, (parent, inputs) in TARGETS.items():
    kernel = np.asarray(backbone['layers'][parent][name]['kernel'])
    for i in range(CONFIG.n_layers):
      rows = int(np.prod(kernel.shape[1 : 1 + inputs]))
      a = np.asarray(lora['layers'][parent][name]['a'][i]).reshape(rows, 3)
      b = np.asarray(lora['layers'][parent][name]['b'][i]).reshape(3, -1)
      expected = kernel[i] + 2.0 * (a @ b).reshape(kernel.shape[1:])
      actual = merged['layers'][parent][name]['kernel'][i]
      np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    if name in ('q_proj', 'k_proj', 'v_proj'):
      bias = merged['layers'][parent][name]['bias']
      assert bias is backbone['layers'][parent][name]['bias']


def test_only_the_named_projections_have_adapters():
  some = dataclasses.replace(LORA, targets=('v_proj', 'down_proj'))
  lora = adapters(some)
  assert {k: set(v) for k, v in lora['layers'].items()} == {
    'self_attn': {'v_proj'},
    'mlp': {'down_proj'},
  }
  backbone = params_of(CONFIG)
  merged = merge(backbone, filled(lora), some)
  for name, (parent, _) in TARGETS.items():
    before = backbone['layers'][parent][name]['kernel']
    changed = (merged['layers'][parent][name]['kernel'] != before).any()
    assert changed == (name in some.targets)


def test_a_merged_backbone_runs_like_the_sum_of_both_paths():
  """x W' is x W + s (x A) B: checked through the whole model's output."""
  backbone, lora = params_of(CONFIG), filled(adapters(), 1)
  lora = jax.tree.map(lambda x: 0.1 * x, lora)
  inputs = alone(tokens_of((2, 9), 3))
  plain = run(backbone, CONFIG, *inputs)
  merged = run(merge(backbone, lora, LORA), CONFIG, *inputs)
  assert jnp.abs(merged - plain).max() > 0.1
  back = jax.tree.map(lambda x: x, lora)
  for adapters_of_parent in back['layers'].values():
    for adapter in adapters_of_parent.values():
      adapter['b'] = -adapter['b']
  undone = merge(merge(backbone, lora, LORA), back, LORA)
  np.testing.assert_allclose(
    run(undone, CONFIG, *inputs), plain, rtol=0, atol=1e-4
  )


def loss_of(lora, put, inputs):
  """Some scalar of the model's output, which depends on all adapters."""
  return jnp.sin(run(put(params_of(CONFIG), lora, LORA), CONFIG, *inputs)).sum()


def test_adapters_beside_the_kernels_are_those_in_them():
  """The output, and the gradient of each adapter."""
  inputs = alone(tokens_of((2, 9), 3))
  lora = jax.tree.map(lambda x: 0.1 * x, filled(adapters(), 1))
  inside, beside = (
    jax.value_and_grad(loss_of)(lora, put, inputs) for put in (merge, attach)
  )
  for found, expected in zip(
    jax.tree.leaves(beside), jax.tree.leaves(inside), strict=True
  ):
    assert jnp.abs(expected).max() > 1e-3
    largest = float(jnp.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (dict(rank=-1), 'rank=-1: expected >= 0'),
    (
      dict(rank=2, targets=('q_proj', 'gate')),
      "'gate'.*: expected one of q_proj",
    ),
    (dict(rank=2, targets=()), 'name a projection, or all'),
  ],
)
def test_wrong_configs(values, message):
  with pytest.raises(UserError, match=message):
    LoraConfig(**values)

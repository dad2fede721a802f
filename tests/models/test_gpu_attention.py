"""cuDNN's attention: masks compared with `packed_attention`, and its program.

Tests run without a GPU: values come from JAX's own implementation of the same
call, and the program is lowered for CUDA and read as text.
"""

import functools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from prm_jax.models import TransformerConfig, forward, init_params
from prm_jax.models.attention import AT_ONCE, attend_at_once, fused_on_gpu
from prm_jax.models.gpu_attention import is_fused
from prm_jax.models.packed_attention import packed_attention
from prm_jax.runtime.sharding import AXES
from tests.shared.packed import last_of

FUSED = '__cudnn$fmhaScaleBiasSoftmax'


def heads(seed, B, T, K, R, H):
  """Query, key and value, and the gradient of the result."""
  keys = jax.random.split(jax.random.key(seed), 4)
  shapes = (B, T, K, R, H), (B, T, K, H), (B, T, K, H), (B, T, K, R, H)
  return [
    jax.random.normal(key, shape)
    for key, shape in zip(keys, shapes, strict=True)
  ]


def packed_rows(T):
  """Three rows: of three chains and padding, of one, of two that fill it."""
  at = np.arange(T)
  return jnp.asarray(
    np.stack(
      [
        np.where(at < 30, 1, np.where(at < 150, 2, np.where(at < 190, 3, 0))),
        np.where(at < 131, 1, 0),
        np.where(at < 128, 1, 2),
      ]
    )
  )


def compare_with_blocks(attend, prefix):
  """Compares values and gradients with `packed_attention`."""
  T = 200
  segment_ids = packed_rows(T)
  last = last_of(segment_ids)
  *inputs, grad = heads(0, 3, T, 2, 3, 16)
  inputs[0] *= 16**-0.5
  real = (segment_ids > 0)[:, :, None, None, None]

  def values_and_gradients(attend):
    out, back = jax.vjp(
      lambda *x: jnp.where(real, attend(*x, last, prefix), 0.0), *inputs
    )
    return out, *back(grad)

  expected = values_and_gradients(packed_attention)
  for ours, theirs in zip(values_and_gradients(attend), expected, strict=True):
    # Sums of up to 200 float32 products in another order.
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize('with_prefix', [False, True])
@pytest.mark.parametrize(
  'attend',
  [functools.partial(fused_on_gpu, implementation='xla'), attend_at_once],
  ids=['fused', 'at once'],
)
def test_chains_of_a_row_are_kept_apart(attend, with_prefix):
  prefix = None
  if with_prefix:
    _, keys, values, _ = heads(1, 1, 40, 2, 3, 16)
    prefix = keys, values, jnp.arange(40)[None] < 33
  compare_with_blocks(attend, prefix)


def test_rows_see_the_prefix_of_their_group():
  """Two groups of two rows; each has a prefix of its own."""
  query, key, value, _ = heads(0, 4, 6, 1, 2, 8)
  _, keys, values, _ = heads(1, 2, 4, 1, 2, 8)
  last = last_of([[1, 1, 2, 2, 2, 0]] * 4)
  mask = jnp.asarray([[True, True, True, False], [True, False, False, False]])
  prefix = keys, values, mask
  together = fused_on_gpu(query, key, value, last, prefix, 'xla')
  expected = attend_at_once(query, key, value, last, prefix)
  np.testing.assert_allclose(together[:, :5], expected[:, :5], atol=1e-6)
  for row in range(4):
    own, group = slice(row, row + 1), slice(row // 2, row // 2 + 1)
    alone = fused_on_gpu(
      query[own],
      key[own],
      value[own],
      last[own],
      tuple(x[group] for x in prefix),
      'xla',
    )
    np.testing.assert_allclose(together[own, :5], alone[:, :5], atol=1e-6)


@pytest.mark.parametrize(
  ('dtype', 'length', 'head_dim', 'fits'),
  [
    ('bfloat16', 200, 64, True),
    ('float16', 128, 128, True),
    ('float32', 200, 64, False),
    ('bfloat16', 201, 64, False),
    ('bfloat16', 200, 60, False),
    ('bfloat16', 200, 256, False),
  ],
)
def test_which_queries_cudnn_supports(dtype, length, head_dim, fits):
  query = jax.ShapeDtypeStruct((1, length, 2, 2, head_dim), dtype)
  assert is_fused(query, length) == fits


def lowered(dtype, monkeypatch, length=256):
  """Lowers a model's loss and gradient for four GPUs, as text."""
  # JAX checks the version of cuDNN, which is not installed here.
  monkeypatch.setattr(
    fused_attention_stablehlo, 'check_cudnn_version', lambda: 91_000
  )
  config = TransformerConfig(
    64, 64, 2, 4, 2, 96, head_dim=16, dtype=dtype, remat='full'
  )
  params = jax.eval_shape(
    lambda key: init_params(key, config), jax.random.key(0)
  )
  row = jax.ShapeDtypeStruct((4, length), jnp.int32)
  mesh = AbstractMesh(
    (1, 2, 2),
    AXES,
    axis_types=(AxisType.Auto,) * 3,
    abstract_device=AbstractDevice('NVIDIA H100', None, 'gpu'),
  )
  with jax.sharding.use_abstract_mesh(mesh):
    return (
      jax.jit(jax.grad(lambda *x: forward(x[0], config, *x[1:]).sum()))
      .trace(params, row, row, row)
      .lower(lowering_platforms=('cuda',))
      .as_text()
    )


def test_a_model_on_gpus_calls_the_fused_kernel(monkeypatch):
  text = lowered('bfloat16', monkeypatch)
  calls = [line for line in text.splitlines() if f'@{FUSED}' in line]
  # Twice forward, because remat recomputes layers, and once backward.
  assert [f'@{FUSED}Backward(' in call for call in calls] == [
    False,
    False,
    True,
  ]
  for call in calls:
    assert r'mask_type\22: \22CAUSAL' in call
    # A device has two of the four rows, two of the four heads, one key head.
    query, key, value = re.findall(r'tensor<[^>]*>', call.split(' : (')[1])[:3]
    assert query == 'tensor<2x256x2x16xbf16>'
    assert key == value == 'tensor<2x256x1x16xbf16>'
    assert 'tensor<2x1x256x256xbf16>' in call  # the mask, for all heads
  assert 'x256x256xf32' not in text  # no scores


def test_a_float32_model_computes_all_scores_at_once(monkeypatch, caplog):
  text = lowered('float32', monkeypatch)
  assert '__cudnn' not in text
  # A device has two rows and one key head, which two query heads share.
  assert 'tensor<4x2x2x256x256xf32>' in text
  # Over layers, forward and backward; blocks would have loops of their own.
  assert text.count('stablehlo.while') == 2
  assert not caplog.records


def test_what_no_kernel_takes_is_said(monkeypatch, caplog):
  with caplog.at_level(logging.WARNING):
    text = lowered('float32', monkeypatch, AT_ONCE + 128)
  assert text.count('stablehlo.while') > 2
  said = f'attention of 4 rows of {AT_ONCE + 128} tokens goes block by block'
  assert said in caplog.text


def test_scoring_after_a_prompt_calls_the_fused_kernel(monkeypatch):
  monkeypatch.setattr(
    fused_attention_stablehlo, 'check_cudnn_version', lambda: 91_000
  )
  query, key, value, _ = (
    x.astype('bfloat16') for x in heads(0, 4, 64, 1, 2, 16)
  )
  _, keys, values, _ = (x.astype('bfloat16') for x in heads(1, 1, 32, 1, 2, 16))
  prefix = keys, values, jnp.ones((1, 32), bool)
  last = jnp.full((4, 64), 63)
  text = (
    jax.jit(fused_on_gpu)
    .trace(query, key, value, last, prefix)
    .lower(lowering_platforms=('cuda',))
    .as_text()
  )
  (call,) = [line for line in text.splitlines() if f'@{FUSED}' in line]
  assert r'mask_type\22: \22NO_MASK' in call
  assert 'tensor<4x96x1x16xbf16>' in call  # prefix and own keys

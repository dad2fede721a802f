"""cuDNN's attention: masks compared with `packed_attention`, and its program.

Tests run without a GPU: values come from JAX's own implementation of the same
call, and the program is lowered for CUDA and read as text.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from prm_jax.models import TransformerConfig, forward, init_params
from prm_jax.models.gpu_attention import cudnn_attention, is_fused
from prm_jax.models.packed_attention import packed_attention
from prm_jax.runtime.sharding import AXES

FUSED = '__cudnn$fmhaScaleBiasSoftmax'


def heads(seed, B, T, K, R, H):
  """Query, key and value, and the gradient of the result."""
  keys = jax.random.split(jax.random.key(seed), 4)
  shapes = (B, T, K, R, H), (B, T, K, H), (B, T, K, H), (B, T, K, R, H)
  return [
    jax.random.normal(key, shape)
    for key, shape in zip(keys, shapes, strict=True)
  ]


@pytest.mark.slow
def test_chains_of_a_row_are_kept_apart():
  """Three rows: of three chains and padding, of one, of two that fill it."""
  T = 200
  at = np.arange(T)
  segment_ids = jnp.asarray(
    np.stack(
      [
        np.where(at < 30, 1, np.where(at < 150, 2, np.where(at < 190, 3, 0))),
        np.where(at < 131, 1, 0),
        np.where(at < 128, 1, 2),
      ]
    )
  )
  *inputs, grad = heads(0, 3, T, 2, 3, 16)
  inputs[0] *= 16**-0.5
  real = (segment_ids > 0)[:, :, None, None, None]

  def values_and_gradients(attend):
    out, back = jax.vjp(lambda *x: jnp.where(real, attend(*x), 0.0), *inputs)
    return out, *back(grad)

  expected = values_and_gradients(
    lambda *x: packed_attention(*x, segment_ids, None)
  )
  found = values_and_gradients(
    lambda *x: cudnn_attention(*x, segment_ids, implementation='xla')
  )
  for ours, theirs in zip(found, expected, strict=True):
    # Sums of up to 200 float32 products in another order.
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


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
  assert is_fused(query) == fits


def lowered(dtype, monkeypatch):
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
  row = jax.ShapeDtypeStruct((4, 256), jnp.int32)
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


def test_a_float32_model_does_not_call_it(monkeypatch):
  assert '__cudnn' not in lowered('float32', monkeypatch)

"""Kernels in 8 and 4 bits: codes by brute force, products, gradients, steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from prm_jax.models import LoraConfig, attach, merge, quantize_backbone
from prm_jax.models.layers import linear, quantized_linear
from prm_jax.models.lora import TARGETS
from prm_jax.models.quantized import FORMS, LEVELS, dequantize, quantize
from prm_jax.runtime.errors import UserError
from tests.models.plain_transformer import alone, params_of, run, some_tokens
from tests.models.some_adapters import CONFIG, adapters, filled

ROWS = alone(some_tokens((2, 9)))


def drawn(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def stored_and_back(kernel, axis, form):
  return np.asarray(dequantize(*quantize(kernel, axis, form).values(), axis))


def test_levels_of_nf4_are_quantiles_of_the_normal_distribution():
  """As in QLoRA's code: eight above 0 and seven below, the largest is 1."""
  outermost = 0.9677083
  above = norm.ppf(np.linspace(outermost, 0.5, 9)[:-1])
  below = -norm.ppf(np.linspace(outermost, 0.5, 8)[:-1])
  expected = np.sort([*above, 0.0, *below]) / above.max()
  np.testing.assert_allclose(LEVELS, expected, atol=1e-6)


def test_nf4_takes_the_nearest_level_of_each_block():
  kernel = drawn(3, 128, 5)
  kernel[0, 64:, 1] = 0.0  # a block of zeros
  found = stored_and_back(kernel, 1, 'nf4')
  for i, j, block in np.ndindex(3, 5, 2):
    part = slice(64 * block, 64 * block + 64)
    own = kernel[i, part, j]
    levels = np.abs(own).max() * LEVELS
    nearest = levels[np.abs(own[:, None] - levels).argmin(1)]
    np.testing.assert_allclose(found[i, part, j], nearest, rtol=1e-6)


def test_int8_is_off_by_half_a_step_at_most():
  kernel = drawn(128, 6)
  off = np.abs(stored_and_back(kernel, 0, 'int8') - kernel)
  for block, own in zip(np.split(off, 2), np.split(kernel, 2), strict=True):
    step = np.abs(own).max(0) / 127
    assert (block <= step * 0.5001).all()
    assert (block.max(0) > step / 4).all()  # it is not the kernel itself


@pytest.mark.parametrize(('form', 'bits'), [('int8', 8.25), ('nf4', 4.25)])
def test_bits_of_a_weight(form, bits):
  stored = quantize(jnp.asarray(drawn(128, 8, 16), jnp.bfloat16), 0, form)
  scales = stored['scales'].astype(jnp.bfloat16)
  assert 8 * (stored['codes'].nbytes + scales.nbytes) == bits * 128 * 8 * 16


def test_a_short_axis_is_one_block_and_an_odd_one_is_refused():
  kernel = drawn(6, 4)
  assert quantize(kernel, 0, 'nf4')['scales'].shape == (3, 4)
  with pytest.raises(UserError, match='nf4: 5 weights in a row'):
    quantize(drawn(5, 4), 0, 'nf4')
  with pytest.raises(UserError, match='quantized'):
    LoraConfig(rank=0, quantized='nf4')


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('inputs', [1, 2])
def test_products_and_gradients_are_those_of_the_kernel_it_stands_for(
  form, inputs
):
  x, kernel = drawn(2, 3, 4, 8), drawn(*(4, 8)[2 - inputs :], 6, seed=1)
  codes, scales = quantize(kernel, inputs - 1, form).values()
  plain = dequantize(codes, scales, inputs - 1)

  def loss(x, product):
    return (product(x) ** 2).sum()

  def stored_product(x):
    return quantized_linear(x, codes, scales, inputs)

  def product(x):
    return linear(x, plain, inputs)

  np.testing.assert_array_equal(stored_product(x), product(x))
  gradients = (jax.grad(loss)(x, each) for each in (stored_product, product))
  np.testing.assert_allclose(*gradients, rtol=1e-6)


def restored(backbone, form):
  """The backbone with kernels that went through their codes."""
  none = LoraConfig(rank=3, quantized=form)
  nothing = jax.tree.map(jnp.zeros_like, adapters())
  return merge(quantize_backbone(backbone, form), nothing, none)


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
def test_a_model_reads_its_codes_and_merges_them(form):
  backbone, lora = params_of(CONFIG), filled(adapters())
  config = LoraConfig(rank=3, alpha=0.1, quantized=form)
  stored = quantize_backbone(backbone, form)
  for name, (parent, _) in TARGETS.items():
    assert {'codes', 'scales'} <= stored['layers'][parent][name].keys()
    assert 'kernel' not in stored['layers'][parent][name]
  found = run(attach(stored, lora, config), CONFIG, *ROWS)
  plain = restored(backbone, form)
  expected = run(attach(plain, lora, config), CONFIG, *ROWS)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  merged = run(merge(stored, lora, config), CONFIG, *ROWS)
  np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-4)
  exact = run(attach(backbone, lora, config), CONFIG, *ROWS)
  assert np.abs(found - exact).max() > 1e-4  # something was lost


@pytest.mark.parametrize('unroll', [1, CONFIG.n_layers])
def test_no_kernel_is_kept_for_the_gradient(unroll):
  """What is kept for a gradient has no array of a stack of whole kernels."""
  config = dataclasses.replace(CONFIG, scan_unroll=unroll)
  stored = quantize_backbone(params_of(config), 'nf4')
  lora = adapters()

  def loss(lora):
    backbone = attach(stored, lora, LoraConfig(rank=3, quantized='nf4'))
    return (run(backbone, config, *ROWS) ** 2).sum()

  kept = jax.eval_shape(lambda lora: jax.vjp(loss, lora)[1], lora)
  kernels = {
    x.shape[1:]
    for parent in params_of(config)['layers'].values()
    for projection in parent.values()
    if isinstance(projection, dict) and 'kernel' in projection
    for x in [projection['kernel']]
  }
  assert kernels
  shapes = [x.shape for x in jax.tree.leaves(kept)]
  assert shapes
  assert not [shape for shape in shapes if shape[-2:] in kernels]
  assert not [shape for shape in shapes if shape[-3:] in kernels]

"""The rules: which array is split along which axis, and which have errors.

Tests of sharded steps need eight devices and are in `tests/training`.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from prm_jax.models import HeadConfig, LoraConfig, TransformerConfig
from prm_jax.models.config import HEADS
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import (
  AXES,
  BATCH,
  RULES,
  batch_sharding,
  check_heads,
  constrain,
  make_mesh,
  path_name,
  shardings,
  spec_for,
)
from prm_jax.training.optim import OPTIMIZERS, OptimConfig, make_optimizer
from prm_jax.training.train_state import NO_LORA, make_init

MESH = AbstractMesh((2, 4, 2), AXES, axis_types=(AxisType.Auto,) * 3)


def state_shapes(kind='logit', lora=NO_LORA, optim='adamw', **model):
  """Shapes of a whole TrainState whose axes all divide by MESH."""
  config = TransformerConfig(64, 32, 2, 4, 2, 48, **model)
  optimizer = make_optimizer(OptimConfig(optim), 10)
  init = make_init(config, HeadConfig(kind), optimizer, lora)
  return jax.eval_shape(init, jax.random.key(0))


def by_path(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {path_name(path): leaf for path, leaf in leaves}


EVERYTHING = dict(tie_embeddings=False, qkv_bias=True, qk_norm=True)


@pytest.mark.parametrize('optim', OPTIMIZERS)
@pytest.mark.parametrize('model', [{}, EVERYTHING])
@pytest.mark.parametrize('kind', HEADS)
def test_every_leaf_of_a_state_has_a_rule(model, kind, optim):
  shapes = state_shapes(kind, optim=optim, **model)
  specs = by_path(shardings(shapes, MESH))
  assert specs.keys() == by_path(shapes).keys()
  for name, leaf in by_path(shapes).items():
    assert len(specs[name].spec) <= leaf.ndim
    for size, axis in zip(leaf.shape, specs[name].spec, strict=False):
      assert axis is None or size % MESH.shape[axis] == 0


def test_moments_are_sharded_like_their_parameters():
  specs = by_path(shardings(state_shapes(**EVERYTHING), MESH))
  params = [name for name in specs if name.startswith('params/')]
  assert len(params) == 19
  for name in params:
    tail = name.removeprefix('params/')
    moments = [other for other in specs if re.search(f'/[mn]u/{tail}$', other)]
    assert len(moments) == 2
    for other in moments:
      assert specs[other].spec == specs[name].spec


def test_every_rule_is_the_first_to_match_something():
  names = by_path(state_shapes(**EVERYTHING))
  names |= by_path(state_shapes(lora=LoraConfig(rank=4)))
  names |= by_path(state_shapes(optim='adafactor'))
  first = {
    next(i for i, (pattern, _) in enumerate(RULES) if re.search(pattern, name))
    for name in names
  }
  assert first == set(range(len(RULES)))


@pytest.mark.parametrize(
  ('name', 'shape', 'spec'),
  [
    ('embed_tokens', (64, 32), P('model', 'fsdp')),
    ('params/backbone/lm_head', (64, 32), P('model', 'fsdp')),
    (
      'layers/self_attn/k_proj/kernel',
      (2, 32, 4, 8),
      P(None, 'fsdp', 'model', None),
    ),
    ('layers/self_attn/v_proj/bias', (2, 4, 8), P(None, 'model', None)),
    (
      'layers/self_attn/o_proj/kernel',
      (2, 4, 8, 32),
      P(None, 'model', None, 'fsdp'),
    ),
    ('layers/mlp/up_proj/kernel', (2, 32, 48), P(None, 'fsdp', 'model')),
    ('layers/mlp/down_proj/kernel', (2, 48, 32), P(None, 'model', 'fsdp')),
    ('layers/input_layernorm/scale', (2, 32), P()),
    ('norm/scale', (32,), P()),
    ('head/kernel', (32, 2), P()),
    ('opt_state/1/0/count', (), P()),
    ('step', (), P()),
  ],
)
def test_specs_by_hand(name, shape, spec):
  actual = spec_for(name, shape, MESH)
  padded = (*actual, *(None,) * (len(spec) - len(actual)))
  assert padded == tuple(spec)


def test_axes_that_do_not_divide_are_dropped():
  # 3 key heads over model=2, 30 dimensions over fsdp=4
  name = 'layers/self_attn/k_proj/kernel'
  assert spec_for(name, (2, 32, 3, 8), MESH) == P(None, 'fsdp', None)
  assert spec_for(name, (2, 30, 4, 8), MESH) == P(None, None, 'model')
  assert spec_for('embed_tokens', (111, 30), MESH) == P(None, None)


@pytest.mark.parametrize(
  'name', ['layers/mlp/router/kernel', 'embed_tokens/kernel', 'step_size', 'q']
)
def test_a_path_without_a_rule_is_an_error(name):
  with pytest.raises(ValueError, match=f'no sharding rule matches {name!r}'):
    spec_for(name, (8, 8), MESH)


def test_the_error_names_the_whole_path():
  tree = {'backbone': {'norm': {'new_gain': jnp.ones(4)}}}
  with pytest.raises(ValueError, match="matches 'backbone/norm/new_gain'"):
    shardings(tree, MESH)


def test_a_large_array_that_stays_whole_is_named_once(caplog):
  kernel = jax.ShapeDtypeStruct((4, 2048, 1, 2048), 'float32')
  tree = {'layers': {'self_attn': {'k_proj': {'kernel': kernel}}}}
  for _ in range(2):
    placed = shardings(tree, MESH)
  (found,) = by_path(placed).values()
  assert found.spec == P(None, 'fsdp', None)
  assert [record.getMessage() for record in caplog.records] == [
    'whole on every device, as the mesh does not divide them: model=2: '
    'self_attn/k_proj/kernel (0.07 GB)'
  ]


def test_heads_that_do_not_divide_are_refused():
  check_heads(4, MESH)
  with pytest.raises(UserError, match=r'n_heads=3 does not divide .* one of 1'):
    check_heads(3, MESH)


def test_constrain_pins_what_divides():
  def pinned(shape, *spec):
    with jax.sharding.use_abstract_mesh(MESH):
      traced = jax.make_jaxpr(lambda x: constrain(x, *spec))(jnp.zeros(shape))
    (equation,) = traced.eqns
    actual = equation.params['sharding'].spec
    return (*actual, *(None,) * (len(shape) - len(actual)))

  assert pinned((16, 3, 6), BATCH, None, 'model') == (BATCH, None, 'model')
  # 12 rows do not divide over 2 * 4 devices, nor 5 columns over 2.
  assert pinned((12, 3, 6), BATCH, None, 'model') == (None, None, 'model')
  assert pinned((16, 3, 5), BATCH, None, 'model') == (BATCH, None, None)


def test_constrain_without_a_mesh_changes_nothing():
  x = jnp.ones((2, 3))
  assert constrain(x, BATCH, 'model') is x


def test_make_mesh_fills_in_the_rest():
  mesh = make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})
  assert mesh.axis_names == AXES
  assert mesh.shape['fsdp'] == jax.device_count()
  assert mesh.axis_types == (AxisType.Auto,) * 3
  assert batch_sharding(mesh).spec == P(BATCH)


@pytest.mark.parametrize(
  'sizes',
  [(1, 1, 1), (2, 2, 3), (1, -1, 3), (-1, -1, 8), (0, -1, 1), (-2, -4, 1)],
)
def test_a_mesh_that_does_not_fit_is_an_error(sizes):
  shape = dict(zip(AXES, sizes, strict=True))
  with pytest.raises(UserError, match=r'mesh replica=.* not fit 8 devices'):
    make_mesh(shape, jax.devices() * 8)

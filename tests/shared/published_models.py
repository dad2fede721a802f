"""Tiny random checkpoints in the layouts of the published PRMs.

Tokenizers of the real construction (byte-level BPE as Qwen2's and Llama 3's,
SentencePiece-like BPE as Mistral's) over a few words, and weights drawn from a
fixed seed, so that golden scores stay what they are.
"""

import json
from collections.abc import Iterator

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import (
  AddedToken,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

D, LAYERS, HEADS, KV_HEADS, FFN = 32, 2, 4, 2, 48
HEAD_DIM = D // HEADS

WORDS = (
  *('  ', '    ', '\n\n', ' = ', ' + ', '\\frac', '\\boxed', 'é', ' π', '10'),
  *(
    ' the',
    ' of',
    ' and',
    ' is',
    ' step',
    'Step',
    ' number',
    ' answer',
    ' Let',
  ),
  *(
    'Janet',
    ' eggs',
    ' per',
    ' day',
    ' She',
    ' sells',
    'What',
    ' How',
    ' many',
  ),
  *('.\n', '?\n', ' $', '$.', '123', '12', ' so', 'ing', ' ducks', 'assistant'),
  *('user', 'system', ' reason', ' final', 'Please', ' by', ' within', ' your'),
)
QWEN_PATTERN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
LLAMA3_PATTERN = QWEN_PATTERN.replace(r'|\p{N}|', r'|\p{N}{1,3}|')

# Qwen2.5-Math's, without its tools.
CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""  # noqa: E501
# Llama 3.1's, without its tools.
LLAMA3 = """{{- bos_token }}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- This block extracts the system message, if there is one. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("This model only supports plain turns") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""  # noqa: E501

QWEN_SPECIALS = ('<|endoftext|>', '<|im_start|>', '<|im_end|>', '<extra_0>')
LLAMA3_SPECIALS = (
  *('<|begin_of_text|>', '<|start_header_id|>', '<|end_header_id|>'),
  '<|eot_id|>',
)
SPECIALS_OF = {
  'qwen_prm': {'bos_token': None, 'eos_token': '<|im_end|>'},
  'skywork': {'bos_token': '<|im_start|>', 'eos_token': '<|endoftext|>'},
  # As transformers before 4.33 wrote it.
  'math_shepherd': {
    'bos_token': {'__type': 'AddedToken', 'content': '<s>', 'special': True},
    'eos_token': '</s>',
  },
  'rlhflow': {'bos_token': '<|begin_of_text|>', 'eos_token': '<|eot_id|>'},
  'trl': {'bos_token': '<|begin_of_text|>', 'eos_token': '<|eot_id|>'},
}


def bpe(alphabet, words) -> tuple[dict[str, int], list[tuple[str, str]]]:
  """A vocabulary whose merges build each word from the left."""
  pieces, merges = list(alphabet), []
  for word in words:
    for end in range(1, len(word)):
      merge = word[:end], word[end]
      if merge not in merges:
        merges.append(merge)
        pieces.append(word[: end + 1])
  return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, merges


def byte_level(pattern: str, specials: tuple[str, ...]) -> tokenizers.Tokenizer:
  """Qwen2's and Llama 3's construction."""
  to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  words = [to_bytes.pre_tokenize_str(word)[0][0] for word in WORDS]
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  tokenizer = tokenizers.Tokenizer(models.BPE(*bpe(alphabet, words)))
  split = pre_tokenizers.Split(tokenizers.Regex(pattern), 'isolated')
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
  return tokenizer


def qwen2_tokenizer() -> tokenizers.Tokenizer:
  tokenizer = byte_level(QWEN_PATTERN, QWEN_SPECIALS)
  tokenizer.normalizer = normalizers.NFC()
  return tokenizer


def llama3_tokenizer() -> tokenizers.Tokenizer:
  tokenizer = byte_level(LLAMA3_PATTERN, LLAMA3_SPECIALS)
  bos = LLAMA3_SPECIALS[0]
  tokenizer.post_processor = processors.TemplateProcessing(
    single=f'{bos} $A',
    pair=f'{bos} $A {bos} $B',
    special_tokens=[(bos, tokenizer.token_to_id(bos))],
  )
  return tokenizer


def mistral_tokenizer() -> tokenizers.Tokenizer:
  """One word is the whole text; spaces are ▁; the rest falls back to bytes."""
  words = [word.replace(' ', '▁') for word in WORDS if '\n' not in word]
  # SentencePiece has no piece that goes on beyond a blank.
  words = [word for word in words if '▁' not in word.lstrip('▁')]
  words += ['▁+', '▁-', '▁ки', '▁▁▁▁', '▁Step', '▁Janet']
  alphabet = [
    *('<unk>', '<s>', '</s>'),
    *(f'<0x{byte:02X}>' for byte in range(256)),
    *sorted({*map(chr, range(33, 127)), *'▁киé'}),
  ]
  # What has no piece is read as bytes: so are these words.
  words = [word for word in words if set(word) <= set(alphabet)]
  vocab, merges = bpe(alphabet, words)
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab, merges, unk_token='<unk>', fuse_unk=True, byte_fallback=True
    )
  )
  tokenizer.normalizer = normalizers.Sequence(
    [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
  )
  tokenizer.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  specials = ('<unk>', '<s>', '</s>')
  tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<s> $A',
    pair='<s> $A <s> $B',
    special_tokens=[('<s>', tokenizer.token_to_id('<s>'))],
  )
  return tokenizer


TOKENIZERS = {
  'qwen_prm': qwen2_tokenizer,
  'skywork': qwen2_tokenizer,
  'math_shepherd': mistral_tokenizer,
  'rlhflow': llama3_tokenizer,
  'trl': llama3_tokenizer,
}
STYLES = tuple(TOKENIZERS)
TEMPLATES = {'qwen_prm': CHATML, 'rlhflow': LLAMA3}
ARCHITECTURES = {
  'qwen_prm': ('qwen2', 'Qwen2ForProcessRewardModel'),
  'skywork': ('qwen2', 'Qwen2ForCausalLM'),
  'math_shepherd': ('mistral', 'MistralForCausalLM'),
  'rlhflow': ('llama', 'LlamaForCausalLM'),
  'trl': ('llama', 'LlamaForTokenClassification'),
}
# One of the two language models ties its embeddings.
TIED = ('rlhflow', 'skywork')


def config_of(style: str, vocab_size: int) -> dict:
  """config.json."""
  family, architecture = ARCHITECTURES[style]
  config = {
    'model_type': family,
    'architectures': [architecture],
    'vocab_size': vocab_size,
    'hidden_size': D,
    'intermediate_size': FFN,
    'num_hidden_layers': LAYERS,
    'num_attention_heads': HEADS,
    'num_key_value_heads': KV_HEADS,
    'max_position_embeddings': 1024,
    'rms_norm_eps': 1e-5,
    'rope_theta': 10_000.0,
    'hidden_act': 'silu',
    'tie_word_embeddings': style in TIED,
    'bos_token_id': None,
    'eos_token_id': None,
    'torch_dtype': 'float32',
  }
  if family == 'qwen2':
    config |= {'use_sliding_window': False, 'sliding_window': None}
  if family == 'mistral':
    config |= {'sliding_window': None}
  if style == 'rlhflow':
    config['rope_scaling'] = {
      'rope_type': 'llama3',
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      # Within the length of a test, so that the scaling shows.
      'original_max_position_embeddings': 64,
    }
  return config


def tensors_of(
  style: str, vocab_size: int
) -> Iterator[tuple[str, tuple[int, ...], float]]:
  """Names and shapes of all tensors, and the spread of their values."""
  # Small, so that what attention gathers counts beside the token itself.
  yield 'model.embed_tokens.weight', (vocab_size, D), 0.3
  heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
  for i in range(LAYERS):
    at = f'model.layers.{i}.'
    for name, out in (('q', heads), ('k', kv), ('v', kv)):
      yield f'{at}self_attn.{name}_proj.weight', (out, D), D**-0.5
      if ARCHITECTURES[style][0] == 'qwen2':
        yield f'{at}self_attn.{name}_proj.bias', (out,), 0.3
    yield f'{at}self_attn.o_proj.weight', (D, heads), D**-0.5
    yield f'{at}mlp.gate_proj.weight', (FFN, D), D**-0.5
    yield f'{at}mlp.up_proj.weight', (FFN, D), D**-0.5
    yield f'{at}mlp.down_proj.weight', (D, FFN), FFN**-0.5
    yield f'{at}input_layernorm.weight', (D,), -0.1
    yield f'{at}post_attention_layernorm.weight', (D,), -0.1
  yield 'model.norm.weight', (D,), -0.1
  if style == 'qwen_prm':
    yield 'score.0.weight', (D, D), D**-0.5
    yield 'score.0.bias', (D,), 0.3
    yield 'score.2.weight', (2, D), 2 * D**-0.5
    yield 'score.2.bias', (2,), 0.3
  elif style == 'skywork':
    yield 'v_head.summary.weight', (1, D), D**-0.5
    yield 'v_head.summary.bias', (1,), 0.3
  elif style == 'trl':
    yield 'score.weight', (2, D), D**-0.5
    yield 'score.bias', (2,), 0.3
  elif style not in TIED:
    yield 'lm_head.weight', (vocab_size, D), D**-0.5


def write_model(style: str, directory) -> None:
  """A folder as the publisher of a `style` PRM would have uploaded it."""
  directory.mkdir(parents=True, exist_ok=True)
  tokenizer = TOKENIZERS[style]()
  tokenizer.save(str(directory / 'tokenizer.json'))
  settings = {'tokenizer_class': 'PreTrainedTokenizerFast'}
  settings |= SPECIALS_OF[style]
  if style in TEMPLATES:
    settings['chat_template'] = TEMPLATES[style]
  write_json(directory / 'tokenizer_config.json', settings)
  vocab_size = tokenizer.get_vocab_size() + 3  # published ones are padded too
  write_json(directory / 'config.json', config_of(style, vocab_size))
  generator = np.random.Generator(np.random.PCG64(STYLES.index(style)))
  tensors = {}
  for name, shape, spread in tensors_of(style, vocab_size):
    values = abs(spread) * generator.standard_normal(shape)
    # Norms are scattered around 1.
    tensors[name] = (values + (spread < 0)).astype(np.float32)
  save_file(tensors, directory / 'model.safetensors', {'format': 'pt'})


def write_json(path, value) -> None:
  path.write_text(json.dumps(value, indent=1))


# (problem, steps): unequal lengths, and texts that are awkward to tokenise.
CHAINS = (
  ('Janet has 16 eggs. How many?', ('Step 1: She sells 7.', 'Step 2: 16-7=9')),
  ('What is $\\frac{1}{2}$ of 10?', ('Half of 10 is \\boxed{5}.',)),
  (
    'Let n = 123456.\nWhat is n + 1?',
    (
      'Step 1: n + 1 = 123457.\n\nSo the answer is 123457.',
      'Step 2: Now check:\n  * 7 is odd',
      'Step 3: ünïcödé π ≈ 3.14159, 数学 🙂',
      'Step 4: $\\boxed{123457}$.',
      'Step 5: The answer is: 123457',
    ),
  ),
  ('How many ducks?', ('One.', 'Two.', 'Three  eggs.', '4', '+5', '-6', '? 7')),
)

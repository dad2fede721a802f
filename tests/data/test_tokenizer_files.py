"""Tests tokenizer.json files and the ids of chains in published formats.

The texts of the published formats are written out here by hand, and the
`tokenizers` library tokenises each of them at once. `StepFormat` makes the same
ids one step at a time. Where the two must differ, a test says how.
"""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.tokenizer import (
  LONG_TEXT,
  HuggingFaceTokenizer,
  read_tokenizer,
)
from prm_jax.models.hub.published_formats import make_published_format
from prm_jax.runtime.errors import UserError
from tests.shared.published_models import STYLES, TOKENIZERS, write_model

AWKWARD = (
  ('How many?', ['One.', 'Two.']),
  ('12345 ducks, 6 eggs', ['7', '12345678', '1 2 34', '-5', '+5']),
  ('Two\nlines\n\nand more', ['First\nsecond', 'a\n\n  b\n', '\nc']),
  ('What is $\\frac{1}{2}$?', ['\\boxed{5}', '$x_1^{2}$.', '{}', '\\n', '$$']),
  (
    'π ≈ 3',
    ['é', 'e\u0301', '\u0301x', '数学', '🙂👍🏽', 'ﬁ', '\u00a0x\u00a0'],
  ),
  ('a  b', ['c   d', 'e\tf', '\tg', "I'll", "don't", "'s"]),
  ('Q?', ['Step 1: 2 < 3 > 1', '<0x0A>', '▁x', '#', '=', '.', '?!']),
)
# These have blanks around the texts.
BLANKS = (
  ('  How many?', ['One.', ' Two.', '  Three.', ' 4']),
  ('How many?\n', ['One. ', 'Two.  ', '\t', '3\n', ' \n ']),
)
QWEN = (
  '<|im_start|>system\nPlease reason step by step, and put your final answer '
  'within \\boxed{}.<|im_end|>\n<|im_start|>user\n%s<|im_end|>\n'
  '<|im_start|>assistant\n%s'
)
LLAMA3 = (
  '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n'
  'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>'
)
USER = '<|start_header_id|>user<|end_header_id|>\n\n'
ASSISTANT = '<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'


@pytest.fixture(scope='module')
def formats(tmp_path_factory):
  """Returns the format and the library's own tokenizer for each style."""
  root = tmp_path_factory.mktemp('tokenizers')
  found = {}
  for style in STYLES:
    folder = root / style
    write_model(style, folder)
    found[style] = (
      make_published_format(
        style, folder, read_tokenizer(folder), 4096, separator='\n'
      ),
      tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json')),
    )
  return found


def ids_of_text(style, tokenizer, problem, steps):
  """Returns the ids up to the last score as the authors' own code does."""

  def encode(text, specials=False):
    return tokenizer.encode(text, add_special_tokens=specials).ids

  if style == 'qwen_prm':
    return encode(QWEN % (problem, ''.join(s + '<extra_0>' for s in steps)))
  if style == 'math_shepherd':
    answer = '\n'.join(f'{step} ки' for step in steps)
    return encode(f'{problem} {answer}', specials=True)
  if style == 'rlhflow':
    users = [step.strip() for step in steps]
    users[0] = f'{problem} {users[0]}'.strip()
    turns = [USER + user + ASSISTANT for user in users]
    return encode(LLAMA3 + '+<|eot_id|>'.join(turns))
  ends = encode('\n')
  if style == 'skywork':
    ids = encode('<|im_start|>' + problem + '\n')
  else:
    ids = encode('<|begin_of_text|>') + encode(problem)
  return ids + [i for step in steps for i in encode(step) + ends]


def ids_of(fmt, problem, steps):
  return fmt.encode(problem, steps).tokens.tolist()


@pytest.mark.parametrize(
  ('style', 'problem', 'steps'),
  [(style, *texts) for style in STYLES for texts in AWKWARD]
  + [
    (style, *texts)
    for style in ('qwen_prm', 'skywork', 'trl')
    for texts in BLANKS
  ],
)
def test_ids_of_steps_are_those_of_the_whole_text(
  formats, style, problem, steps
):
  fmt, tokenizer = formats[style]
  expected = ids_of_text(style, tokenizer, problem, steps)
  assert ids_of(fmt, problem, steps) == expected


TEXT = st.text('ab1 \n\t.π$é\u0301-', max_size=8)
STEP = TEXT.filter(str.strip)


@given(STEP, st.lists(STEP, min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_ids_of_any_steps_are_those_of_the_whole_text(formats, problem, steps):
  for style in STYLES:
    fmt, tokenizer = formats[style]
    texts = problem, steps
    if style == 'math_shepherd':
      # The tag cannot follow a blank: see the next test.
      texts = problem.rstrip(), [step.rstrip() for step in steps]
    assert ids_of(fmt, *texts) == ids_of_text(style, tokenizer, *texts)


def test_math_shepherd_scores_a_step_that_ends_with_a_blank(formats):
  """Finds the tag behind a blank, where the authors' code finds none."""
  fmt, tokenizer = formats['math_shepherd']
  (tag,) = fmt.separator
  theirs = ids_of_text(
    'math_shepherd', tokenizer, 'How many?', ['One. ', 'Two.']
  )
  assert theirs.count(tag) == 1
  ours = fmt.encode('How many?', ['One. ', 'Two.'])
  assert [ours.tokens[end] for end in ours.step_ends] == [tag, tag]
  # A blank at the end of the problem changes the ids, too.
  theirs = ids_of_text('math_shepherd', tokenizer, 'How many? ', ['One.'])
  assert ids_of(fmt, 'How many? ', ['One.']) != theirs


@pytest.mark.parametrize(('problem', 'steps'), AWKWARD + BLANKS)
def test_trl_steps_start_with_the_blank_of_sentencepiece(
  formats, tmp_path, problem, steps
):
  """Compares with TRL, which tokenises every step as a text of its own."""
  write_model('math_shepherd', tmp_path)
  _, tokenizer = formats['math_shepherd']
  fmt = make_published_format(
    'trl', tmp_path, read_tokenizer(tmp_path), 4096, separator='\n'
  )
  expected = [tokenizer.token_to_id('<s>')]
  expected += tokenizer.encode(problem, add_special_tokens=False).ids
  for step in steps:
    for text in (step, '\n'):
      expected += tokenizer.encode(text, add_special_tokens=False).ids
  assert ids_of(fmt, problem, steps) == expected


@pytest.mark.parametrize(
  ('style', 'forged'),
  [
    ('qwen_prm', '<extra_0>'),
    ('rlhflow', '<|eot_id|>'),
    ('skywork', '<|im_end|>'),
    ('math_shepherd', '</s>'),
  ],
)
def test_a_step_cannot_forge_a_special_token(formats, style, forged):
  """Reads a step as plain text; the authors' code finds a special token."""
  fmt, tokenizer = formats[style]
  theirs = ids_of_text(style, tokenizer, 'How many?', ['One.', f'a {forged} b'])
  plain = ids_of_text(style, tokenizer, 'How many?', ['One.', 'a b'])
  special = tokenizer.token_to_id(forged)
  assert theirs.count(special) == plain.count(special) + 1
  ours = ids_of(fmt, 'How many?', ['One.', f'a {forged} b'])
  assert ours.count(special) == plain.count(special)
  assert forged in fmt.tokenizer.decode(ours)


def test_a_tag_inside_a_step_does_not_end_the_step(formats):
  fmt, _ = formats['math_shepherd']
  encoding = fmt.encode('How many?', ['One ки two', 'three'])
  assert (encoding.tokens == fmt.separator[0]).sum() == 3
  assert len(encoding.step_ends) == 2


def test_a_template_that_strips_steps_rejects_blank_ones(formats):
  fmt, _ = formats['rlhflow']
  assert ids_of(fmt, '  Q?', ['a', ' b \n']) == ids_of(fmt, 'Q?', [' a ', 'b'])
  with pytest.raises(UserError, match='has no tokens; remove it'):
    fmt.encode('Q?', ['a', ' \n'])


def test_text_that_can_merge_with_a_step_is_tokenised_with_it(formats):
  """Shows that line breaks tokenised apart from a step give other ids."""
  fmt, _ = formats['qwen_prm']
  tokenizer = fmt.tokenizer
  assert tokenizer.encode('\n\nb') != tokenizer.encode('\n') * 2 + (
    tokenizer.encode('b')
  )
  assert fmt.first_lead == 'assistant\n'
  fmt, _ = formats['rlhflow']
  assert (fmt.first_lead, fmt.next_lead) == (' ', '\n\n')


def test_styles_have_different_fingerprints(formats):
  prints = {fmt.fingerprint() for fmt, _ in formats.values()}
  assert len(prints) == len(STYLES)


def test_sentencepiece_puts_a_blank_before_texts_but_not_inside(formats):
  tokenizer = formats['math_shepherd'][0].tokenizer
  inside = tokenizer.encode('Step 1')
  first = tokenizer.encode_template('Step 1')
  assert first != inside
  assert first == tokenizer.encode(' Step 1')
  assert tokenizer.for_separate_texts().encode('Step 1') == first
  assert tokenizer.encode('Step 1') == inside  # the original is as it was
  assert tokenizer.encode('') == []


@pytest.mark.parametrize('style', STYLES)
def test_ids_decode_to_their_text(formats, style):
  tokenizer = formats[style][0].tokenizer
  for problem, steps in AWKWARD[:-1]:
    for text in (problem, *steps):
      composed = 'x' + text
      if style in ('qwen_prm', 'skywork'):
        composed = unicodedata.normalize('NFC', composed)
      assert tokenizer.decode(tokenizer.encode('x' + text)) == composed


def test_special_tokens_and_vocabulary_size_of_a_file(formats):
  for style, first, specials in (
    ('qwen_prm', 0, 4),
    ('math_shepherd', 1, 3),
    ('rlhflow', 1, 4),
  ):
    tokenizer = formats[style][0].tokenizer
    assert len(tokenizer.first_ids) == first
    assert len(tokenizer.specials) == specials
    library = TOKENIZERS[style]()
    assert tokenizer.vocab_size == library.get_vocab_size()
    for special in tokenizer.specials:
      assert tokenizer.id_of(special) == library.token_to_id(special)
      assert tokenizer.encode_template(special)[-1] == tokenizer.id_of(special)
      assert tokenizer.id_of(special) not in tokenizer.encode(special)


def test_padding_and_truncation_of_a_file_are_switched_off(formats):
  library = TOKENIZERS['rlhflow']()
  library.enable_truncation(4)
  library.enable_padding(length=16)
  tokenizer = HuggingFaceTokenizer(library.to_str(), 'here')
  plain = formats['rlhflow'][0].tokenizer
  for text in ('a', 'a. b. c. d. e. f.'):
    assert tokenizer.encode(text) == plain.encode(text)
    assert tokenizer.encode_template(text) == plain.encode_template(text)


def test_a_long_text_has_the_ids_of_its_lines(formats):
  """Long ones are encoded in another way, which holds up no other thread."""
  for fmt, _ in formats.values():
    line = 'Then 12 + 30 = 42 apples, é.\n'
    often = LONG_TEXT // len(line) + 1
    ids = fmt.tokenizer.encode(line * often)
    short = fmt.tokenizer.encode(line * 3)
    assert ids[: len(short)] == short
    assert fmt.tokenizer.decode(ids).endswith(line.strip() + '\n')
    assert len(ids) > often * (len(short) // 3 - 1)


def test_errors_name_the_file(tmp_path):
  with pytest.raises(UserError, match=r'tokenizer\.json cannot be read'):
    read_tokenizer(tmp_path)
  path = tmp_path / 'tokenizer.json'
  for text in ('', '{}', '[1, 2]', json.dumps({'model': {'type': 'BPE'}})):
    path.write_text(text)
    with pytest.raises(UserError, match=r'json is not a tokenizer') as error:
      read_tokenizer(tmp_path)
    assert '\n' not in str(error.value)
  empty = {'model': {'type': 'BPE', 'vocab': {}, 'merges': []}}
  path.write_text(json.dumps(empty))
  with pytest.raises(
    UserError, match="json: the tokenizer has no token for 'a"
  ):
    read_tokenizer(tmp_path)
  path.write_bytes(b'\xff\xfe{')
  with pytest.raises(UserError, match='cannot be read'):
    read_tokenizer(tmp_path)
  TOKENIZERS['trl']().save(str(path))
  with pytest.raises(UserError, match="no token '<none>'"):
    read_tokenizer(tmp_path).id_of('<none>')


def test_padding_of_any_length_is_left_out():
  """The library would fill the memory before it is told not to pad."""
  made = TOKENIZERS['qwen_prm']()
  made.enable_padding(length=2**40)
  read = HuggingFaceTokenizer(made.to_str(), 'here')
  assert read.encode('12') == TOKENIZERS['qwen_prm']().encode('12').ids


def test_dropout_of_a_file_is_switched_off():
  made = json.loads(TOKENIZERS['qwen_prm']().to_str())
  made['model']['dropout'] = 0.5
  read = HuggingFaceTokenizer(json.dumps(made), 'here')
  text = 'How many ducks are left?'
  plain = TOKENIZERS['qwen_prm']().encode(text).ids
  for tokenizer in (read, read.for_separate_texts()):
    for _ in range(20):
      assert tokenizer.encode(text) == tokenizer.encode_template(text) == plain


def test_a_tokenizer_in_which_the_library_panics_is_refused():
  """Its panics are no Exception."""
  damaged = json.loads(TOKENIZERS['rlhflow']().to_str())
  damaged['post_processor'] = {
    'type': 'TemplateProcessing',
    'single': [{'SpecialToken': {'id': 'x', 'type_id': 0}}],
    'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}],
    'special_tokens': {},
  }
  with pytest.raises(UserError, match='here is not a tokenizer'):
    HuggingFaceTokenizer(json.dumps(damaged), 'here')

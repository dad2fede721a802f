"""Tests that ids, step ends and truncation agree."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.encoding import DIGITS, WORDS, make_format
from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.runtime.errors import UserError

PROBLEM, SOLUTION = 'mod 10 : 7 * 3', ['7 * 3 = 1', '1 + 1 = 2']
STEPS = st.lists(
  st.text(st.characters(codec='utf-8'), min_size=1, max_size=12),
  min_size=1,
  max_size=6,
)


def test_ids_and_step_ends_of_a_chain():
  fmt = make_format('arithmetic', 32)
  encoding = fmt.encode(PROBLEM, SOLUTION)
  assert fmt.tokenizer.decode(encoding.tokens) == (
    '<bos> mod 10 : 7 * 3 <problem_end> 7 * 3 = 1 <step_end> 1 + 1 = 2 '
    '<step_end>'
  )
  np.testing.assert_array_equal(encoding.step_ends, [13, 19])
  assert encoding.prompt_length == 8


def test_a_policy_ends_its_chain_with_the_end_token():
  fmt = make_format('arithmetic', 21)
  ended = fmt.encode_with_end(PROBLEM, SOLUTION)
  assert fmt.tokenizer.decode(ended.tokens).endswith(
    '2 <step_end> <problem_end>'
  )
  bare = fmt.encode(PROBLEM, SOLUTION)
  np.testing.assert_array_equal(ended.tokens[:-1], bare.tokens)
  np.testing.assert_array_equal(ended.step_ends, bare.step_ends)
  assert ended.tokens.dtype == bare.tokens.dtype


@pytest.mark.parametrize('max_length', [20, 19])
def test_a_cut_or_full_chain_has_no_end_token(max_length):
  fmt = make_format('arithmetic', max_length)
  np.testing.assert_array_equal(
    fmt.encode_with_end(PROBLEM, SOLUTION).tokens,
    fmt.encode(PROBLEM, SOLUTION).tokens,
  )


def test_a_policy_needs_a_format_with_an_end_token():
  fmt = dataclasses.replace(make_format('bytes', 9), end=None)
  with pytest.raises(UserError, match=r'set data\.end'):
    fmt.encode_with_end('a', ['b'])


def test_kinds_exclude_the_problem_and_the_ends_of_a_step():
  fmt = make_format('arithmetic', 32)
  encoding = fmt.encode(PROBLEM, ['7 * 3 = 1', '1 + 12 = 3'])
  kinds = fmt.token_kinds(encoding)
  read = {
    kind: fmt.tokenizer.decode(encoding.tokens[kinds == kind])
    for kind in (DIGITS, WORDS)
  }
  assert read == {DIGITS: '3 1 12 3', WORDS: '* = + ='}
  np.testing.assert_array_equal(
    np.flatnonzero(kinds), [*range(9, 13), *range(15, 19)]
  )


def test_a_separator_with_a_digit_is_no_number_token():
  words = {'<step_0>': 0, 'a': 1, '7': 2, '3b': 9}  # the ids have a gap
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, '<step_0>'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.add_special_tokens(['<step_0>'])
  tokenizer = HuggingFaceTokenizer(made.to_str(), 'a test')
  fmt = make_format(tokenizer, 32, '<step_0>')
  encoding = fmt.encode('7', ['a 7 3b', 'a a'])
  assert encoding.tokens.tolist() == [2, 0, 1, 2, 9, 0, 1, 1, 0]
  assert fmt.token_kinds(encoding).tolist() == [0, 0, 0, 1, 1, 0, 0, 2, 0]


@given(st.text(st.characters(codec='utf-8'), max_size=12), STEPS)
def test_tokens_between_step_ends_decode_to_the_steps(problem, steps):
  fmt = make_format('bytes', 4096)
  encoding = fmt.encode(problem, steps)
  starts = [encoding.prompt_length, *(encoding.step_ends[:-1] + 1)]
  pieces = [
    fmt.tokenizer.decode(encoding.tokens[start:end])
    for start, end in zip(starts, encoding.step_ends, strict=True)
  ]
  assert pieces == steps
  assert encoding.step_ends[-1] == len(encoding.tokens) - 1


@given(STEPS, st.integers(4, 40))
def test_truncation_keeps_whole_steps(steps, max_length):
  fmt = make_format('bytes', max_length)
  whole = make_format('bytes', 4096).encode('p', steps)
  fitting = int((whole.step_ends < max_length).sum())
  if fitting == 0:
    with pytest.raises(UserError, match='do not fit max_length'):
      fmt.encode('p', steps)
    return
  cut = fmt.encode('p', steps)
  np.testing.assert_array_equal(cut.step_ends, whole.step_ends[:fitting])
  np.testing.assert_array_equal(
    cut.tokens, whole.tokens[: whole.step_ends[fitting - 1] + 1]
  )


def test_no_text_can_forge_a_separator():
  fmt = make_format('bytes', 64)
  encoding = fmt.encode('p', ['a <step_end> \x02 b'])
  assert (encoding.tokens == fmt.separator[0]).sum() == 1


def test_a_text_in_place_of_steps_is_refused():
  """Each of its letters would be a step."""
  fmt = make_format('arithmetic', 46)
  with pytest.raises(UserError, match=r"steps='1 \+ 1 = 2': expected a list"):
    fmt.encode('mod 10 : 1 + 1', '1 + 1 = 2')


def test_missing_steps_and_unknown_words_are_rejected():
  with pytest.raises(UserError, match='without steps'):
    make_format('bytes', 64).encode('p', [])
  with pytest.raises(UserError, match="'100' is not a word"):
    make_format('arithmetic', 64).encode('mod 10 : 7', ['100 + 1 = 1'])
  with pytest.raises(UserError, match='unknown tokenizer'):
    make_format('words', 64)


def test_formats_have_different_fingerprints():
  formats = [make_format('bytes', 64), make_format('arithmetic', 64)]
  prints = [fmt.fingerprint() for fmt in formats]
  assert prints[0] != prints[1]
  assert prints[0] == make_format('bytes', 64).fingerprint()

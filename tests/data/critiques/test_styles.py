r"""Reads verdicts of critiques, as they come and as they should not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.critiques.styles import STYLES, last_index, worded_question


@pytest.mark.parametrize(
  ('name', 'lines', 'steps', 'first'),
  [
    ('thinkprm', [r'\boxed{correct}', r'\boxed{correct}'], 2, -1),
    ('thinkprm', [r'\boxed{\text{incorrect}}'], 1, 0),
    (
      'thinkprm',
      [r'Step 1: fine, \boxed{ Correct }', r'\boxed{incorrect}'],
      3,
      1,
    ),
    # What comes after the first wrong step counts for nothing.
    ('thinkprm', [r'\boxed{incorrect}', r'\boxed{correct}'], 2, 0),
    # Too few verdicts, too many, none.
    ('thinkprm', [r'\boxed{correct}'], 2, None),
    ('thinkprm', [r'\boxed{correct}'] * 3, 2, None),
    ('thinkprm', [r'\boxed{correct}'] * 2 + [r'\boxed{incorrect}'], 2, None),
    ('thinkprm', ['all is well'], 2, None),
    ('genprm', [r'<output> \boxed{Yes}'], 3, -1),
    ('genprm', [r'\boxed{yes}', 'wait', r'so \boxed{\text{No}}'], 3, 2),
    ('genprm', [r'\boxed{maybe}'], 3, None),
    ('r_prm', ['7 * 3 = 1', 'Is the step correct (Yes/No) ? Yes'], 2, -1),
    ('r_prm', ['**Is the step correct (Yes/No)?** **No**'], 2, 1),
    ('r_prm', ['Yes, it is.'], 2, None),
    ('boxed_index', [r'\boxed{-1}'], 4, -1),
    ('boxed_index', [r'not \boxed{1} but \boxed{ 3 }'], 4, 3),
    ('boxed_index', [r'\boxed{4}'], 4, None),
    ('boxed_index', [r'\boxed{\text{Step }2}'], 4, 2),
    ('thinkprm', [r'\boxed{Correct.}', r'\boxed{\textbf{incorrect}}'], 3, 1),
    ('genprm', [r'\boxed{**Yes**}'], 3, -1),
    ('genrm', ['Is the answer correct (Yes/No) ? No'], 4, 3),
    ('genrm', [], 4, None),
  ],
)
def test_the_first_wrong_step(name, lines, steps, first):
  assert STYLES[name].first_wrong(lines, steps) == first


@given(
  st.sampled_from(sorted(STYLES)),
  st.lists(
    st.one_of(
      st.text(),
      st.sampled_from(
        [r'\boxed{', r'\boxed{correct}', r'\boxed{incorrect}', r'\boxed{2}']
      ),
    )
  ),
  st.integers(1, 5),
)
def test_any_text_has_a_verdict_or_none(name, lines, steps):
  first = STYLES[name].first_wrong(lines, steps)
  assert first is None or -1 <= first < steps


def test_a_long_text_is_read_in_time():
  text = r'\boxed{' * 20_000 + '{' * 20_000
  assert last_index(text, 3) is None


def test_a_question_in_words_names_every_step():
  for style in STYLES.values():
    text = worded_question(style, 'What is {x}?', ('x is {last}', '2'))
    assert 'What is {x}?' in text
    assert f'Step {style.first}: x is {{last}}' in text
    assert f'Step {style.first + 1}: 2' in text
    head = text.partition('[Problem]')[0]
    assert '{last}' not in head
    if not style.whole and not style.of_outcome:
      assert 'step 2' in head

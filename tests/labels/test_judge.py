"""A judge's replies: how they are read, and how they vote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.chains import Chain, first_error
from prm_jax.data.critiques.styles import last_index
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Question, Reply
from prm_jax.labels import judge
from prm_jax.labels.judge import JudgeConfig
from prm_jax.runtime.errors import UserError

CHAIN = Chain(
  problem='What is 3 + 4 * 2? {last}',
  steps=('4 * 2 = 8', '3 + 8 = 12', r'The answer is \boxed{12}.'),
  meta={'id': 'sum'},
)


def label(texts, chain=CHAIN):
  """The chain labelled by these replies; None is a reply that failed."""
  config = JudgeConfig(samples=len(texts))
  labelling = judge.label(chain, config)
  [asked] = next(labelling)
  assert isinstance(asked, Question)
  assert asked.samples == len(texts)
  replies = [text if text is None else Reply(text, 9, 90) for text in texts]
  with pytest.raises(StopIteration) as stop:
    labelling.send([replies])
  return stop.value.value


def values(chain):
  assert all(step.source == 'judge' for step in chain.labels)
  return [step.value for step in chain.labels]


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    (r'All good. \boxed{-1}', -1),
    (r'\boxed{0}', 0),
    (r'\boxed{ 2 }', 2),
    (r'\boxed {2}.', 2),
    (r'First \boxed{0}, no: \boxed{1}', 1),
    (r'$\boxed{\text{1}}$', 1),
    (r'\boxed{\text{paragraph_1}}', 1),
    (r'\boxed{paragraph\_1}', 1),
    (r'\boxed{Paragraph 1}', 1),
    (r'\boxed{<paragraph_1>}', 1),
    ('\\boxed{\u22121}', -1),
    (r'\boxed{3}', None),
    (r'\boxed{-2}', None),
    (r'\boxed{1.5}', None),
    (r'\boxed{1, 2}', None),
    (r'\boxed{}', None),
    (r'\boxed{none}', None),
    (r'\boxed{1', None),
    # The last box counts, even if it cannot be read.
    (r'\boxed{1} and \boxed{x}', None),
    (r'\boxed{' + '1' * 10_000 + '}', None),
    ('\boxed{1}', None),  # not a raw string: '\b' is a backspace
    ('1', None),
    ('', None),
  ],
)
def test_the_index_in_the_last_box(text, expected):
  assert last_index(text, steps=3) == expected


@given(st.text(alphabet='\\boxed{}paragraph_-0123456789 t', max_size=60))
def test_any_reply_gives_an_index_or_none(text):
  assert last_index(text, 3) in (None, -1, 0, 1, 2)


def test_the_question_numbers_the_steps():
  text = judge.make_question(CHAIN.problem, CHAIN.steps)
  assert '[Problem]\nWhat is 3 + 4 * 2? {last}\n' in text
  assert '<paragraph_1>\n3 + 8 = 12\n</paragraph_1>' in text
  assert '<paragraph_2>\nThe answer is \\boxed{12}.\n</paragraph_2>' in text
  assert '<paragraph_3>' not in text
  assert 'end with \\boxed{-1}' in text
  assert '\b' not in text
  braces = judge.make_question('p', ('{solution} {problem}',))
  assert '<paragraph_0>\n{solution} {problem}\n</paragraph_0>' in braces


def test_labels_stop_at_the_first_error():
  assert values(label([r'\boxed{1}'])) == [1.0, 0.0, None]
  assert values(label([r'\boxed{0}'])) == [0.0, None, None]
  assert values(label([r'\boxed{2}'])) == [1.0, 1.0, 0.0]
  assert values(label([r'\boxed{-1}'])) == [1.0, 1.0, 1.0]
  for index in (-1, 0, 1, 2):
    labelled = label([rf'\boxed{{{index}}}'])
    assert first_error(labelled.labels) == index
    assert (labelled.problem, labelled.steps) == (CHAIN.problem, CHAIN.steps)


def test_the_majority_of_readable_replies_decides():
  labelled = label(
    [r'\boxed{1}', 'no idea', None, r'\boxed{-1}', r'\boxed{1}', r'\boxed{9}']
  )
  assert values(labelled) == [1.0, 0.0, None]
  assert labelled.meta == {
    'id': 'sum',
    'judge': {'votes': {'-1': 1, '1': 2}, 'unparseable': 2, 'failed': 1},
  }


def test_a_tie_is_no_majority():
  boxes = [r'\boxed{1}', r'\boxed{-1}', r'\boxed{-1}', r'\boxed{1}']
  with pytest.raises(CannotDo, match='tied: 2 for -1, 1 for 0, 2 for 1'):
    label([*boxes, r'\boxed{0}'])
  assert values(label([*boxes, r'\boxed{1}'])) == [1.0, 0.0, None]


def test_unreadable_replies_give_no_label():
  with pytest.raises(CannotDo, match='of 3 replies: 2 unparseable, 1 failed'):
    label(['yes', None, r'\boxed{7}'])
  with pytest.raises(CannotDo, match='of 1 replies: 0 unparseable, 1 failed'):
    label([None])


def test_the_key_depends_on_the_text_only():
  def key(chain):
    [asked] = next(judge.label(chain, JudgeConfig()))
    return asked.key

  same = Chain(CHAIN.problem, CHAIN.steps, meta={'id': 'other'})
  assert key(CHAIN) == key(same)
  assert key(CHAIN) != key(Chain(CHAIN.problem, CHAIN.steps[:2]))
  assert key(CHAIN).startswith('judge/')


def test_configs_check_themselves():
  with pytest.raises(UserError, match=r'^samples=0: expected >= 1'):
    JudgeConfig(samples=0)

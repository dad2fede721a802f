"""Tests readers of steps in running text on records worked out by hand."""

import pytest

from prm_jax.data.chains import StepLabel
from prm_jax.data.readers import READERS
from prm_jax.runtime.errors import UserError
from tests.data.reader_examples import example

RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)


def rollout(value):
  return StepLabel(value, 'rollout')


def read(fmt, **changes):
  return READERS[fmt](example(fmt) | changes)


def test_math_shepherd_reads_signs_answer_and_outcome():
  (chain,) = read('math_shepherd')
  assert chain.problem == 'How?'
  assert chain.steps == ('Step 1: a', 'Step 2: b. The answer is: 7')
  assert chain.labels == (rollout(1.0), rollout(0.0))
  assert (chain.answer, chain.outcome) == ('7', False)
  assert chain.meta == {'task': 'GSM8K'}


def shepherd(*pieces):
  """Returns a record of these texts with + at every marker."""
  return {name: sign.join((*pieces, '')) for name, sign in SIGNS.items()}


SIGNS = {'input': ' ки\n', 'label': ' +\n'}


@pytest.mark.parametrize(
  ('pieces', 'problem', 'steps'),
  [
    # The question has its own numbering; steps start at the last 'Step 1:'.
    (
      ('Do Step 1: mix. Step 2: bake. How? Step 1: a', 'Step 2: b'),
      'Do Step 1: mix. Step 2: bake. How?',
      ('Step 1: a', 'Step 2: b'),
    ),
    # Markers at the line ends of the question belong to no step.
    (
      ('First line', 'second line? Step 1: a', 'Step 2: b'),
      'First line second line?',
      ('Step 1: a', 'Step 2: b'),
    ),
    (
      ('Recipe. Step 1: mix', 'Step 2: bake', 'Step 1: a', 'Step 2: b'),
      'Recipe. Step 1: mix Step 2: bake',
      ('Step 1: a', 'Step 2: b'),
    ),
    (('How many? step 1: a',), 'How many?', ('step 1: a',)),
    (('How many? Two of them.', 'So 2'), 'How many?', ('Two of them.', 'So 2')),
    # The marker's letters inside a word are text.
    (('What is банки? Step 1: a',), 'What is банки?', ('Step 1: a',)),
  ],
)
def test_math_shepherd_finds_the_first_step(pieces, problem, steps):
  (chain,) = READERS['math_shepherd'](shepherd(*pieces))
  assert chain.problem.split() == problem.split()
  assert chain.steps == steps
  assert chain.meta.get('question_marks', 0) == len(pieces) - len(steps)


def test_math_shepherd_drops_the_signs_of_question_lines():
  record = {
    'input': 'First ки\nsecond? Step 1: a ки\nStep 2: b ки',
    'label': 'First -\nsecond? Step 1: a +\nStep 2: b +',
  }
  (chain,) = READERS['math_shepherd'](record)
  assert chain.labels == (rollout(1.0), rollout(1.0))
  assert chain.outcome is None


@pytest.mark.parametrize(
  ('record', 'message'),
  [
    (shepherd('No question mark, no numbering'), 'cannot tell the question'),
    (shepherd('One? Two? Three'), 'cannot tell the question'),
    (shepherd('Q Step 1: a Step 2: b'), "'Step 2:' before the first label"),
    (shepherd('Step 1: a'), 'no question before the first step'),
    (shepherd('Q? Step 1: a', ' '), r'steps?.* non-blank'),
    ({'input': 'Q? Step 1: a', 'label': 'Q? Step 1: a'}, 'does not end with'),
    (
      {'input': 'Q? Step 1: a ки\nmore', 'label': 'Q? Step 1: a +\nmore'},
      'does not end with',
    ),
    (
      {'input': 'Q? Step 1: a ки', 'label': 'Q? Step 1: b +'},
      'before or at marker 1',
    ),
    (
      {'input': 'Q? Step 1: a ки', 'label': 'Q? Step 1: a '},
      'before or at marker 1',
    ),
    (
      {'input': 'Q? Step 1: a ки', 'label': 'Q? Step 1: a ?'},
      'before or at marker 1',
    ),
    (
      {'input': 'Q? Step 1: a ки', 'label': 'Q? Step 1: a +\nStep 2: b -'},
      "'label' goes on after",
    ),
    ({'input': 3, 'label': 'x'}, "'input' is 3"),
  ],
)
def test_math_shepherd_rejects_bad_records(record, message):
  with pytest.raises(UserError, match=message):
    READERS['math_shepherd'](record)


def test_trl_labels_are_booleans_numbers_or_null():
  (chain,) = read('trl', labels=[True, 0.25])
  assert chain.labels == (RIGHT, StepLabel(0.25))
  (chain,) = read('trl', labels=[None, False])
  assert chain.labels == (UNKNOWN, WRONG)
  for value in (-100, 1.5, 'true', [True]):
    with pytest.raises(UserError, match=r'labels\[0\] is .*in \[0, 1\]'):
      read('trl', labels=[value, True])
  with pytest.raises(UserError, match='1 labels for 2 completions'):
    read('trl', labels=[True])


def test_rlhflow_reads_both_names_of_the_chat():
  for name in ('conversations', 'messages'):
    turns = example('rlhflow')['conversations']
    (chain,) = READERS['rlhflow']({name: turns})
    assert chain.problem == 'How?'
    assert chain.steps == ('Step 1: a', 'Step 2: b')
    assert chain.labels == (rollout(1.0), rollout(0.0))


@pytest.mark.parametrize(
  ('turn', 'change', 'message'),
  [
    (0, {'role': 'system'}, "turn 0 is by 'system'"),
    (0, {'content': 'no split here'}, 'cannot tell the question'),
    (1, {'content': 'yes'}, r"turn 1 is 'yes': expected \+ or -"),
    (2, {'content': ' '}, "'content' is ' '"),
  ],
)
def test_rlhflow_rejects_bad_turns(turn, change, message):
  record = example('rlhflow')
  record['conversations'][turn] |= change
  with pytest.raises(UserError, match=message):
    READERS['rlhflow'](record)
  with pytest.raises(UserError, match='3 turns'):
    READERS['rlhflow']({'messages': record['conversations'][:3]})

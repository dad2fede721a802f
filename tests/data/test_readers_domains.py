"""Tests readers of domains beyond arithmetic on records worked out by hand."""

import json

import pytest

from prm_jax.data.chains import StepLabel
from prm_jax.data.readers import READERS, read_chains
from prm_jax.data.readers.records import Skip
from prm_jax.runtime.errors import UserError
from tests.data.reader_examples import (
  example,
  mr_ben_code,
  versa_prm_question,
)

RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)
NEUTRAL = StepLabel(1.0, neutral=True)
ERROR = 'Model_Solution_First_Error_Step'
STEPS = 'Model_Solution_Steps'
VERDICT = 'Model_Solution_Correctness'
NO_STEP = Skip('no one step is the first error')


def judge(value, **more):
  return StepLabel(value, 'judge', **more)


def read(fmt, **changes):
  return READERS[fmt](example(fmt) | changes)


def correct(**changes):
  return read('mr_ben', **{VERDICT: 'correct', ERROR: 'N/A'} | changes)


def test_mr_ben_counts_the_steps_that_the_model_numbered():
  (chain,) = read('mr_ben')
  assert chain.problem == 'P\nA: x \nB: y'
  assert chain.steps == (
    'Step 1: a',
    'Step 2: b\nStep 2.1: more of b',
    'Step 3: c',
    'Solution: Choice_B',
  )
  # By lines, the second one would be wrong, which is blank.
  assert chain.labels == (RIGHT, WRONG, UNKNOWN, UNKNOWN)
  # The right choice after a wrong step.
  assert (chain.answer, chain.outcome) == ('B', True)
  assert chain.meta == {
    'subject': 'college_biology',
    'generator': 'Claude2',
    'group': 'u',
    'original_problem': 'P',
  }
  (chain,) = correct()
  assert chain.labels == (RIGHT,) * 4
  assert chain.outcome is True


@pytest.mark.parametrize(
  ('lines', 'error', 'steps', 'first'),
  [
    # The last step has the number after the last one.
    (['Step 1: a', 'Solution: A'], '2', 2, 1),
    (['Step 1: a', 'Step n: b', 'Solution: A'], 2, 3, 1),
    # An introduction belongs to the first step; not only digits end a number.
    (['Sure.', 'tep 1: a', 'x', '**Step 2_A**: b', 'step 10. c'], '10', 2, 1),
    (['Step 1 a', 'Step 12.A b', 'Solution of x', 'Step 2: c'], '2', 2, 1),
    # Without numbers every line is a step.
    (['a', ' ', 'b', 'c'], '3', 3, 2),
  ],
)
def test_mr_ben_headings(lines, error, steps, first):
  (chain,) = read('mr_ben', **{STEPS: lines, ERROR: error})
  assert len(chain.steps) == steps
  assert '\n'.join(chain.steps) == '\n'.join(filter(str.strip, lines))
  assert [label.value for label in chain.labels].index(0) == first


@pytest.mark.parametrize(
  ('last', 'answer', 'outcome'),
  [
    ('Solution: Choice A', 'A', False),
    ('Solution: Choice\\_B', 'B', True),
    ('Solution: Choice (B)', 'B', True),
    ('Solution: Choice_A/B', None, None),
    ('Solution: Choice_A or Choice_B', None, None),
    ('Solution: none of the choices A to D', None, None),
    ('Solution: 42', None, None),
  ],
)
def test_mr_ben_outcome_is_that_of_the_choice(last, answer, outcome):
  (chain,) = read('mr_ben', **{STEPS: ['Step 1: a', last], ERROR: '1'})
  assert (chain.answer, chain.outcome) == (answer, outcome)


def test_mr_ben_skips_what_cannot_be_labelled():
  assert read('mr_ben', **{ERROR: '7'}) == NO_STEP
  again = ['Step 1: a', 'Step 2: b', 'Step 1: c', 'Step 2: d']
  assert read('mr_ben', **{STEPS: again}) == NO_STEP
  assert correct(Ground_Truth_Answer_Modified='A') == Skip(
    'a correct solution with a wrong answer'
  )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({VERDICT: 'correct'}, "is correct and 'Model.*' is '2': expected 'N/A'"),
    ({ERROR: 'N/A'}, "is incorrect and 'Model.*' is 'N/A': expected 'N/A' of"),
    ({VERDICT: 'right'}, "is 'right': expected 'correct' or 'incorrect'"),
    ({ERROR: 'Step 2'}, "is 'Step 2': expected the number of a step"),
    ({ERROR: None}, 'is None: expected the number of a step'),
    ({ERROR: -1}, 'is -1: expected the number of a step'),
    ({ERROR: True}, 'is True: expected the number of a step'),
    ({STEPS: ['', ' ']}, 'has no text: expected at least one step'),
    ({STEPS: ['Step 1: a', 2]}, r'Steps\[1\] is 2: expected text'),
    ({STEPS: ' \n'}, 'expected a non-blank string'),
    ({'Options': ['A: x']}, "'Options' is a list of 1"),
    ({'Ground_Truth_Answer_Modified': None}, "'Ground_.*' is None"),
  ],
)
def test_mr_ben_rejects_records_that_contradict_themselves(changes, message):
  with pytest.raises(UserError, match=message):
    read('mr_ben', **changes)


def test_mr_ben_code_keeps_its_indentation():
  record = mr_ben_code()
  (chain,) = READERS['mr_ben'](record)
  assert chain.steps == ('def f(x):', '  y = x', '  if x:', '    y = x')
  assert chain.labels == (RIGHT, RIGHT, RIGHT, WRONG)
  assert (chain.answer, chain.outcome) == (None, False)
  assert chain.problem == 'P'
  (chain,) = READERS['mr_ben'](record | {VERDICT: 'correct', ERROR: 'N/A'})
  assert chain.labels == (RIGHT,) * 4
  assert chain.outcome is True
  # A blank line stands for a missing one; other texts are not in the code.
  for error in ('', '    ', 'y = x'):
    assert READERS['mr_ben'](record | {ERROR: error}) == NO_STEP
  twice = record[STEPS] + '    y = x'
  assert READERS['mr_ben'](record | {STEPS: twice}) == NO_STEP
  with pytest.raises(UserError, match='is 4: expected a line of the code'):
    READERS['mr_ben'](record | {ERROR: 4})


def test_big_bench_mistake(tmp_path):
  (chain,) = read('big_bench_mistake')
  assert chain.steps == ('stack: empty', '{ ; stack: {', '] ; stack: {', 'So }')
  assert chain.labels == (RIGHT, RIGHT, WRONG, UNKNOWN)
  assert (chain.answer, chain.outcome) == ('}', False)
  (chain,) = read('big_bench_mistake', mistake_index=None, answer=' ] } ')
  assert chain.labels == (RIGHT,) * 4
  assert chain.outcome is True
  for answer, target in ((']}.', '] }'), ('ant, bee', 'ant bee')):
    (chain,) = read('big_bench_mistake', answer=answer, target=target)
    assert chain.outcome is True
  for answer, target in (('] ]', '] }'), ('an tbee', 'ant bee')):
    (chain,) = read('big_bench_mistake', answer=answer, target=target)
    assert chain.outcome is False
  for answer in (None, ''):
    (chain,) = read('big_bench_mistake', answer=answer)
    assert (chain.answer, chain.outcome) == (None, False)
  assert read('big_bench_mistake', steps=['a', '']) == Skip('blank step')
  for index in (4, -1, '2', True):
    with pytest.raises(UserError, match=r"'mistake_index' is .*in \[0, 3\]"):
      read('big_bench_mistake', mistake_index=index)
  # Records do not name their task; files do.
  path = tmp_path / 'word_sorting.jsonl'
  path.write_text(json.dumps(example('big_bench_mistake')))
  (chain,), _ = read_chains(path, 'big_bench_mistake')
  assert chain.meta['subject'] == 'word_sorting'


def test_parc():
  (chain,) = read('parc')
  assert chain.labels == (judge(1.0), judge(0.0), judge(0.0))
  assert (chain.answer, chain.outcome) == ('8', False)
  assert chain.meta == {'premises': [[0], [0, 1], [2]]}
  record = example('parc')
  del record['is_correct']
  (chain,) = READERS['parc'](record | {'type': 'Algebra'})
  assert chain.outcome is None
  assert chain.meta['subject'] == 'Algebra'
  # One real record has premises of other steps.
  record['premise_annotation']['steps'][2]['step_number'] = 5
  (chain,) = READERS['parc'](record)
  assert 'premises' not in chain.meta


@pytest.mark.parametrize(
  ('step', 'change', 'message'),
  [
    (0, {'step_number': 2}, r"'step_number' is 2: expected .* in \[1, 1\]"),
    (0, {'has_error': True}, "step 1 contradicts itself: 'has_error' is True "),
    (1, {'has_error': False}, 'is False with 1 errors'),
    (1, {'has_error': None}, "'has_error' is None: expected true or false"),
  ],
)
def test_parc_rejects_bad_annotations(step, change, message):
  record = example('parc')
  annotated = record['error_annotation']['error_annotations']['step_level']
  annotated[step] |= change
  with pytest.raises(UserError, match=message):
    READERS['parc'](record)
  del annotated[step]
  with pytest.raises(UserError, match='2 annotated steps for 3 steps'):
    READERS['parc'](record)


@pytest.mark.parametrize('premise', [[2, 'b'], [], 'a', [None]])
def test_parc_premises_are_earlier_steps(premise):
  record = example('parc')
  record['premise_annotation']['steps'][2]['premises'].append(premise)
  with pytest.raises(UserError, match=r'premises of step 2.* in \[0, 1\]'):
    READERS['parc'](record)


def test_agent_process_bench():
  (chain,) = read('agent_process_bench')
  assert chain.problem == (
    'system: Be brief.\n\nuser: Answer. Question: Which city?'
  )
  assert chain.steps == (
    'search({"query": "q"})\ntool: {"result": []}',
    '<think>It is Perth.</think>\nuser: Call a tool.',
    '<answer>Adelaide</answer>',
  )
  assert chain.labels == (NEUTRAL, WRONG, RIGHT)
  assert (chain.answer, chain.outcome) == ('Adelaide', True)
  assert chain.meta == {
    'subject': 'searchR1_hotpotqa',
    'group': 'searchR1_hotpotqa:7',
    'original_problem': 'Which  city?',
  }


def test_agent_process_bench_tells_the_task_that_a_user_will_tell():
  (chain,) = read('agent_process_bench', question='Change my flight.')
  assert chain.problem.startswith('Change my flight.\n\nsystem: Be brief.\n\n')
  for label, outcome in ((0, None), (-1, False)):
    (chain,) = read('agent_process_bench', final_label=label, answer_text=None)
    assert (chain.answer, chain.outcome) == (None, outcome)
  # A table of the records has null where a record has no such message.
  labels = {'1': None, '2': 1, '4': -1, '6': -1, '8': None}
  (chain,) = read('agent_process_bench', step_labels=labels)
  assert chain.labels == (RIGHT, WRONG, WRONG)
  silent = {'role': 'assistant', 'content': None, 'tool_calls': None}
  messages = [silent, {'role': 'user', 'content': 'Hello?'}]
  (chain,) = read(
    'agent_process_bench', messages=messages, step_labels={'0': 0}
  )
  assert (chain.problem, chain.steps) == ('Which  city?', ('user: Hello?',))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'step_labels': {'2': 1, '4': 1}}, 'not rate message 6 of the assistant'),
    (
      {'step_labels': {'2': 1, '3': 1, '4': 1, '6': 1}},
      "rates message '3', which is not the assistant's",
    ),
    ({'step_labels': [1, 1, 1]}, 'is a list of 3: expected an object'),
    ({'step_labels': {'2': 2, '4': 1, '6': 1}}, r'\[2\] is 2: expected 1, 0'),
    ({'final_label': None}, "'final_label' is None"),
    ({'messages': [{'role': 'user'}]}, 'has none by the assistant'),
    ({'messages': [{'role': 'bot'}]}, r"messages\[0\] is by 'bot'"),
    (
      {'messages': [{'role': 'assistant'}], 'step_labels': {'0': 1}},
      "step 0 is '': expected a non-blank string",
    ),
    (
      {'messages': [{'role': 'assistant', 'tool_calls': [{}]}]},
      "the field 'function' is missing",
    ),
  ],
)
def test_agent_process_bench_rejects_bad_trajectories(changes, message):
  with pytest.raises(UserError, match=message):
    read('agent_process_bench', **changes)


@pytest.mark.parametrize('parsed', [False, True])
def test_versa_prm_reads_a_table_of_chains(parsed):
  steps = ["It is 'a'.", 'So b.', 'So c.', 'It is (A).']
  lists = {'chain_of_thoughts': steps, 'labels': [1, 0, -1, -1]}
  (chain,) = read('versa_prm', **(lists if parsed else {}))
  assert chain.problem == 'P\nA. x\nB. y'
  assert chain.steps == tuple(steps)
  assert chain.labels == (
    judge(1.0),
    judge(1.0, neutral=True),
    judge(0.0),
    judge(None),  # nobody looked for a second error
  )
  assert (chain.answer, chain.outcome) == ('A', False)
  assert chain.meta == {'subject': 'law', 'group': '1_mmlu_law'}


def test_versa_prm_reads_questions_with_their_chains():
  first, second = READERS['versa_prm'](versa_prm_question())
  assert (first.steps, second.steps) == (('a', 'b'), ('e', 'It is (B).'))
  assert first.labels == (judge(1.0), judge(0.0))
  assert (first.answer, first.outcome) == (None, None)
  assert (second.answer, second.outcome) == ('B', True)
  skip = Skip('no labels, or a blank step')
  assert read('versa_prm', labels='None') == skip
  assert read('versa_prm', chain_of_thoughts='["", "a"]') == skip
  record = versa_prm_question() | {'chain_of_thoughts': []}
  assert READERS['versa_prm'](record) == skip


@pytest.mark.parametrize(
  'text',
  [
    'a, b',
    '["a", ',
    '[f()]',
    '[b"a"]',
    "['\\ud800']",
    '[' * 10_000,
    '-' * 10_000 + '1',
    '\0',
    '{[1]}',
  ],
)
def test_versa_prm_reads_texts_of_lists_only(text):
  with pytest.raises(UserError, match='expected a list, or the text of one'):
    read('versa_prm', chain_of_thoughts=text)


def test_versa_prm_rejects_bad_lists():
  with pytest.raises(UserError, match='1 labels for 4 steps'):
    read('versa_prm', labels='[1]')
  with pytest.raises(UserError, match=r'labels\[3\] is 2: expected 1, 0, -1'):
    read('versa_prm', labels='[1, 1, 1, 2]')
  with pytest.raises(UserError, match=r'steps\[1\] is 3: expected non-blank'):
    read('versa_prm', chain_of_thoughts='["a", 3]')
  with pytest.raises(UserError, match="'steps' is an object of 1"):
    read('versa_prm', chain_of_thoughts='{"a": 1}')

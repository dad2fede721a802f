"""Tests the readers of all formats on records worked out by hand."""

import json

import pytest

from prm_jax.data.chains import StepLabel, source_problem
from prm_jax.data.readers import READERS, read_chains
from prm_jax.data.readers.records import Skip
from prm_jax.runtime.errors import UserError
from tests.data.reader_examples import EXAMPLES, example, phase_2

RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)
NEUTRAL = StepLabel(1.0, neutral=True)


def rollout(value):
  return StepLabel(value, 'rollout')


def read(fmt, record=None, **changes):
  return READERS[fmt]((record or example(fmt)) | changes)


def paths(chains):
  return [(chain.steps, chain.labels) for chain in chains]


def test_every_format_has_an_example():
  assert EXAMPLES.keys() == READERS.keys()


def test_gsm8k_drops_calculator_annotations():
  (chain,) = read('gsm8k')
  assert chain.steps == ('So 48/2 = 24.', 'Then 24+1=25.')
  assert (chain.answer, chain.outcome) == ('25', True)
  assert chain.labels == (RIGHT, RIGHT)


def test_gsm8k_states_its_answer_for_a_policy():
  (chain,) = read('gsm8k_stated')
  (bare,) = read('gsm8k')
  assert chain.steps == (*bare.steps, 'The answer is 25.')
  assert chain.labels == (RIGHT,) * 3
  assert (chain.answer, chain.outcome) == ('25', True)


@pytest.mark.parametrize('answer', ['#### 25', 'no answer', 'a\n25', 'a\n####'])
def test_gsm8k_without_its_answer_is_rejected(answer):
  with pytest.raises(UserError, match="'answer' is no worked answer"):
    read('gsm8k', answer=answer)


def test_prm800k_expands_the_prefix_tree():
  end = 'E\n\n# Answer\n\n7'
  chains = read('prm800k')
  assert paths(chains) == [
    (('A', 'H', end), (RIGHT, UNKNOWN, RIGHT)),
    (('B',), (WRONG,)),
    (('A', 'C'), (UNKNOWN, WRONG)),
    (('A', 'H', 'D'), (UNKNOWN, UNKNOWN, NEUTRAL)),
  ]
  assert [chain.answer for chain in chains] == ['7', None, None, None]
  assert chains[0].problem == 'P'
  assert chains[0].outcome is None
  assert chains[0].meta == {
    'finish_reason': 'solution',
    'truth': '7',
  }


def test_prm800k_phase_2_ends_with_the_step_judged_wrong():
  chains = READERS['prm800k'](phase_2())
  assert paths(chains)[0] == (('A', 'H', 'wrong'), (RIGHT, UNKNOWN, WRONG))
  assert paths(chains)[-1] == (('A', 'H', 'D'), (UNKNOWN, UNKNOWN, RIGHT))
  assert len(chains) == 4


@pytest.mark.parametrize('generated', [None, [], ['A', 'H', 'x'], [1, 2, 3]])
def test_prm800k_without_a_choice_stops_at_the_prefix(generated):
  record = phase_2()
  record['question']['pre_generated_steps'] = generated
  chains = READERS['prm800k'](record)
  assert paths(chains)[0] == (('A', 'H'), (RIGHT, UNKNOWN))
  assert len(chains) == 5


def test_prm800k_keeps_a_rating_of_a_step_by_hand_that_was_not_chosen():
  record = example('prm800k')
  record['label']['steps'][1]['human_completion']['rating'] = 1
  record['label']['steps'][1]['chosen_completion'] = 0
  chains = READERS['prm800k'](record)
  assert paths(chains)[2] == (('A', 'H'), (UNKNOWN, RIGHT))
  assert chains[0].steps[:2] == ('A', 'C')


@pytest.mark.parametrize(
  ('where', 'value', 'reason'),
  [
    ('is_quality_control_question', True, 'quality control'),
    ('is_initial_screening_question', True, 'initial screening'),
    ('label', {'finish_reason': 'give_up', 'steps': []}, 'give_up'),
    ('label', {'finish_reason': 'bad_problem', 'steps': []}, 'bad_problem'),
    (
      'label',
      {
        'finish_reason': 'solution',
        'steps': [
          {
            'completions': None,
            'human_completion': None,
            'chosen_completion': None,
          }
        ],
      },
      'no step was reached',
    ),
  ],
)
def test_prm800k_skips_sessions_by_the_rules_of_the_format(
  where, value, reason
):
  assert read('prm800k', **{where: value}) == Skip(reason)


def test_prm800k_rejects_ratings_after_the_end():
  record = phase_2()
  record['label']['steps'].append(record['label']['steps'][0])
  with pytest.raises(UserError, match=r'steps\[3\] follows a step at which'):
    READERS['prm800k'](record)


def test_prm800k_flat():
  (chain,) = read('prm800k_flat')
  assert chain.labels == (RIGHT, NEUTRAL, UNKNOWN, WRONG)
  assert chain.steps == ('A', 'B', 'C', 'D')
  assert chain.meta == {'id': 'x'}
  with pytest.raises(UserError, match='3 ratings for 4 steps'):
    read('prm800k_flat', ratings=[1, 1, 1])
  for rating in (True, 2, 0.5, '1'):
    with pytest.raises(UserError, match=r'ratings\[3\] is .*expected 1, 0, -1'):
      read('prm800k_flat', ratings=[1, 1, 1, rating])


def judge(value):
  return StepLabel(value, 'judge')


def test_prmbench_counts_from_one():
  (chain,) = read('prmbench')
  assert (chain.problem, chain.steps) == ('M', ('a', 'x', 'y', 'd'))
  assert chain.labels == (judge(1.0), judge(0.0), judge(0.0), judge(1.0))
  assert chain.meta == {
    'classification': 'circular',
    'id': 'circular_p1_0',
    'group': 'prmbench:p1_0',
    'original_problem': 'O',
  }
  assert source_problem(chain) == source_problem(*read('prmbench_original'))
  (chain,) = read('prmbench', error_steps=None)
  assert chain.labels == (judge(1.0),) * 4


def test_prmbench_skips_indices_past_the_end_and_blank_steps():
  past = Skip('error_steps past the last step')
  assert read('prmbench', error_steps=[2, 5]) == past
  blank = ['a', '', 'c', 'd']
  assert read('prmbench', modified_process=blank) == Skip('blank step')
  assert read('prmbench_original', original_process=blank) == Skip('blank step')
  with pytest.raises(UserError, match=r'error_steps\[1\]'):
    read('prmbench', error_steps=[2, 0])


def test_prmbench_original_is_right_throughout():
  (chain,) = read('prmbench_original')
  assert (chain.problem, chain.steps) == ('O', ('a', 'b'))
  assert chain.labels == (RIGHT, RIGHT)


def test_processbench():
  (chain,) = read('processbench')
  assert chain.labels == (RIGHT, WRONG, UNKNOWN)
  assert chain.outcome is False
  assert chain.meta == {'id': 'gsm8k-0', 'generator': 'G'}
  (chain,) = read('processbench', label=-1, final_answer_correct=True)
  assert chain.labels == (RIGHT, RIGHT, RIGHT)
  assert chain.outcome is True
  for label in (3, -2, True, 1.0, None):
    with pytest.raises(UserError, match=r"'label' is .*integer in \[-1, 2\]"):
      read('processbench', label=label)


def test_verify_then_generate():
  (chain,) = read('verify_then_generate')
  assert chain.steps == ('a', 'b', '4')
  assert chain.labels == (RIGHT, WRONG, UNKNOWN)
  assert (chain.answer, chain.outcome) == ('4', False)
  with pytest.raises(UserError, match='incorrect_index'):
    read('verify_then_generate', incorrect_index=-1)


def test_math_aps_nests_prefixes_at_line_breaks():
  chains = read('math_aps')
  # 'x = 4' is not a parent of 'x = 42', and its second value gives a chain.
  assert sorted(paths(chains), key=repr) == sorted(
    [
      (('x = 4', 'so c'), (rollout(None), rollout(1.0))),
      (('x = 4', 'so d'), (rollout(0.75), rollout(0.25))),
      (('x = 4',), (rollout(0.625),)),
      (('x = 42',), (rollout(0.0),)),
    ],
    key=repr,
  )
  assert chains[0].problem == 'Q'
  assert chains[0].meta == {'problem_value': 0.5, 'truth': '4'}


def test_math_aps_tree_gives_a_shared_node_its_value_once():
  assert paths(read('math_aps_tree')) == [
    (('x = 4', 'so c'), (rollout(0.75), rollout(1.0))),
    (('x = 4', 'so d'), (rollout(None), rollout(0.25))),
    (('x = 42',), (rollout(0.0),)),
  ]


def test_math_aps_rejects_other_questions_and_skips_bare_ones():
  with pytest.raises(UserError, match='does not begin with the question'):
    read('math_aps', question='Other')
  glued = [{'solution_prefix': 'Qualify', 'mc_value': 0.5}]
  with pytest.raises(UserError, match='does not begin with the question'):
    read('math_aps', reasoning_steps=glued)
  with pytest.raises(UserError, match='is not the question'):
    read('math_aps_tree', question='Other')
  bare = [{'solution_prefix': 'Q', 'mc_value': 0.5}]
  skip = Skip('no step below the question')
  assert read('math_aps', reasoning_steps=bare) == skip


def test_a_step_tree_gives_one_chain_for_each_leaf():
  chains = read('step_tree')
  assert paths(chains) == [
    (('x = 4', 'so c'), (rollout(0.75), rollout(1.0))),
    (('x = 4', 'so d'), (rollout(None), rollout(None))),
    (('x = 42',), (rollout(0.0),)),
  ]
  assert chains[0].problem == 'Q'
  assert chains[0].meta == {'problem_value': 0.5, 'truth': '4'}


@pytest.mark.parametrize(
  ('node', 'change', 'message'),
  [
    (2, {'parent': 'c'}, r'nodes\[0\] is on a cycle, or below one'),
    (2, {'parent': 'x'}, r'nodes\[0\] is on a cycle, or below one'),
    (
      2,
      {'parent': 'y'},
      r"the parent 'y' of nodes\[2\] is not among the ",
    ),
    (4, {'parent': None}, '2 nodes have no parent: expected one, the root'),
    (1, {'parent': 'd'}, '0 nodes have no parent: expected one, the root'),
    (1, {'text': 'Other'}, r'the root, nodes\[1\], is not the question'),
    (3, {'text': ' \n'}, "'text' is ' .n': expected a non-blank string"),
    (3, {'id': 'c'}, r"nodes\[3\] has the id 'c' again"),
    (
      3,
      {'id': True},
      r"'id' of nodes\[3\] is True: expected text or",
    ),
    (3, {'value': 2}, r"'value' of nodes\[3\] is 2: expected a number"),
  ],
)
def test_a_step_tree_that_is_no_tree_is_named(tmp_path, node, change, message):
  record = example('step_tree')
  record['nodes'][node].update(change)
  path = tmp_path / 'some.jsonl'
  path.write_text(f'{json.dumps(example("step_tree"))}\n{json.dumps(record)}')
  with pytest.raises(UserError, match=f'^{path}:2: {message}.* step_tree'):
    read_chains(path, 'step_tree')


def test_a_nested_tree_with_two_roots_or_an_empty_step_is_rejected():
  tree = example('math_aps_tree')['reasoning_steps']
  with pytest.raises(UserError, match="list of 2 where an object with 'text'"):
    read('math_aps_tree', reasoning_steps=[tree, tree])
  tree['children'][0]['children'][1]['text'] = ' '
  with pytest.raises(UserError, match="'text' is ' ': expected a non-blank"):
    read('math_aps_tree', reasoning_steps=tree)


def test_a_deep_tree_is_walked_without_recursion():
  node = {'text': 'leaf', 'mc_value': 0.5, 'children': []}
  for _ in range(3000):
    node = {'text': 'n', 'mc_value': 0.5, 'children': [node]}
  root = {'text': 'Q', 'mc_value': 0.5, 'children': [node]}
  (chain,) = READERS['math_aps_tree'](
    {'question': 'Q', 'reasoning_steps': root}
  )
  assert len(chain.steps) == 3001


def test_ids_datasets_and_sources(tmp_path):
  path = tmp_path / 'some.jsonl'
  path.write_text(f'\n{json.dumps(example("prm800k"))}\n', 'utf-8')
  chains, summary = read_chains(path, 'prm800k')
  assert [c.meta['id'] for c in chains] == [f'some:1/{k}' for k in range(4)]
  assert chains[0].meta['dataset'] == 'prm800k'
  assert str(summary) == '1 records: 4 chains, 5 ratings'

  path.write_text(json.dumps(example('trl')), 'utf-8')
  (chain,), _ = read_chains(path, 'trl', source='judge')
  assert chain.labels == (judge(1.0), judge(0.25))
  assert chain.meta['id'] == 'some:1'

"""Gives one small valid record of every format to the tests of readers."""

import copy


def _completion(text, rating):
  return {'text': text, 'rating': rating, 'flagged': False}


def _step(completions, chosen, human=None):
  return {
    'completions': completions,
    'human_completion': human,
    'chosen_completion': chosen,
  }


_PHASE_1 = {
  'labeler': 'l',
  'timestamp': 't',
  'generation': None,
  'is_quality_control_question': False,
  'is_initial_screening_question': False,
  'question': {'problem': 'P', 'ground_truth_answer': '7'},
  'label': {
    'steps': [
      _step([_completion('A', 1), _completion('B', -1)], 0),
      _step([_completion('C', -1)], None, _completion('H', None)),
      _step([_completion('D', 0), _completion('E\n\n# Answer\n\n7', 1)], 1),
    ],
    'total_time': 1,
    'finish_reason': 'solution',
  },
}

EXAMPLES = {
  'prm800k': _PHASE_1,
  'prm800k_flat': {
    'id': 'x',
    'problem': 'P',
    'steps': ['A', 'B', 'C', 'D'],
    'ratings': [1, 0, None, -1],
  },
  'math_shepherd': {
    'input': 'How? Step 1: a ки\nStep 2: b. The answer is: 7 ки',
    'label': 'How? Step 1: a +\nStep 2: b. The answer is: 7 -',
    'task': 'GSM8K',
  },
  'trl': {'prompt': 'P', 'completions': ['A', 'B'], 'labels': [True, 0.25]},
  'rlhflow': {
    'conversations': [
      {'role': 'user', 'content': 'How? Step 1: a'},
      {'role': 'assistant', 'content': '+'},
      {'role': 'user', 'content': 'Step 2: b'},
      {'role': 'assistant', 'content': '-'},
    ]
  },
  'prmbench': {
    'original_question': 'O',
    'modified_question': 'M',
    'original_process': ['a', 'b'],
    'modified_process': ['a', 'x', 'y', 'd'],
    'modified_steps': [2],
    'error_steps': [2, 3],
    'reason': 'r',
    'classification': 'circular',
    'idx': 'circular_p1_0',
  },
  'processbench': {
    'id': 'gsm8k-0',
    'generator': 'G',
    'problem': 'P',
    'steps': ['a', 'b', 'c'],
    'final_answer_correct': False,
    'label': 1,
  },
  'big_bench_mistake': {
    'input': 'P',
    'target': '] }',
    'answer': '}',
    'steps': ['stack: empty', '{ ; stack: {', '] ; stack: {', 'So } '],
    'mistake_index': 2,
  },
  'parc': {
    'question': 'P',
    'ground_truth_answer': '7',
    'model_answer': '8',
    'steps': ['Step 1: a', 'Step 2: b', 'Step 3: c'],
    'is_correct': False,
    'premise_annotation': {
      'steps': [
        {'step_number': 0, 'original_step': 'P', 'premises': [[0, 'P']]},
        {'step_number': 1, 'original_step': 'a', 'premises': [[0, 'P']]},
        {
          'step_number': 2,
          'original_step': 'b',
          'premises': [[1, 'a'], [0, 'P'], [1, 'a again']],
        },
        {'step_number': 3, 'original_step': 'c', 'premises': [[2, 'b']]},
      ]
    },
    'error_annotation': {
      'error_annotations': {
        'step_level': [
          {'step_number': 1, 'has_error': False, 'errors': []},
          {
            'step_number': 2,
            'has_error': True,
            'errors': [{'error_type': 'Other', 'error_description': 'd'}],
          },
          {
            'step_number': 3,
            'has_error': True,
            'errors': [{'error_type': 'Accumulation_Error'}],
          },
        ]
      }
    },
  },
  'mr_ben': {
    'Question_UUID': 'u',
    'Subject': 'college_biology',
    'Question': 'P',
    'Options': 'A: x \nB: y ',
    'Ground_Truth_Analysis': '',
    'Ground_Truth_Answer': 'A',
    'Ground_Truth_Answer_Modified': 'B',
    'Sampled_Model': 'Claude2',
    'Model_Solution_Steps': [
      'Step 1: a',
      '',
      'Step 2: b',
      'Step 2.1: more of b',
      ' ',
      'Step 3: c',
      'Solution: Choice_B',
    ],
    'Model_Solution_Correctness': 'incorrect',
    'Model_Solution_First_Error_Step': '2',
    'Model_Solution_Error_Reason': ['r'],
    'Model_Solution_Rectified_First_Error_Step': ['Step 2: B'],
  },
  'agent_process_bench': {
    'total_index': 0,
    'query_index': 7,
    'sample_index': 2,
    'question': 'Which  city?',
    'data_source': 'searchR1_hotpotqa',
    'ground_truth': {'target': ['Adelaide']},
    'answer_text': 'Adelaide',
    'messages': [
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': 'Answer. Question: Which city?'},
      {
        'role': 'assistant',
        'content': '',
        'tool_calls': [
          {
            'id': 'c',
            'type': 'function',
            'function': {'name': 'search', 'arguments': '{"query": "q"}'},
          }
        ],
      },
      {
        'role': 'tool',
        'name': 'search',
        'content': '{"result": []}',
        'tool_call_id': 'c',
      },
      {'role': 'assistant', 'content': '<think>It is Perth.</think>'},
      {'role': 'user', 'content': 'Call a tool.'},
      {'role': 'assistant', 'content': '<answer>Adelaide</answer>'},
    ],
    'tool_metrics': {'search': [{'status': 'success'}]},
    'tools': [{'type': 'function', 'function': {'name': 'search'}}],
    'step_labels': {'2': 0, '4': -1, '6': 1},
    'final_label': 1,
  },
  'versa_prm': {
    'id': '1_mmlu_law',
    'question': 'P\nA. x\nB. y',
    'answer': 'B',
    'category': 'law',
    'src': 's',
    'cot_id': 3,
    'chain_of_thoughts': "['It is \\'a\\'.', 'So b.', \"So c.\", 'It is (A).']",
    'labels': '[1, 0, -1, -1]',
    'parsed_answer': 'A',
    'parsed_answer_correctness': False,
  },
  'gsm8k': {
    'question': 'P',
    'answer': 'So 48/2 = <<48/2=24>>24.\n\nThen 24+1=<<24+1=25>>25. \n#### 25',
  },
  'solution_pool': {
    'idx': 7,
    'question': 'P',
    'candidates': [
      {'source': 's', 'text': 'a\n\n b \n', 'answer': '4', 'correct': True},
      {'source': 't', 'text': 'c', 'answer': '5', 'correct': False},
    ],
  },
  'verify_then_generate': {
    'problem': 'P',
    'student_incorrect_solution': ['a', 'b', ' 4'],
    'incorrect_index': 1,
    'error_category': 'unit',
  },
  'math_aps': {
    'question': 'Q',
    'final_answer': '4',
    'reasoning_steps': [
      {'solution_prefix': 'Q', 'mc_value': 0.5},
      {'solution_prefix': 'Q\n\n\nx = 4', 'mc_value': 0.75},
      {'solution_prefix': 'Q\n\n\nx = 42', 'mc_value': 0.0},
      {'solution_prefix': 'Q\n\n\nx = 4\n\n so c', 'mc_value': 1.0},
      {'solution_prefix': 'Q\n\n\nx = 4\n\nso d', 'mc_value': 0.25},
      {'solution_prefix': 'Q\n\n\nx = 4', 'mc_value': 0.625},
    ],
  },
  'math_aps_tree': {
    'question': 'Q',
    'final_answer': '4',
    'reasoning_steps': {
      'text': 'Q',
      'mc_value': 0.5,
      'children': [
        {
          'text': 'x = 4',
          'mc_value': 0.75,
          'children': [
            {'text': 'so c', 'mc_value': 1.0, 'children': []},
            {'text': 'so d', 'mc_value': 0.25, 'children': []},
          ],
        },
        {'text': 'x = 42', 'mc_value': 0.0, 'children': []},
      ],
    },
  },
}
EXAMPLES['step_tree'] = {
  'question': 'Q',
  'final_answer': '4',
  'nodes': [
    {'id': 'c', 'parent': 'x', 'text': 'so c', 'value': 1.0},
    {'id': 0, 'parent': None, 'text': 'Q', 'value': 0.5},
    {'id': 'x', 'parent': 0, 'text': 'x = 4', 'value': 0.75},
    {'id': 'd', 'parent': 'x', 'text': 'so d', 'value': None},
    {'id': 3, 'parent': 0, 'text': 'x = 42', 'value': 0.0},
  ],
}
EXAMPLES['chains'] = {
  'problem': 'P',
  'steps': ['A', 'B'],
  'answer': '42',
  'outcome': True,
  'labels': [
    {
      'value': 0.75,
      'source': 'rollout',
      'successes': 6,
      'trials': 8,
      'neutral': False,
    },
    {'value': None, 'source': 'human'},
  ],
  'meta': {'dataset': 'arithmetic'},
}
EXAMPLES['prmbench_original'] = EXAMPLES['prmbench']
EXAMPLES['gsm8k_stated'] = EXAMPLES['gsm8k']


def phase_2():
  """Returns a raw PRM800K record of phase 2, which stops at the first error."""
  record = example('prm800k')
  last = record['label']['steps'][2]
  last['chosen_completion'] = None
  last['completions'] = [_completion('D', 1), _completion('wrong', -1)]
  record['label']['finish_reason'] = 'found_error'
  record['question']['pre_generated_steps'] = ['A', 'H', 'wrong', 'after']
  return record


def mr_ben_code():
  """Returns a Mr-Ben record whose solution is code."""
  record = example('mr_ben')
  for name in ('Options', 'Ground_Truth_Analysis'):
    del record[name]
  del record['Ground_Truth_Answer_Modified']
  return record | {
    'Subject': 'coding',
    'Ground_Truth_Answer': '',
    'Model_Solution_Steps': 'def f(x):\n\n  y = x\n  if x:\n    y = x \n\n',
    'Model_Solution_First_Error_Step': '    y = x',
    'Model_Solution_Error_Reason': 'r',
  }


def versa_prm_question():
  """Returns a question of VersaPRM's training file, with several chains."""
  return {
    'id': '1_mmlu_law',
    'category': 'law',
    'question': 'P',
    'answer': 'B',
    'chain_of_thoughts': [
      {'steps': ['a', 'b'], 'labels': [1, -1], 'augs': []},
      {'steps': ['c'], 'labels': None},
      {'steps': ['d', ''], 'labels': [1, 1]},
      {
        'steps': ['e', 'It is (B).'],
        'labels': [1, 1],
        'parsed_answer': 'B',
        'parsed_answer_correctness': True,
      },
    ],
  }


# Other layouts of some formats.
VARIANTS = {
  'prm800k': phase_2,
  'mr_ben': mr_ben_code,
  'versa_prm': versa_prm_question,
}


def example(fmt):
  """Returns a copy of a format's example, which the caller may change."""
  return copy.deepcopy(EXAMPLES[fmt])

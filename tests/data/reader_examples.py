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
EXAMPLES['mr_gsm8k'] = EXAMPLES['processbench']
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


def example(fmt):
  """Returns a copy of a format's example, which the caller may change."""
  return copy.deepcopy(EXAMPLES[fmt])

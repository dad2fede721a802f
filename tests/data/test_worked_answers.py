"""Worked answers of a file beside human labels, through to the splits."""

import json

import pytest

from prm_jax.data.chains import Chain, first_error
from prm_jax.data.config import DataConfig
from prm_jax.data.datasets import load_dataset
from prm_jax.data.domains.worked_answers import plant_errors
from prm_jax.runtime.errors import UserError

KNOWN = 'Eva has 3 bags of 5 nuts and eats 1. How many nuts are left?'


def worked(i):
  total = 7 * (i + 2)
  return {
    'question': f'Jo buys {i + 2} boxes of 7 pens and loses 4. How many now?',
    'answer': f'Jo buys {i + 2} * 7 = <<{i + 2}*7={total}>>{total} pens.\n'
    f'Then {total} - 4 = <<{total}-4={total - 4}>>{total - 4} are left.\n'
    f'#### {total - 4}',
  }


def write(path, records):
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))


def load(tmp_path, answers):
  write(tmp_path / 'answers.jsonl', answers)
  human = [
    {'id': str(i), 'problem': f'P{i}?', 'steps': ['a'], 'ratings': [1]}
    for i in range(20)
  ]
  write(tmp_path / 'human.jsonl', human)
  write(tmp_path / 'known.jsonl', [{'problem': KNOWN}])
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('human.jsonl', 'prm800k_flat'),),
    decontaminate=('known.jsonl',),
    dev_share=0.3,
    worked_answers='answers.jsonl',
  )
  lines = []
  return load_dataset(config, 0, tmp_path / 'run', lines.append), lines


def test_planted_chains_are_split_and_decontaminated_as_all_are(tmp_path):
  known = {
    'question': KNOWN,
    'answer': 'Eva has 3 * 5 = 15.\n15 - 1 = 14 are left.\n#### 14',
  }
  unusable = {'question': 'Q?', 'answer': 'It is three.\n#### 3'}
  (tmp_path / 'run').mkdir()
  dataset, lines = load(tmp_path, [*map(worked, range(40)), known, unusable])
  (line,) = [line for line in lines if line.startswith('planted')]
  assert 'of 41 worked answers; 1 others cannot be calculated' in line
  every = {'train': dataset.train, 'dev': dataset.dev}
  planted = {
    split: [c for c in chains if c.meta['dataset'] == 'planted']
    for split, chains in every.items()
  }
  assert len(planted['train']) + len(planted['dev']) == 40  # not KNOWN
  assert len(planted['dev']) > 4
  wrong = [c for c in planted['train'] if first_error(c.labels) >= 0]
  assert 5 < len(wrong) < len(planted['train']) - 5
  problems = [{c.problem for c in chains} for chains in every.values()]
  assert not problems[0] & problems[1]


def test_answers_below_zero_are_left_out():
  """The sign is no part of the number that an error changes."""
  chains = [
    Chain('3 less 8?', ('8 - 3 = 5, owed.',), answer, True)
    for answer in ('5', '-5')
  ]
  for share in (0.0, 1.0):
    (planted,) = plant_errors(chains, 0, error_share=share, repeat_share=0.0)
    assert planted.meta['solution'][-1] == 'The answer is 5.'


@pytest.mark.parametrize(
  ('answer', 'said'),
  [
    ('It is three.\n#### 3', 'has no answer whose equations can be calculated'),
    ('It is three.', "answers.jsonl:1: 'answer' is no worked answer"),
  ],
)
def test_a_file_of_nothing_is_refused(tmp_path, answer, said):
  (tmp_path / 'run').mkdir()
  with pytest.raises(UserError, match=said):
    load(tmp_path, [{'question': 'Q?', 'answer': answer}])


def test_variants_of_a_problem_are_in_one_split(tmp_path):
  """PRMBench changes some questions; their own problem stays in training."""
  records = [
    {
      'classification': 'circular',
      'idx': f'circular_{i}_{k}',
      'original_question': f'P{i}?',
      'modified_question': f'P{i}?' if k else f'P{i}, if Q{i}?',
      'original_process': ['a', 'b'],
      'modified_process': ['a', 'c'],
      'error_steps': [2],
    }
    for i in range(40)
    for k in range(2)
  ]
  write(tmp_path / 'bench.jsonl', records)
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('bench.jsonl', 'prmbench'), ('bench.jsonl', 'prmbench_original')),
    dev_share=0.3,
  )
  (tmp_path / 'run').mkdir()
  dataset = load_dataset(config, 0, tmp_path / 'run', [].append)
  own = [
    {chain.problem[:3].strip('?,') for chain in chains}
    for chains in (dataset.train, dataset.dev)
  ]
  assert len(own[0] | own[1]) == 40
  assert not own[0] & own[1]


def test_answers_that_take_long_to_parse_are_left_out(tmp_path):
  (tmp_path / 'run').mkdir()
  deep = 'It is ' + '(' * 1500 + '7' + ')' * 1500 + ' = 7.\n#### 7'
  long = 'It is ' + '(3 + ' * 300 + '1 = 7.\n#### 7'
  odd = [
    {'question': f'Why {i}?', 'answer': answer}
    for i, answer in enumerate((deep, long))
  ]
  _, lines = load(tmp_path, [*map(worked, range(40)), *odd])
  (line,) = [line for line in lines if line.startswith('planted')]
  assert 'of 40 worked answers; 2 others cannot be calculated' in line

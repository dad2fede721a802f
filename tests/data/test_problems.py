"""Reads problems from files, by the names that files give their fields."""

import json

import pytest

from prm_jax.data.config import DataConfig, ProblemsConfig, SplitConfig
from prm_jax.data.domain_splits import words_splits
from prm_jax.data.domains.words import WordsConfig
from prm_jax.data.problems import (
  Problem,
  choose_problems,
  read_problems,
)
from prm_jax.runtime.errors import UserError
from tests.shared import configs
from tests.shared.real_data import shared


def read(tmp_path, *found):
  lines = ''.join(json.dumps(record) + '\n' for record in found)
  (tmp_path / 'p.jsonl').write_text(lines)
  return read_file(tmp_path / 'p.jsonl')


def write_problems(path, count):
  path.parent.mkdir(exist_ok=True)
  records = [{'problem': f'{n}?', 'answer': n} for n in range(count)]
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))


def read_file(path):
  config = ProblemsConfig(kind='file', root=str(path.parent), path=path.name)
  return read_problems(config, 'train', 0)


def test_names_and_answers(tmp_path):
  found = read(
    tmp_path,
    {'problem': 'a?', 'answer': '1/2'},
    {'question': 'b?', 'answer': 'So it is 72.\n#### 72'},
    {'input': 'c?', 'target': 39.0},
    {'input': 'd?', 'target': 0.25},
    {'problem': 'e?', 'answer': 2**61 + 1},
    {'problem': 'f?', 'answer': 1234567890123.0},
  )
  assert [p.truth for p in found] == [
    *('1/2', '72', '39', '0.25', f'{2**61 + 1}', '1234567890123')
  ]
  assert found[2] == Problem('p:3', 'p', 'c?', '39')


def test_an_empty_split_is_named():
  config = ProblemsConfig(test_problems=0)
  with pytest.raises(UserError, match=r'problems\.test_problems=0: there'):
    read_problems(config, 'test', 0)


@pytest.mark.parametrize(
  ('record', 'why'),
  [
    ({'problem': 'a?'}, "p.jsonl:2: .*'answer' is missing"),
    ({'answer': '1'}, "p.jsonl:2: .*'problem' is missing"),
    ({'problem': 'a?', 'answer': True}, "'answer' is True: expected"),
    ({'problem': 'a?', 'answer': '#### '}, "'answer' has nothing after ####"),
    ([1], 'a list of 1 where a JSON object belongs'),
  ],
)
def test_a_bad_record_is_named(tmp_path, record, why):
  with pytest.raises(UserError, match=why):
    read(tmp_path, {'problem': 'a?', 'answer': '1'}, record)


@pytest.mark.parametrize(
  ('first', 'count', 'chosen'),
  [(0, 0, range(40)), (0, 3, range(3)), (38, 0, (38, 39)), (38, 5, (38, 39))],
)
def test_jobs_work_on_some_problems_of_a_file(tmp_path, first, count, chosen):
  """All are read, and those chosen keep their numbers."""
  write_problems(tmp_path / 'p.jsonl', 40)
  some = dict(kind='file', root=str(tmp_path), path='p.jsonl')
  found = choose_problems(SplitConfig(**some, first=first, count=count), 0)
  assert [problem.id for problem in found] == [f'p:{n + 1}' for n in chosen]


def test_there_has_to_be_a_first_problem(tmp_path):
  write_problems(tmp_path / 'p.jsonl', 4)
  some = dict(kind='file', root=str(tmp_path), path='p.jsonl')
  config = SplitConfig(**some, first=4)
  with pytest.raises(UserError, match=r'first=4: there are 4 problems; lower'):
    choose_problems(config, 0)


def test_tiny_samples_few_problems_of_a_file(tmp_path):
  write_problems(tmp_path / 'gsm8k' / 'train.jsonl', 40)
  root = {'problems.root': str(tmp_path), 'policy.workdir': '/p'}
  settings = configs.settings(
    'sample_math', 'gsm8k,tiny', **root, **{'policy.kind': 'workdir'}
  )
  assert len(choose_problems(settings.problems, settings.seed)) == 16


@pytest.mark.parametrize(
  ('path', 'text', 'truth'),
  [
    ('gsm8k/test.jsonl', 'Janet\u2019s ducks lay 16 eggs', '18'),
    ('word_problems/mawps_multiarith.jsonl', 'For Halloween Debby', '39'),
  ],
)
def test_real_files_are_read(path, text, truth):
  first = read_file(shared(path))[0]
  assert first.text.startswith(text)
  assert first.truth == truth


def test_word_problems_are_those_of_the_models_with_their_right_answers():
  pytest.importorskip('reasoning_gym', reason="needs 'prm_jax[words]'")
  draw = dict(train_problems=30, dev_problems=10, test_problems=10)
  found = {
    split: read_problems(ProblemsConfig(kind='words', **draw), split, 1)
    for split in ('train', 'dev', 'test')
  }
  data = DataConfig(kind='words', test_samples=2, **draw)
  learned = words_splits(data, data.words, 1, data.test_samples)
  # Those of right solutions alone are the same problems, with these answers.
  right = words_splits(data, WordsConfig(error_share=0.0), 1)
  parts = {
    'train': (learned.train, right.train),
    'dev': (learned.dev, right.dev),
    'test': (learned.evaluations['words'][::2], right.evaluations['words']),
  }
  for split, (chains, expected) in parts.items():
    texts = [problem.text for problem in found[split]]
    assert texts == [chain.problem for chain in chains]
    assert texts == [chain.problem for chain in expected]
    truths = [problem.truth for problem in found[split]]
    assert truths == [chain.answer for chain in expected]
    assert all(problem.dataset == 'words' for problem in found[split])
  # Some chains of the data end wrong, so their answers are not the truth.
  assert any(
    chain.answer != problem.truth
    for chain, problem in zip(learned.train, found['train'], strict=True)
  )

"""Reads problems from files, by the names that files give their fields."""

import json

import pytest

from prm_jax.data.problems import Problem, ProblemsConfig, read_problems
from prm_jax.runtime.errors import UserError
from tests.shared.real_data import shared


def read(tmp_path, *found):
  lines = ''.join(json.dumps(record) + '\n' for record in found)
  (tmp_path / 'p.jsonl').write_text(lines)
  return read_file(tmp_path / 'p.jsonl')


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
    {'problem': 'e?', 'answer': 1234567},
  )
  assert [p.truth for p in found] == ['1/2', '72', '39', '0.25', '1234567']
  assert found[2] == Problem('p:3', 'p', 'c?', '39')


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

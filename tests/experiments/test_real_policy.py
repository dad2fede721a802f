"""The files of experiments.real_policy."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest

from experiments.real_policy import run
from experiments.real_policy.story import DOMAINS, QUICK, WINDOW, Story
from experiments.runner import Runner
from prm_jax.data.chains import Chain
from prm_jax.report import readme_table
from tests.shared.configs import raw

pytestmark = pytest.mark.once

RESULTS = pathlib.Path(run.__file__).with_name('results.json')


def test_a_table_made_again_leaves_the_commit_of_each_result(
  tmp_path, monkeypatch
):
  pytest.importorskip('matplotlib', reason="needs 'prm_jax[experiments]'")
  output = tmp_path / 'results.json'
  output.write_text(RESULTS.read_text())
  monkeypatch.setattr(run.manifest, 'git_commit', lambda: 'later')
  flags = (f'--workdir={tmp_path}', f'--data-root={tmp_path}', '--domains')
  monkeypatch.setattr(sys, 'argv', ['run.py', *flags, f'--output={tmp_path}'])
  run.main()
  found = json.loads(output.read_text())
  assert found == json.loads(RESULTS.read_text())
  assert all(each['git_commit'] for each in found['results'].values())


@pytest.mark.parametrize('name', DOMAINS)
def test_models_read_no_more_than_their_policy(name):
  config = raw('policy_math', DOMAINS[name].variant)
  assert config['data']['max_length'] == WINDOW


def test_a_candidate_without_a_step_counts_as_a_wrong_one():
  """Two problems of two candidates, of which the second's other one is lost."""
  chains = [
    Chain('a', ('1',), '1', outcome=True),
    Chain('a', ('2',), '2', outcome=False),
    Chain('b', ('3',), '3', outcome=True),
  ]
  methods = {
    'prm_verifier': np.array([0.1, 0.9, -5.0]),
    run.CALCULATOR: np.array([0.0, -1.0, 0.0]),
  }
  found = run.pick(chains, methods, candidates=2)
  assert found['n'] == [1, 2]
  # One candidate is right in half of the draws; of two the PRM picks the wrong
  # one of the first problem, and the only one that the second has.
  assert found['prm_verifier']['mean'] == [0.5, 0.5]
  assert found[run.CALCULATOR]['mean'] == [0.5, 1.0]
  assert found['oracle']['mean'] == [0.5, 1.0]
  # Only the chains without a false equation vote.
  assert found[run.CHECKED_VOTE]['mean'] == [0.5, 1.0]


def kept_while(write, path, tmp_path):
  """Returns what a reader that has opened a file goes on reading."""
  os.link(path, tmp_path / 'opened')
  write()
  return (tmp_path / 'opened').read_text()


def test_problems_are_written_once_and_as_a_whole(tmp_path):
  (tmp_path / 'gsm8k').mkdir()
  source = tmp_path / 'gsm8k/test.jsonl'
  source.write_text('{"question": "a"}\n{"question": "b"}\n')
  story = Story(Runner(tmp_path / 'work', 1), 'gsm8k', tmp_path, QUICK, 4)
  path = story.write_problems('test', 1)
  before = path.stat()
  assert story.write_problems('test', 1) == path
  assert path.stat() == before
  source.write_text('{"question": "c"}\n')
  opened = kept_while(lambda: story.write_problems('test', 1), path, tmp_path)
  assert opened == '{"question": "a"}\n'
  assert path.read_text() == '{"question": "c"}\n'


def test_a_readme_is_written_as_a_whole_and_only_where_it_changes(tmp_path):
  path = tmp_path / 'README.md'
  path.write_text(f'before\n{readme_table.MARK}old\n{readme_table.MARK}after\n')
  before = path.stat()
  readme_table.fill(path, 'old')
  assert path.stat() == before
  opened = kept_while(lambda: readme_table.fill(path, 'new'), path, tmp_path)
  assert 'old' in opened and 'new' in path.read_text()

"""experiments.published, on random weights in the published layouts."""

import json
import shutil
import sys

import numpy as np
import pytest

from experiments.published import run
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.runtime import manifest
from tests.shared.published_models import write_model

pytestmark = pytest.mark.once

STYLES = {
  'math_shepherd_7b': 'math_shepherd',
  'rlhflow_mistral_8b': 'rlhflow',
  'skywork_1_5b': 'skywork',
  'qwen2_5_math_prm_7b': 'qwen_prm',
}


@pytest.fixture
def data(tmp_path):
  """Two sets of a few chains, every second one with an error."""
  folder = tmp_path / 'data/processbench'
  folder.mkdir(parents=True)
  for name, count in (('gsm8k', 12), ('math', 8)):
    records = [
      {
        'id': f'{name}-{i}',
        'generator': 'nobody',
        'problem': f'What is {i} and {i + 1}?',
        'steps': [
          f'{i} is a number.',
          f'So the answer is {2 * i + 1 + i % 2}.',
        ],
        'final_answer_correct': i % 2 == 0,
        'label': i % 4 // 2 if i % 2 else -1,
      }
      for i in range(count)
    ]
    (folder / f'{name}.json').write_text(json.dumps(records))
  return tmp_path / 'data'


def call(monkeypatch, *flags):
  monkeypatch.setattr(sys, 'argv', ['run.py', *map(str, flags)])
  run.main()


@pytest.mark.slow
def test_every_layout_is_scored_once_and_compared(
  data, tmp_path, monkeypatch, capsys
):
  models = []
  for name, style in STYLES.items():
    (tmp_path / name).mkdir()
    write_model(style, tmp_path / name)
    models.append(f'{name}={tmp_path / name}')
  flags = ('--workdir', tmp_path / 'work', '--data-root', data)
  flags += ('--output', tmp_path / 'out', '--dtype', 'float32')
  (tmp_path / 'out').mkdir()
  call(monkeypatch, *flags, '--models', *models[:3])
  # What was scored is not scored again, and results of others stay.
  shutil.rmtree(tmp_path / 'skywork_1_5b')
  call(monkeypatch, *flags, '--models', *models[2:])
  found = json.loads((tmp_path / 'out/results.json').read_text())['models']
  assert found.keys() == STYLES.keys()
  # The table made again is no new measurement.
  with monkeypatch.context() as later:
    later.setattr(run.manifest, 'git_commit', lambda: 'later')
    call(later, *flags, '--models')
  again = json.loads((tmp_path / 'out/results.json').read_text())
  assert again['models'] == found and 'git_commit' not in again
  for name, each in found.items():
    assert (each['dtype'], each['from_hub']) == ('float32', False)
    assert each['git_commit'] == manifest.git_commit()
    sets = each['sets']
    assert sets.keys() == {'gsm8k', 'math'}
    assert sets['math']['published'] == run.MODELS[name].f1[1]
    assert sets['gsm8k']['chosen']['f1'] >= sets['gsm8k']['half']['f1']
    assert (sets['gsm8k']['chains'], sets['gsm8k']['unread']) == (12, 0)
    same = {own['chosen']['threshold'] for own in sets.values()}
    assert len(same) == 1
  # One that is not there is named, and the next is read.
  before = (tmp_path / 'out/results.json').read_text()
  with pytest.raises(SystemExit):
    call(monkeypatch, *flags, '--models', 'skywork_7b=/nowhere', models[0])
  assert 'were not read: skywork_7b: /nowhere' in capsys.readouterr().err
  assert (
    json.loads((tmp_path / 'out/results.json').read_text())['models']
    == json.loads(before)['models']
  )
  # Scores of other chains are not taken for those of these.
  path = data / 'processbench/math.json'
  path.write_text(path.read_text().replace('math-3', 'math-x'))
  with pytest.raises(SystemExit):
    call(monkeypatch, *flags, '--models', models[0])
  assert 'has scores of other chains; delete' in capsys.readouterr().err


def labelled(first):
  values = [float(first < 0 or i < first) for i in range(2)]
  return Chain('q', ('a', 'b'), labels=tuple(map(StepLabel, values)))


def test_f1_by_both_thresholds_by_hand():
  """At 0.5 all first steps of the second set are flagged."""
  chains = [labelled(1), labelled(-1)]
  scores = {
    'gsm8k': [np.array([0.4, 0.1]), np.array([0.4, 0.3])],
    'math': [np.array([0.45, 0.2]), np.array([0.3, 0.9])],
  }
  sets = dict.fromkeys(scores, chains)
  found = run.measure(sets, scores, (100.0, 60.0, 0.0, 0.0))
  assert [found['gsm8k'][rule]['f1'] for rule in ('half', 'chosen')] == [0, 100]
  assert found['gsm8k']['chosen']['threshold'] == pytest.approx(0.2)
  assert found['gsm8k']['verdict'] == 'the same, at that of gsm8k'
  assert found['math']['verdict'].startswith('-60.0 at ')


def test_verdicts():
  def own(half, chosen, published):
    one = {'ci95': [half - 2, half + 2], 'f1': half}
    other = {'ci95': [chosen - 2, chosen + 2], 'f1': chosen}
    return {'half': one, 'chosen': other, 'published': published}

  assert run.verdict(own(70.3, 50, 70.0)) == 'the same, at 0.5'
  assert run.verdict(own(50, 69.0, 70.0)) == (
    '-1.0 at that of gsm8k, within the interval'
  )
  assert run.verdict(own(50, 75.0, 70.0)) == (
    '+5.0 at that of gsm8k, outside the interval'
  )


def test_an_unknown_model_is_refused(data, tmp_path, monkeypatch, capsys):
  flags = ('--workdir', tmp_path, '--data-root', data, '--models', 'gpt')
  with pytest.raises(SystemExit):
    call(monkeypatch, *flags, '--output', tmp_path)
  assert '--models gpt: expected one of math_shepherd_7b' in (
    capsys.readouterr().err
  )

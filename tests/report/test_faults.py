"""Malformed workdirs: one line that names the file and what is wrong."""

import copy
import json

import pytest

from prm_jax.report import write_report
from prm_jax.runtime.errors import UserError
from tests.report.workdir import DOCUMENT, record, write


@pytest.mark.parametrize(
  'break_it, named',
  [
    (lambda d: d.pop('manifest'), "'manifest'"),
    (lambda d: d['results'].update(best_of_n=3), 'best_of_n'),
    (lambda d: d['results']['best_of_n'].update(n=[4, 1]), 'best_of_n.n'),
    (
      lambda d: d['results']['best_of_n']['orm']['mean'].pop(),
      'best_of_n.orm.mean',
    ),
    (
      lambda d: d['results']['best_of_n']['orm'].update(ci95=[1, 2, 3]),
      'best_of_n.orm.ci95',
    ),
    (
      lambda d: d['results']['localisation']['gsm8k'].update(f1=31.3),
      'localisation.gsm8k.f1 is 31.3',
    ),
    (
      lambda d: d['results']['localisation']['gsm8k'].update(by_position=[1]),
      'localisation.gsm8k.by_position[0]: expected counts right_kept',
    ),
    (
      lambda d: d['results']['localisation']['gsm8k'].pop('f1'),
      'localisation.gsm8k',
    ),
    (
      lambda d: d['results']['calibration']['gsm8k']['reliability'][
        'count'
      ].pop(),
      'calibration.gsm8k.reliability.score',
    ),
  ],
)
def test_a_malformed_result_is_one_line_that_names_it(
  tmp_path, break_it, named
):
  document = copy.deepcopy(DOCUMENT)
  break_it(document)
  (tmp_path / 'results.json').write_text(json.dumps(document))
  with pytest.raises(UserError) as caught:
    write_report(tmp_path)
  message = str(caught.value)
  assert named in message and 'results.json' in message
  assert '\n' not in message
  assert not (tmp_path / 'report.html').exists()


def test_missing_and_unreadable_files_are_named(tmp_path):
  with pytest.raises(UserError, match=r'results\.json: no such file'):
    write_report(tmp_path)
  for text in (b'{"manifest": ', b'[1]', b'\xff\xfe\xfd'):
    (tmp_path / 'results.json').write_bytes(text)
    with pytest.raises(UserError, match=r'results\.json .*; the command'):
      write_report(tmp_path)
  write(tmp_path, metrics={'.': [{'step': 0}, {'loss': 1.0}]})
  with pytest.raises(UserError, match=r'metrics\.jsonl:2: '):
    write_report(tmp_path)
  write(tmp_path, metrics={'.': [{'step': 0}]}, records=[record(scores=(0.5,))])
  with pytest.raises(UserError, match=r'chains\.jsonl:1: expected 3 scores'):
    write_report(tmp_path)


def test_a_metric_beyond_all_floats_names_its_line(tmp_path):
  write(tmp_path, metrics={'.': [{'step': 1, 'loss': 10**400}]})
  with pytest.raises(UserError, match=r'metrics\.jsonl:1: loss is too large'):
    write_report(tmp_path)

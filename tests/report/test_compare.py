"""The comparison of runs: the command, and the contents of the page."""

import json
import subprocess
import sys

import pytest

from prm_jax.report.compare import compare
from prm_jax.report.page import write_report
from prm_jax.report.sections import NOTHING
from prm_jax.runtime.errors import UserError
from tests.report.workdir import DOCUMENT, losses, parse, table, write
from tests.shared.command_line import ROOT


@pytest.fixture
def two(tmp_path):
  """Two runs that differ in a learning rate and in their results."""
  for name, lr, gain in (('a', 0.1, 0.0), ('b', 0.2, 0.05)):
    workdir = tmp_path / name
    workdir.mkdir()
    results = json.loads(json.dumps(DOCUMENT['results']))
    results['best_of_n']['prm_min']['mean'][-1] += gain
    if name == 'b':
      results['calibration']['math'] = {'ece': 0.5}
    write(workdir, results, metrics={'.': losses(40, 0.2 + gain)})
    config = {'seed': 0, 'optim': {'lr': lr, 'name': 'adamw'}}
    (workdir / 'config.json').write_text(json.dumps(config))
  return [str(tmp_path / name) for name in 'ab']


def run(*args):
  return subprocess.run(
    [sys.executable, '-m', 'prm_jax.report', *map(str, args)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def rows_of(page, section):
  return {
    name: cells
    for name, *cells in table(page.by_id(section).all('table')[0])[1:]
  }


def test_the_command_compares_runs(two, tmp_path):
  output = tmp_path / 'both.html'
  done = run(*two, f'--output={output}')
  assert (done.returncode, done.stdout) == (0, f'{output}\n'), done.stderr
  page = parse(output)
  numbers = rows_of(page, 'numbers')
  # A curve is given by its last point.
  assert numbers['best_of_n.prm_min, N = 64'] == [
    '0.8552 [0.8252, 0.8752]',
    '0.9052 [0.8252, 0.8752]',
  ]
  assert numbers['localisation.gsm8k.f1'] == ['0.313 [0.26, 0.366]'] * 2
  assert numbers['localisation.gsm8k.acc_error'] == ['0.22'] * 2
  assert numbers['calibration.math.ece'] == [NOTHING, '0.5']
  assert numbers['speed'] == ['1,234'] * 2
  assert rows_of(page, 'settings') == {'optim.lr': ['0.1', '0.2']}
  figure = page.by_id('curves').all('svg')[0]
  assert 'a ends with' in figure.attributes['aria-label']
  assert not page.all('script')


def test_the_report_of_one_run_is_written_again(two):
  before = write_report(two[0]).read_bytes()
  (write_report(two[0])).unlink()
  done = run(two[0])
  assert done.returncode == 0 and done.stdout.endswith('a/report.html\n')
  assert (write_report(two[0])).read_bytes() == before


def test_names_of_runs_are_escaped(two, tmp_path):
  evil = tmp_path / '<script>alert(1)'
  evil.mkdir()
  write(evil)
  text = compare([two[0], str(evil)])
  assert '<script' not in text
  # A setting that only one of the runs has.
  assert 'optim.lr' in text


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    (['a'], '1 runs to compare: expected 2 to 4'),
    (['a', 'a'], 'a run is named twice'),
    (['a', '/nowhere'], '/nowhere/results.json: no such file'),
  ],
)
def test_runs_that_cannot_be_compared(names, message, two):
  paths = [two[0] if name == 'a' else name for name in names]
  with pytest.raises(UserError, match=message):
    compare(paths)
  if len(names) > 1:
    done = run(*paths)
    assert done.returncode == 2 and 'Traceback' not in done.stderr
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1


def test_what_was_logged_once_has_no_chart(two, tmp_path):
  for name, steps in (('c', 1), ('d', 1), ('e', 3)):
    (tmp_path / name).mkdir()
    write(tmp_path / name, metrics={'.': losses(steps, 0.2)})
  for names, charted in (('cd', False), ('ce', False), ('ab', True)):
    page = compare([str(tmp_path / name) for name in names])
    assert ('Line chart of loss' in page) == charted


def test_an_interval_without_numbers_is_left_out(two, tmp_path):
  odd = tmp_path / 'odd'
  odd.mkdir()
  curve = {'mean': [0.5], 'ci95': [[None, None]]}
  write(odd, {'best_of_n': {'prm': curve}})
  assert '0.5' in compare([two[0], str(odd)])


def test_one_run_has_no_other_file(two, tmp_path):
  done = run(two[0], f'--output={tmp_path / "x.html"}')
  assert done.returncode == 2 and '--output is for several' in done.stderr
  assert not (tmp_path / 'x.html').exists()


@pytest.mark.parametrize('bounds', [[[0.1]], [[{}, 1]], [3], [['a', 'b']]])
def test_intervals_of_another_form_are_one_line(bounds, two, tmp_path):
  odd = tmp_path / 'odd'
  odd.mkdir()
  write(odd, {'best_of_n': {'prm': {'mean': [0.5], 'ci95': bounds}}})
  with pytest.raises(UserError, match='have the documented form') as error:
    compare([two[0], str(odd)])
  assert str(odd) in str(error.value)
  assert '\n' not in str(error.value)

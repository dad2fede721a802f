"""The accelerator command: what it does with time, faults and results."""

import argparse
import json
import subprocess
import sys

import pytest

from experiments.accelerator import keep, results, run
from tests.shared.command_line import ROOT


def command(workdir, *args):
  """Runs the command at tiny size, our side alone."""
  return subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.accelerator.run'),
      *(f'--workdir={workdir}', '--tiny', *args),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.slow
def test_a_part_that_fails_is_reported_and_the_next_is_run(tmp_path):
  (tmp_path / 'machine').write_text('a file where a folder has to be')
  done = command(tmp_path, '--parts', 'machine', 'sampling')
  assert done.returncode == 1
  said = 'machine.ours.0: exit code 1: FileExistsError: '
  assert f'failed: {said}' in done.stdout
  found = json.loads((tmp_path / 'results.json').read_text())
  assert found['parts'].keys() == {'sampling'}
  log = (tmp_path / 'logs/machine.ours.0.txt').read_text()
  assert log.startswith('Traceback')

  # The same command goes on: it runs what failed, and nothing else again.
  (tmp_path / 'machine').unlink()
  (made,) = (tmp_path / 'sampling').glob('*.ours.0.json')
  before = made.stat().st_mtime_ns
  done = command(tmp_path, '--parts', 'machine', 'sampling')
  assert done.returncode == 0, done.stdout + done.stderr
  found = json.loads((tmp_path / 'results.json').read_text())
  assert found['failed'] == {}
  assert found['machine']['device'] == 'cpu'
  assert made.stat().st_mtime_ns == before


@pytest.mark.slow
def test_cases_without_time_are_left_for_the_next_call(tmp_path):
  done = command(tmp_path, '--parts', 'machine', '--minutes=0')
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'no time for all cases of machine.ours.0' in done.stdout
  assert not [*(tmp_path / 'machine').glob('*.json')]


def test_a_case_that_fails_does_not_stop_the_next(tmp_path):
  script = tmp_path / 'side.py'
  script.write_text(
    'from experiments.accelerator import cases\n'
    "cases.run(cases.read_arguments(), {'a': lambda: {'x': 1 / 0}, "
    "'b': lambda: {'x': 1}})\n"
  )
  folder = tmp_path / 'part'
  done = subprocess.run(
    [sys.executable, script, f'--folder={folder}', '--side=ours'],
    cwd=ROOT,
    env={'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 1
  assert json.loads((folder / 'b.ours.0.json').read_text())['x'] == 1
  found = results.collect(tmp_path, {'part.ours.0': 'exit code 1'})
  assert found['failed'] == {
    'part.a.ours.0': 'ZeroDivisionError: division by zero'
  }


def test_sides_take_turns_and_share_the_time():
  turns = run.turns(['right', 'training'], tiny=False, torch=True)
  assert [tuple(turn) for turn in turns] == [
    ('right', 'ours', 0),
    ('training', 'ours', 0),
    ('training', 'theirs', 0),
    ('training', 'theirs', 1),
    ('training', 'ours', 1),
  ]
  # Where every turn takes all of its share, each gets its weight of the whole.
  left, taken = 1.0, {}
  for turn, share in run.shares(turns):
    taken[turn] = share * left
    left -= taken[turn]
  assert left == pytest.approx(0)
  right, training = (run.PARTS[name].weight for name in ('right', 'training'))
  assert taken[turns[0]] == pytest.approx(right / (right + training))
  for turn in turns[1:]:
    assert taken[turn] == pytest.approx(training / 4 / (right + training))
  alone = run.turns(['training'], tiny=True, torch=False)
  assert [tuple(turn) for turn in alone] == [('training', 'ours', 0)]


def test_a_turn_that_would_get_too_little_is_not_begun(tmp_path):
  args = argparse.Namespace(
    parts=['right', 'sampling'],
    tiny=False,
    torch_python=sys.executable,
    minutes=0.2,
    workdir=tmp_path,
  )
  found = [*run.timed(args)]
  assert [tuple(turn) for turn, _ in found] == [
    ('right', 'ours', 0),
    ('sampling', 'ours', 0),
    ('sampling', 'theirs', 0),
  ]
  assert {fault for _, fault in found} == {run.NO_TIME}
  assert not [*tmp_path.iterdir()]


def a_gpu(**parts):
  return {
    'machine': {
      'device': 'NVIDIA H100 80GB HBM3',
      'platform': 'gpu',
      'count': 1,
      'versions': {'jax': '0.11.2'},
      'peak_flops_per_second': 989e12,
    },
    'parts': parts,
    'failed': {},
    'left': [],
    'minutes': 10.0,
    'tiny': False,
  }


TRAINING = {
  '1.5B_1024': {
    'ours': [
      {
        'tokens_per_second': 50_000.0,
        'useful_flops_per_second': 494.5e12,
        'seconds_per_step': 0.2,
        'seconds_at_least': {'compute': 0.1, 'hbm': 0.05},
        'memory_bytes': 40e9,
        'compile_seconds': 30.0,
      },
      {
        'tokens_per_second': 40_000.0,
        'useful_flops_per_second': 494.5e12,
        'seconds_per_step': 0.2,
        'seconds_at_least': {'compute': 0.1, 'hbm': 0.05},
        'memory_bytes': 40e9,
        'compile_seconds': 2.0,
      },
    ],
    'theirs': [
      {'tokens_per_second': 40_000.0},
      {'tokens_per_second': 40_000.0},
    ],
  }
}
CHECK = {'name': 'bfloat16', 'difference': 0.02, 'bound': 0.03, 'holds': True}


def test_tables_by_hand():
  text = results.render(a_gpu(training=TRAINING))
  assert (
    '| 1.5B_1024 | 45,000 | 40,000 | 1.12x [1.00, 1.25] | '
    'MFU 50%, 40.0 GB, compiled in 30 s |  |' in text
  )
  assert (
    '| 1.5B_1024 | compute | compute 100.0, hbm 50.0 | 200.0 | 2.00x |' in text
  )


def test_unlike_batches_have_no_ratio():
  theirs = [{'tokens_per_second': 40_000.0, 'rows': 8}] * 2
  ours = [found | {'rows': 16} for found in TRAINING['1.5B_1024']['ours']]
  text = results.render(
    a_gpu(training={'1.5B_1024': {'ours': ours, 'theirs': theirs}})
  )
  assert '| 1.5B_1024 | 45,000 | 40,000 | unlike |' in text


def test_a_roofline_that_cannot_be_counted_is_a_failure(tmp_path):
  folder = tmp_path / 'training'
  folder.mkdir()
  found = {'roofline_fault': 'KeyError: x'}
  (folder / '135M_1024.ours.0.json').write_text(json.dumps(found))
  failed = results.collect(tmp_path, {})['failed']
  assert failed == {'training.135M_1024.roofline': 'KeyError: x'}


def test_what_was_left_out_is_noted():
  found = {'checks': [CHECK], 'notes': ['SmolLM2 is not installed']}
  text = results.render(a_gpu(right={'smollm2': {'ours': [found]}}))
  assert text.endswith('\n- smollm2: SmolLM2 is not installed')


def test_a_check_that_does_not_hold_is_a_failure(tmp_path):
  folder = tmp_path / 'right'
  folder.mkdir()
  cases = {'forward': 0.02, 'gradient': 0.04, 'scoring': float('nan')}
  for case, difference in cases.items():
    check = CHECK | {'difference': difference, 'holds': difference < 0.03}
    (folder / f'{case}.ours.0.json').write_text(json.dumps({'checks': [check]}))
  found = results.collect(tmp_path, {})
  assert found['failed'] == {
    'right.gradient.bfloat16': '4.0e-02 is above 3.0e-02',
    'right.scoring.bfloat16': 'NaN is above 3.0e-02',
  }
  json.dumps(found, allow_nan=False)
  assert '| scoring | bfloat16 | NaN |' in results.render(found)


def test_what_has_run_where_by_hand():
  assert '| GPU | not yet; ' in keep.where_table({})
  right = {'forward': {'ours': [{'checks': [CHECK, CHECK | {'holds': False}]}]}}
  found = a_gpu(training=TRAINING, right=right)
  text = keep.where_table({'NVIDIA H100 80GB HBM3': found})
  assert (
    '| GPU | 1 x NVIDIA H100 80GB HBM3; 1 of 2 checks beside the CPU hold; '
    "training at up to 50% of the chip's peak FLOPs (1.5B parameters, rows of "
    '1,024 tokens); training 1.1x as fast as '
    'the PyTorch side '
    '([experiments/accelerator](experiments/accelerator)); ' in text
  )
  assert '| TPU | not yet; ' in text


def run_keep(path):
  return subprocess.run(
    [sys.executable, '-m', 'experiments.accelerator.keep', path],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def test_results_of_a_cpu_are_not_kept(tmp_path):
  path = tmp_path / 'results.json'
  found = a_gpu()
  found['machine']['platform'] = 'cpu'
  path.write_text(json.dumps(found))
  done = run_keep(path)
  assert done.returncode == 2
  assert 'is of a CPU, or of tiny sizes; it is not kept' in done.stderr


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    (None, 'cannot be read (No such file or directory); name the results.json'),
    ('{"seeds": [1]}', 'holds no results of a chip; name the results.json'),
    ('{"machine"', 'is no JSON'),
  ],
)
def test_what_is_no_results_file_is_named(text, said, tmp_path):
  path = tmp_path / 'nope.json'
  if text:
    path.write_text(text)
  done = run_keep(path)
  assert done.returncode == 2
  [line] = done.stderr.splitlines()
  assert line.startswith(f'error: {path} {said}')


def test_a_python_that_is_not_there_is_named():
  with pytest.raises(SystemExit, match='--torch-python=/nope: No such file'):
    run.find_torch('/nope')

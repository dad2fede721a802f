"""metrics.jsonl, what a resumed run removes from it, and the progress line."""

import importlib.util
import io
import json
import sys
import types

import pytest

from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter, Progress


def write(workdir, start, *steps):
  writer = MetricWriter(workdir, start)
  for step in steps:
    writer.write(step, {'loss': step / 4, 'lr': 0.5})
  writer.close()


def steps_in(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line)['step'] for line in lines]


def test_one_object_a_line(tmp_path):
  write(tmp_path, 0, 1, 2)
  assert (tmp_path / 'metrics.jsonl').read_text() == (
    '{"step": 1, "loss": 0.25, "lr": 0.5}\n'
    '{"step": 2, "loss": 0.5, "lr": 0.5}\n'
  )


def test_lines_are_on_disk_before_close(tmp_path):
  writer = MetricWriter(tmp_path, 0)
  writer.write(1, {'loss': 2.0})
  assert steps_in(tmp_path) == [1]
  writer.close()


def test_resuming_cuts_what_came_after_the_checkpoint(tmp_path):
  write(tmp_path, 0, 1, 2, 3, 4)
  write(tmp_path, 2, 3, 5)
  assert steps_in(tmp_path) == [1, 2, 3, 5]
  write(tmp_path, 0)
  assert steps_in(tmp_path) == []


@pytest.mark.parametrize('cut', range(1, 12))
def test_a_line_that_a_killed_process_was_writing(tmp_path, cut):
  """A line that lacks only its newline is kept, and the next is not joined."""
  write(tmp_path, 0, 1, 2)
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-cut])
  write(tmp_path, 2, 3)
  assert steps_in(tmp_path) == ([1, 2, 3] if cut == 1 else [1, 3])


def test_no_temporary_file_stays(tmp_path):
  write(tmp_path, 0, 1)
  write(tmp_path, 1, 2)
  assert [path.name for path in tmp_path.iterdir()] == ['metrics.jsonl']


@pytest.mark.parametrize(
  ('package', 'wanted'),
  [
    ('tensorboardX', {'tensorboard': True}),
    ('wandb', {'wandb_project': 'p'}),
  ],
)
def test_a_missing_package_is_named(tmp_path, package, wanted):
  if importlib.util.find_spec(package):
    pytest.skip(f'{package} is installed')
  with pytest.raises(UserError, match=f'pip install {package}'):
    MetricWriter(tmp_path, 0, **wanted)


def test_a_resumed_run_goes_on_in_what_draws_curves(tmp_path, monkeypatch):
  """TensorBoard drops the later steps; the run of Weights & Biases is one."""
  asked = []

  def record(*args, **options):
    asked.append(options)
    nothing = lambda *_, **__: None  # noqa: E731
    return types.SimpleNamespace(
      **dict.fromkeys(('add_scalar', 'close', 'log', 'finish'), nothing)
    )

  for name, call in (('tensorboardX', 'SummaryWriter'), ('wandb', 'init')):
    monkeypatch.setitem(
      sys.modules, name, types.SimpleNamespace(**{call: record})
    )
  for start in (-1, 20):
    writer = MetricWriter(tmp_path, start, True, 'project')
    writer.write(start + 1, {'loss': 1.0})
    writer.close()
  assert [options['purge_step'] for options in asked[::2]] == [0, 21]
  first, second = (options['id'] for options in asked[1::2])
  assert first == second


def shown(step, start=0, total=1000, seconds=10.0, terminal=False, **values):
  """What Progress prints at one step, `seconds` after it began."""

  class Terminal(io.StringIO):
    def isatty(self):
      return terminal

  before, sys.stderr = sys.stderr, Terminal()
  try:
    progress = Progress('prm', start, total)
    progress._began -= seconds
    speed = {'tokens_per_second': 4321.9} | values
    progress.show(step, {'loss': 0.12345} | speed)
    return sys.stderr.getvalue()
  finally:
    sys.stderr = before


def test_progress_line():
  # 100 of 1000 steps in 10 s: 90 s are left.
  assert shown(100) == (
    'prm step 100/1,000  loss 0.1235  4,322 tokens/s  1:30 left\n'
  )


def test_the_progress_line_says_what_trees_share():
  flat = shown(100, unique_tokens_per_second=4321.9, tokens_per_unique_token=1)
  assert flat == shown(100)
  assert '  4,322 tokens/s (1,080 unique, 4.00x)  1:30 left' in shown(
    100, unique_tokens_per_second=1080.475, tokens_per_unique_token=4.0
  )
  assert '  4,322 tokens/s (trained on 9,000, 1,500 unique)  1:30' in shown(
    100, flat_tokens=9000, unique_tokens=1500
  )


def test_time_left_counts_from_the_step_of_a_resumed_run():
  # 100 steps in 10 s again, but 400 are left.
  assert '0:40 left' in shown(600, start=500)


@pytest.mark.parametrize(
  ('seconds', 'left'), [(59.7, '1:00'), (119.6, '2:00'), (3599.6, '60:00')]
)
def test_time_left_has_no_sixtieth_second(seconds, left):
  assert f'  {left} left' in shown(500, seconds=seconds)


def test_a_log_gets_about_twenty_lines_and_the_last(capsys):
  progress = Progress('prm', 0, 1010)
  for step in range(1, 1011):
    progress.show(step, {'loss': 1.0, 'tokens_per_second': 1.0})
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 21
  assert lines[0].startswith('prm step 50/1,010')
  assert lines[-1].startswith('prm step 1,010/1,010')


def test_a_terminal_rewrites_its_line():
  line = shown(3, terminal=True)
  assert line.startswith('\r\x1b[2Kprm step 3/1,000')
  assert not line.endswith('\n')
  assert shown(1000, terminal=True).endswith('0:00 left\n')


@pytest.mark.parametrize('line', ['{"step": 2, "lo', '{"step": "2"}', '[', '3'])
def test_a_damaged_line_takes_no_whole_ones_with_it(tmp_path, line):
  path = tmp_path / 'metrics.jsonl'
  whole = ['{"step": 1, "loss": 2.0}', '{"step": 3, "loss": 1.0}']
  path.write_text('\n'.join([whole[0], line, whole[1], '']))
  MetricWriter(tmp_path, 5).close()
  assert path.read_text().splitlines() == whole

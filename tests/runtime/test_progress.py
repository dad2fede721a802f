"""A job shows its progress soon, and then at least every 30 seconds.

The loops are the real ones; only the clock is the test's own.
"""

import dataclasses
import io
import itertools
import json
import re
import sys
import time

import grain
import jax
import numpy as np
import pytest

from prm_jax.data.builder import build
from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.encoding import make_format
from prm_jax.data.readers import read_chains
from prm_jax.data.targets import TargetConfig
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.writer import SampleRequest
from prm_jax.runtime import metrics
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import Console, Heartbeat, MetricWriter, Progress
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  TrainConfig,
  TrainingRun,
  compile_train_step,
  fit,
)
from prm_jax.training.train_state import abstract_state, init_state
from tests.shared import item_job, tiny_sampling, tiny_training
from tests.shared.counting_policy import Counting
from tests.shared.tiny_scorer import the_scorer

pytestmark = pytest.mark.once


class Clock:
  """A clock that a test moves forward."""

  now = 0.0

  def __call__(self) -> float:
    return self.now


@pytest.fixture(scope='module')
def compiled():
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  state = init_state(tiny_training.init, mesh, seed=0)
  return mesh, compile_train_step(tiny_training.train_step(), state, mesh)


def run_fit(compiled, workdir, seconds, until=None, **config) -> list[dict]:
  """Runs fit on a clock where a step takes `seconds`, an evaluation 1,000.

  Args:
    until: a step after which to stop, and resume from its checkpoint.

  Returns:
    The lines of metrics.jsonl.
  """
  mesh, step_fn = compiled
  clock = Clock()
  batch = tiny_training.batch(0)

  def step(state, placed):
    clock.now += seconds
    return step_fn(state, placed)

  def evaluate(params):
    clock.now += 1000.0
    return {}

  def go(steps):
    checkpoints = Checkpoints(workdir / 'checkpoints', 2, '')
    data = iter(grain.MapDataset.source([batch] * 200).to_iter_dataset())
    state = init_state(tiny_training.init, mesh, seed=0)
    if checkpoints.latest:
      state = checkpoints.restore(
        abstract_state(tiny_training.init, mesh), data
      )
    writer = MetricWriter(workdir, int(state.step))
    run = TrainingRun(
      'test',
      TrainConfig(**config | {'steps': steps}),
      mesh,
      workdir,
      checkpoints,
      writer,
      console=Console(clock),
    )
    fit(run, step, state, data, evaluate)
    writer.close()
    checkpoints.close()

  for steps in filter(None, (until, config['steps'])):
    go(steps)
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.mark.parametrize('until', [None, 8])
def test_tokens_per_second_count_training_alone(compiled, tmp_path, until):
  """Evaluations and checkpoints between two reports do not change the rate.

  Every step takes 10 seconds. Dividing the tokens since the report by the time
  since the checkpoint gave 2 and 3 times the rate.
  """
  written = run_fit(
    compiled,
    tmp_path,
    10.0,
    until,
    steps=12,
    log_every=3,
    checkpoint_every=4,
  )
  tokens = (tiny_training.batch(0)['positions'] >= 0).sum()
  lines = [line for line in written if 'tokens_per_second' in line]
  assert {line['step'] for line in lines} >= {3, 6, 9, 12}
  for line in lines:
    assert line['unique_tokens_per_second'] == pytest.approx(tokens / 10), line
    assert line['tokens_per_second'] == pytest.approx(2 * tokens / 10), line
    assert line['tokens_per_unique_token'] == pytest.approx(2)


def steps_shown(text: str) -> list[int]:
  return [int(step) for step in re.findall(r'^test step (\d+)/', text, re.M)]


# A tiny model; a larger one; SmolLM2 on a core, where two steps take more than
# 30 seconds; and one where every step does.
@pytest.mark.parametrize('seconds', [0.01, 4.0, 24.0, 100.0])
def test_training_shows_progress_by_time(compiled, tmp_path, capsys, seconds):
  written = run_fit(
    compiled,
    tmp_path,
    seconds,
    steps=100,
    log_every=20,
    checkpoint_every=1000,
  )
  shown = steps_shown(capsys.readouterr().err)
  # Only lines on the terminal go by time; metrics.jsonl goes by steps.
  reported = [line['step'] for line in written if 'loss' in line]
  assert reported == [20, 40, 60, 80, 100]
  if seconds < 1:
    assert shown == reported
    return
  assert shown[0] == 1
  assert shown[-1] == 100
  waited = np.diff(shown) * seconds
  assert max(waited) <= max(30.0, seconds)
  assert len(shown) <= max(100 * seconds / 22 + 5, 100 * (seconds > 15))


def test_a_heartbeat_comes_every_30_seconds(capsys):
  """It may come an iteration early, and not at all in a short loop."""
  clock = Clock()
  console = Console(clock)
  quick = Heartbeat('quick', 7, console)
  for _ in quick.over(range(7)):
    clock.now += 4.0
  assert not capsys.readouterr().err
  times = []
  for _ in Heartbeat('slow', 12, console).over(range(12)):
    if capsys.readouterr().err:
      times.append(clock.now)
    clock.now += 8.0
  # The quick loop took 28 seconds without a line.
  assert times[0] == 36.0
  assert all(b - a <= 30 for a, b in itertools.pairwise(times))


def test_nested_loops_share_their_lines(capsys):
  """After a line of one loop the other one waits."""
  clock = Clock()
  console = Console(clock)
  outer = Progress('outer', 0, 100, console=console)
  inner = Heartbeat('inner', 100, console)
  for i in range(1, 6):
    for j in range(4):
      clock.now += 5.0
      inner.at(j)
    if outer.is_due():
      outer.print_step(i, {'loss': 1.0, 'tokens_per_second': 1.0})
  lines = capsys.readouterr().err.splitlines()
  assert lines[0].startswith('outer step 1/100')
  assert 4 <= len(lines) <= 6  # in 100 seconds


def test_a_long_iteration_is_told(monkeypatch):
  """A step or a compilation may take minutes, in which nothing else prints."""
  printed = io.StringIO()
  monkeypatch.setattr(sys, 'stderr', printed)
  console = Console(every=0.2)

  def wait_for_repeats():
    before, end = printed.getvalue().count('nothing new'), time.monotonic() + 60
    while printed.getvalue().count('nothing new') < before + 2:
      assert time.monotonic() < end
      time.sleep(0.01)

  with console.keep_alive('prm job'):
    wait_for_repeats()
    progress = Progress('prm', 0, 10, console=console)
    progress.print_step(3, {'loss': 1.0, 'tokens_per_second': 5.0})
    wait_for_repeats()
    progress.print_step(10, {'loss': 1.0, 'tokens_per_second': 5.0})
    wait_for_repeats()
  ended = printed.getvalue()
  time.sleep(1.0)
  assert printed.getvalue() == ended
  lines = ended.splitlines()
  told = [(line.split('  ')[0], '(nothing new for ' in line) for line in lines]
  assert [line for line, _ in itertools.groupby(told)] == [
    ('prm job', True),
    ('prm step 3/10', False),
    ('prm step 3/10', True),
    ('prm step 10/10', False),
    ('prm job', True),
  ]


def test_reading_and_writing_files_show_progress(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  path = tmp_path / 'chains.jsonl'
  record = {'prompt': 'p', 'completions': ['a'], 'labels': [True]}
  path.write_text(f'{json.dumps(record)}\n' * 3)
  chains, _ = read_chains(path, 'trl')
  fmt = make_format('bytes', 64)
  take_census(chains, fmt, TargetConfig(), BatchConfig(1, 64, 8, seed=0))
  build(tmp_path / 'data', 'some', {'train': chains})
  lines = capsys.readouterr().err.splitlines()
  assert [line for line in lines if 'reading' in line] == [
    f'reading {path}, records: {n}' for n in range(3)
  ]
  assert sum(line.startswith('encoding chains: ') for line in lines) == 3
  assert sum(line.startswith('writing chains: ') for line in lines) == 3


def test_sampling_and_scoring_show_progress(capsys, monkeypatch):
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  sampling = SamplingConfig(slots=2, max_tokens=3)
  jobs = [SampleRequest((1, 2), seed, 0) for seed in range(5)]
  tiny_sampling.make_writer(sampling).write(jobs)
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) >= 2
  assert all(re.match(r'sampling: \d/5', line) for line in lines)
  scorer = the_scorer()
  scorer.score_many([('p', ['a'] * n) for n in (1, 2, 40)])
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1].startswith('scoring chains: 3/3')
  assert len(lines) == 2  # one for each call of the model


def test_rounds_without_a_finished_item_show_progress(
  capsys, monkeypatch, tmp_path
):
  """The first item of a search may take long."""
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  settings = dataclasses.replace(item_job.SETTINGS, concurrent=100)
  item_job.run(tmp_path, Counting(), settings)
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == 'labels 0/10'
  assert sum(line.startswith('labels 10/10') for line in lines) >= 1

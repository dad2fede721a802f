"""A job says how far it is: soon, and then at least every 30 seconds.

The clock is the test's own and the loops are the real ones.
"""

import itertools
import json
import re

import grain
import jax
import numpy as np
import pytest

from prm_jax.data.builder import build
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import take_census
from prm_jax.data.readers import read_chains
from prm_jax.data.targets import TargetConfig
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.writer import Job
from prm_jax.runtime import metrics
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import Console, Heartbeat, MetricWriter, Progress
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  LoopConfig,
  TrainingRun,
  compile_train_step,
  fit,
)
from prm_jax.training.train_state import abstract_state, init_state
from tests.inference import test_scorer
from tests.inference.test_driver import Counting
from tests.jobs import test_engine
from tests.shared import tiny_sampling, tiny_training

pytestmark = pytest.mark.once


class Clock:
  """Seconds that a test lets pass; it keeps when lines were written."""

  now = 0.0

  def __call__(self) -> float:
    return self.now


@pytest.fixture(scope='module')
def compiled():
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  state = init_state(tiny_training.init, mesh, seed=0)
  return mesh, compile_train_step(tiny_training.train_step(), state, mesh)


def run_fit(compiled, workdir, seconds, until=None, **config) -> list[dict]:
  """fit on a clock by which a step takes `seconds`, an evaluation 1,000.

  Args:
    until: a step at which it is stopped, to go on from its checkpoint.
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
      LoopConfig(**config | {'steps': steps}),
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
def test_tokens_per_second_of_training_alone(compiled, tmp_path, until):
  """Evaluations and checkpoints fall between two reports, and count nowhere.

  Every step is 10 seconds. With the time since the checkpoint and the tokens
  since the report it was 2 and 3 times as fast.
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
  tokens = (tiny_training.batch(0)['segment_ids'] > 0).sum()
  rates = {
    line['step']: line['tokens_per_second']
    for line in written
    if 'tokens_per_second' in line
  }
  assert set(rates) >= {3, 6, 9, 12}
  for step, rate in rates.items():
    assert rate == pytest.approx(tokens / 10), step


def steps_told(text: str) -> list[int]:
  return [int(step) for step in re.findall(r'^test step (\d+)/', text, re.M)]


# As a tiny model; as one of some size; as SmolLM2 on a core, of which two steps
# are beyond 30 seconds; and one whose every step is.
@pytest.mark.parametrize('seconds', [0.01, 4.0, 24.0, 100.0])
def test_training_tells_by_time(compiled, tmp_path, capsys, seconds):
  """The first line of a slow job came after 20 updates."""
  written = run_fit(
    compiled,
    tmp_path,
    seconds,
    steps=100,
    log_every=20,
    checkpoint_every=1000,
  )
  told = steps_told(capsys.readouterr().err)
  # Lines by time are for people: what is written goes by steps alone.
  reported = [line['step'] for line in written if 'loss' in line]
  assert reported == [20, 40, 60, 80, 100]
  if seconds < 1:
    assert told == reported
    return
  assert told[0] == 1
  assert told[-1] == 100
  waited = np.diff(told) * seconds
  assert max(waited) <= max(30.0, seconds)
  assert len(told) <= max(100 * seconds / 22 + 5, 100 * (seconds > 15))


def test_part_of_a_job_that_takes_long(capsys):
  """Every 30 seconds, also a turn early; nothing where it is done before."""
  clock = Clock()
  console = Console(clock)
  quick = Heartbeat('quick', 7, console)
  for _ in quick.over(range(7)):
    clock.now += 4.0
  assert not capsys.readouterr().err
  told = []
  for _ in Heartbeat('slow', 12, console).over(range(12)):
    if capsys.readouterr().err:
      told.append(clock.now)
    clock.now += 8.0
  # 28 seconds passed without a line before it began.
  assert told[0] == 36.0
  assert all(b - a <= 30 for a, b in itertools.pairwise(told))


def test_lines_of_loops_inside_each_other(capsys):
  """What one of them has told, the other need not."""
  clock = Clock()
  console = Console(clock)
  outer = Progress('outer', 0, 100, console=console)
  inner = Heartbeat('inner', 100, console)
  for i in range(1, 6):
    for j in range(4):
      clock.now += 5.0
      inner.at(j)
    if outer.is_due():
      outer.tell(i, {'loss': 1.0, 'tokens_per_second': 1.0})
  lines = capsys.readouterr().err.splitlines()
  assert lines[0].startswith('outer step 1/100')
  assert 4 <= len(lines) <= 6  # in 100 seconds


def test_reading_a_file_tells_by_time(tmp_path, capsys, monkeypatch):
  """And so on: every loop that takes long has its Heartbeat."""
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  path = tmp_path / 'chains.jsonl'
  record = {'prompt': 'p', 'completions': ['a'], 'labels': [True]}
  path.write_text(f'{json.dumps(record)}\n' * 3)
  chains, _ = read_chains(path, 'trl')
  fmt = make_format('bytes', 64)
  take_census(chains, fmt, TargetConfig())
  build(tmp_path / 'data', 'some', {'train': chains})
  told = capsys.readouterr().err.splitlines()
  assert [line for line in told if 'reading' in line] == [
    f'reading {path}, records: {n}' for n in range(3)
  ]
  assert sum(line.startswith('encoding chains: ') for line in told) == 3
  assert sum(line.startswith('writing chains: ') for line in told) == 3


def test_sampling_and_scoring_tell_by_time(capsys, monkeypatch):
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  sampling = SamplingConfig(slots=2, max_tokens=3)
  jobs = [Job((1, 2), seed, 0) for seed in range(5)]
  tiny_sampling.make_writer(sampling).write(jobs)
  told = capsys.readouterr().err.splitlines()
  assert len(told) >= 2
  assert all(re.match(r'sampling: \d/5', line) for line in told)
  scorer = test_scorer.the_scorer()
  scorer.score_many([('p', ['a'] * n) for n in (1, 2, 40)])
  told = capsys.readouterr().err.splitlines()
  assert told[-1].startswith('scoring chains: 3/3')
  assert len(told) == 2  # of a call each


def test_items_that_take_many_rounds_tell_by_time(
  capsys, monkeypatch, tmp_path
):
  """The line came with an item that ended; a search's first may take long."""
  monkeypatch.setattr(metrics.CONSOLE, 'every', -1.0)
  config = test_engine.CONFIG | {'concurrent': 100}
  test_engine.run(tmp_path, Counting(), config)
  told = capsys.readouterr().err.splitlines()
  assert told[0] == 'labels 0/10'
  assert sum(line.startswith('labels 10/10') for line in told) >= 1

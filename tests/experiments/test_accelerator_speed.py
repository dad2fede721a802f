"""The speed parts of the accelerator command: both sides, at the tiny size."""

import importlib.util
import itertools
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.accelerator import (
  sampling,
  scoring,
  shapes,
  timing,
  training,
)
from prm_jax.aot.chips import CHIPS
from prm_jax.aot.useful_flops import learning
from prm_jax.data.encoding import make_format
from prm_jax.models import TransformerConfig
from prm_jax.runtime.sharding import flat_mesh
from tests.shared.command_line import ROOT

H100 = CHIPS['NVIDIA H100 80GB HBM3']
PARTS = {
  'training': 'tokens_per_second',
  'scoring': 'candidates_per_second',
  'sampling': 'tokens_per_second',
}


@pytest.mark.parametrize('tiny', [True, False])
def test_useful_flops_are_those_of_the_package(tiny):
  for case in shapes.training(tiny).values():
    model = TransformerConfig(**case.shape)
    counted = learning(model, case.rows, case.length)
    expected = counted['products'] + counted['attention']
    assert case.useful_flops() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('tiny', [True, False])
def test_texts_have_the_lengths_and_ids_of_the_package(tiny):
  for case in shapes.scoring(tiny).values():
    fmt = make_format('bytes', case.prompt + case.most * case.step)
    drawn, other = case.draw(1), case.draw(2)
    assert drawn.problem != other.problem
    assert [*map(len, drawn.chains)] == [*map(len, other.chains)]
    assert len(drawn.chains) == case.candidates
    for steps in drawn.chains:
      ids, ends = shapes.encode(drawn.problem, steps)
      encoding = fmt.encode(drawn.problem, steps)
      np.testing.assert_array_equal(ids, encoding.tokens)
      np.testing.assert_array_equal(ends, encoding.step_ends)
      assert encoding.prompt_length == case.prompt
      assert len(ids) == case.prompt + len(steps) * case.step
    *_, whole = case.rounds(drawn)
    assert whole == drawn.chains
    calls = case.most if case.growing else 1
    assert len(case.rounds(drawn)) == calls


def test_chains_to_sample_are_the_same_on_both_sides():
  for case in shapes.sampling(False).values():
    lengths = case.lengths()
    assert lengths == case.lengths()
    assert len(lengths) == case.samples
    assert case.shortest <= min(lengths) <= max(lengths) <= case.longest
    jobs = sampling.requests(case, 1)
    assert [job.max_tokens for job in jobs] == lengths
    prompts = [job.ids for job in jobs[:: shapes.SAMPLES_OF_A_PROMPT]]
    assert prompts == [*map(tuple, case.prompts(1))]
    assert len(set(prompts)) == case.samples // 4
    assert len({job.seed for job in jobs}) == case.samples
    # Batches of the other side hold whole prompts.
    assert case.samples % case.slots == case.slots % 4 == 0


def test_measured_steps_add_up_to_the_time_after_the_warm_up(monkeypatch):
  clock = itertools.count()
  monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
  assert timing.seconds_of_steps(iter(jax.numpy.ones(5)), 2) == [1.0] * 3


@pytest.mark.slow
def test_the_train_step_is_measured():
  (case,) = shapes.training(True).values()
  found = training.measure(case)
  assert len(found['seconds']) == case.steps
  mean = np.mean(found['seconds'])
  assert found['tokens_per_second'] == pytest.approx(case.tokens / mean)
  assert found['useful_flops_per_second'] * mean == pytest.approx(
    case.useful_flops()
  )
  assert found['memory_bytes'] > 4 * 3 * 40_000  # weights and two moments
  assert found['skipped'] == 0
  # Random labels of two classes.
  assert 0.2 < found['loss'] < 2.0
  assert 'seconds_at_least' not in found  # a CPU has no published figures


def test_the_roofline_counts_at_least_what_a_step_needs():
  (case,) = shapes.training(True).values()
  step = training.make_step(case, flat_mesh(jax.devices()[:1]))
  found = training.roofline(step.lowered.compile(), case, step.model, H100)
  assert 1.0 < found['flops'] / case.useful_flops() < 2.0
  compute = found['seconds_at_least']['compute']
  assert compute == pytest.approx(found['flops'] / 989e12)
  assert found['seconds_at_least']['hbm'] * 3350e9 == pytest.approx(
    found['hbm_bytes']
  )


@pytest.mark.slow
def test_growing_chains_are_read_once_and_scored_like_whole_ones():
  case = shapes.scoring(True)['tiny_growing']
  scorer = scoring.make_scorer(case)
  drawn = case.draw(1)
  grown = scoring.make_call(case, scorer)(drawn)
  whole = scoring.make_call(case._replace(growing=False), scorer)(drawn)
  assert len(grown) == case.candidates
  for one, other in zip(grown, whole, strict=True):
    assert one.shape == (case.most,)
    np.testing.assert_allclose(one, other, atol=2e-2)  # bfloat16


@pytest.mark.slow
@pytest.mark.parametrize('name', shapes.scoring(True))
def test_scoring_is_measured(name):
  case = shapes.scoring(True)[name]
  found = scoring.measure(case)
  calls = case.most if case.growing else 1
  middle = np.median(found['seconds'])
  assert len(found['seconds']) == case.repeats
  assert found['candidates_per_second'] * middle == pytest.approx(
    calls * case.candidates
  )


@pytest.mark.slow
def test_sampling_writes_every_token():
  (case,) = shapes.sampling(True).values()
  found = sampling.measure(case)
  assert found['tokens_per_second'] * np.median(
    found['seconds']
  ) == pytest.approx(sum(case.lengths()))
  assert {name for name, *_ in found['programs']} >= {'read', 'chunk'}


def run(module, folder, side):
  """Runs one side in a process of its own; returns what it wrote, by case."""
  arguments = f'--folder={folder}', f'--side={side}', '--tiny'
  command = sys.executable, '-m', f'experiments.accelerator.{module}'
  subprocess.run([*command, *arguments], cwd=ROOT, check=True)
  paths = folder.glob(f'*.{side}.0.json')
  return {
    path.name.split('.')[0]: json.loads(path.read_text()) for path in paths
  }


needs_torch = pytest.mark.skipif(
  not importlib.util.find_spec('torch')
  or not importlib.util.find_spec('transformers'),
  reason='needs torch and transformers',
)


@needs_torch
@pytest.mark.parametrize('part', PARTS)
def test_the_other_side_has_the_same_cases(part, tmp_path):
  theirs = run(f'their_{part}', tmp_path, 'theirs')
  assert set(theirs) == set(getattr(shapes, part)(True))
  for found in theirs.values():
    assert found[PARTS[part]] > 0


def test_a_batch_that_takes_too_much_memory_is_halved(monkeypatch):
  torch = pytest.importorskip('torch')
  their_training = pytest.importorskip('experiments.accelerator.their_training')

  def measure_rows(case):
    if case.rows > 2:
      raise torch.OutOfMemoryError('2 GiB are missing')
    return {'tokens_per_second': 1.0}

  monkeypatch.setattr(their_training, 'measure_rows', measure_rows)
  (case,) = shapes.training(True).values()
  found = their_training.measure(case._replace(rows=8))
  assert found['notes'] == [
    'out of memory with 8 rows',
    'out of memory with 4 rows',
    '2 rows',
  ]


@needs_torch
def test_the_other_side_needs_no_jax():
  modules = [f'experiments.accelerator.their_{part}' for part in PARTS]
  modules.append('experiments.accelerator.their_machine')
  code = (
    'import sys; sys.modules |= {"jax": None, "prm_jax": None}; '
    f'import {", ".join(modules)}'
  )
  subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)

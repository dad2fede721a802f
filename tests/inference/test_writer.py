"""Tests continuous batching: exact distributions and independence."""

import dataclasses
import weakref

import numpy as np
import pytest
import scipy.stats
from jax.sharding import AbstractMesh

from prm_jax.inference import sampler
from prm_jax.inference import writer as writer_module
from prm_jax.inference.protocols import sample_seed
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.writer import SampleRequest, Writer, group_jobs
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import AXES
from tests.shared.tiny_sampling import (
  FILTERS,
  MODEL,
  STOPS,
  exact_distribution,
  forward_logprobs,
  make_writer,
  params_of,
  some_jobs,
)

pytestmark = pytest.mark.once

FEW_SLOTS = SamplingConfig(slots=4, max_tokens=40)


def tokens_of(written):
  return [each.tokens.tolist() for each in written]


@pytest.mark.parametrize('name', FILTERS)
def test_logprobs_equal_those_of_a_forward_pass(name):
  """Prompts are ragged, slots are refilled, and filters change nothing."""
  sampling = dataclasses.replace(FILTERS[name], slots=4, max_tokens=40)
  jobs = some_jobs(17)
  written = make_writer(sampling).write(jobs)
  rows = [[*job.ids, *w.tokens] for job, w in zip(jobs, written, strict=True)]
  for job, w, row in zip(jobs, written, forward_logprobs(rows), strict=True):
    at = len(job.ids) - 1 + np.arange(len(w.tokens))
    np.testing.assert_allclose(w.logprobs, row[at, w.tokens], rtol=0, atol=1e-4)
  assert len({len(w.tokens) for w in written}) > 5


@pytest.mark.parametrize('name', FILTERS)
def test_ten_thousand_samples_have_the_exact_distribution(name):
  sampling = dataclasses.replace(FILTERS[name], slots=256, max_tokens=3)
  ids, count = (5, 7, STOPS.separator), 10_000
  exact = exact_distribution(ids, 1, sampling)
  assert sum(exact.values()) == pytest.approx(1)
  jobs = [SampleRequest(ids, sample_seed(0, 'a', k), 1) for k in range(count)]
  found = dict.fromkeys(exact, 0)
  for tokens in tokens_of(make_writer(sampling).write(jobs)):
    found[tuple(tokens)] += 1  # filtered tokens give a KeyError
  rare = [t for t in exact if count * exact[t] < 5]
  expected = [count * exact[t] for t in exact if t not in set(rare)]
  observed = [found[t] for t in exact if t not in set(rare)]
  if rare:
    expected.append(count * sum(exact[t] for t in rare))
    observed.append(sum(found[t] for t in rare))
  statistic = sum(
    (o - e) ** 2 / e for o, e in zip(observed, expected, strict=True)
  )
  assert len(expected) > 20
  assert scipy.stats.chi2.sf(statistic, len(expected) - 1) > 1e-3


def test_a_sample_depends_only_on_its_seed():
  """It depends on neither other jobs, order, slots nor shared prompts."""
  jobs = some_jobs(23)
  writer = make_writer(FEW_SLOTS)
  expected = tokens_of(writer.write(jobs))
  assert tokens_of(writer.write(jobs[::-1]))[::-1] == expected
  assert tokens_of(writer.write(jobs[5:6])) == expected[5:6]
  wide = make_writer(dataclasses.replace(FEW_SLOTS, slots=64))
  assert tokens_of(wide.write(jobs)) == expected
  longer = [SampleRequest((*job.ids, 5, 6), 1) for job in jobs]
  assert tokens_of(wide.write([*longer, *jobs]))[23:] == expected
  other = [job._replace(seed=job.seed + 1) for job in jobs]
  assert sum(map(np.array_equal, tokens_of(wide.write(other)), expected)) < 5


@pytest.mark.slow
def test_prompts_of_one_call_are_held_at_a_time(monkeypatch):
  wide = dataclasses.replace(FEW_SLOTS, slots=16)
  jobs = some_jobs(23)
  expected = tokens_of(make_writer(wide).write(jobs))
  monkeypatch.setattr(writer_module, 'PROMPT_TOKENS', 16)
  writer = make_writer(wide)
  call, held, alive = writer.call, [], []

  def counted(name, *arguments):
    found = call(name, *arguments)
    if name == 'read':
      held.append(weakref.ref(found.keys[0]))
      alive.append(sum(each() is not None for each in held))
    return found

  monkeypatch.setattr(writer, 'call', counted)
  assert tokens_of(writer.write(jobs)) == expected
  assert len(alive) > 5
  assert set(alive) == {1}


def test_temperature_zero_takes_the_most_likely_tokens():
  jobs = some_jobs(5)
  sampling = dataclasses.replace(FEW_SLOTS, temperature=0, max_tokens=12)
  for job, w in zip(jobs, make_writer(sampling).write(jobs), strict=True):
    row = [*job.ids, *w.tokens]
    (logprobs,) = forward_logprobs([row])
    expected = logprobs[len(job.ids) - 1 : len(row) - 1].argmax(-1)
    np.testing.assert_array_equal(w.tokens, expected)


def test_samples_of_prefixes_share_one_prompt():
  ids = (5, 7, 2, 8, 9, 2)
  cuts = [
    SampleRequest(ids[:n], 100 * n + k) for n in (2, 6, 3) for k in range(5)
  ]
  writer = make_writer(FEW_SLOTS)
  together = writer.write(cuts)
  assert writer.stats.prompt_tokens == 6
  assert [w.prompt_tokens for w in together] == [0] * 5 + [6] + [0] * 9
  alone = [writer.write([job])[0] for job in cuts]
  assert tokens_of(together) == tokens_of(alone)
  assert writer.stats.prompt_tokens == 6 + 5 * (2 + 6 + 3)


def test_groups_by_hand():
  ids = [(1, 2), (1, 2, 3), (4,), (1,), (1, 2, 3), (1, 2, 9)]
  groups = group_jobs([SampleRequest(each, 0) for each in ids])
  assert [(g.prompt, g.jobs) for g in groups] == [
    ((1, 2, 9), [5]),
    ((1, 2, 3), [1, 4, 0, 3]),
    ((4,), [2]),
  ]


def test_limits_of_tokens_window_and_steps():
  """Includes a prompt that fills the window."""
  writer = make_writer(FEW_SLOTS, max_length=20)
  jobs = [
    SampleRequest((5,) * n, 7 * k)
    for n in (1, 12, 19, 20, 30)
    for k in range(9)
  ]
  written = writer.write(jobs)
  for job, w in zip(jobs, written, strict=True):
    room = max(0, 20 - len(job.ids))
    stopped = STOPS.end in w.tokens or w.tokens[-2:].tolist() == [2, 2]
    assert len(w.tokens) == room or (stopped and len(w.tokens) < room)
  assert {len(w.tokens) for w in written[18:]} == {0, 1}
  one_step = writer.write([SampleRequest((5,), seed, 1) for seed in range(30)])
  for w in one_step:
    assert STOPS.separator not in w.tokens[:-1]
  assert sum(w.tokens[-1] == STOPS.separator for w in one_step) > 5
  assert writer.write([]) == []


@pytest.mark.slow
def test_few_programs_are_compiled():
  writer = make_writer(
    dataclasses.replace(FEW_SLOTS, max_tokens=100), max_length=200
  )
  rng = np.random.default_rng(0)
  for n in range(20):
    count = int(rng.integers(1, 12))
    writer.write(
      [
        SampleRequest((5,) * int(rng.integers(1, 190)), n * 100 + k)
        for k in range(count)
      ]
    )
  # Caches of 32, 48, 64, 96, 128, 192 and 200; prompts of 32 to 256, by 1 to 4.
  names = [name for name, *_ in writer.stats.programs]
  assert names.count('chunk') <= 7
  assert names.count('resize') <= 7 * 6
  assert names.count('read') <= 4 * 3
  assert names.count('insert') <= 7 * 4 * 3


def test_prompts_of_several_pieces(monkeypatch):
  config = dataclasses.replace(MODEL, rope_theta=500.0)
  monkeypatch.setattr(sampler, 'PIECE', 8)
  jobs = [SampleRequest((5, 6, 7, 8, 9) * n, n) for n in (1, 5, 9)]
  sampling = dataclasses.replace(FEW_SLOTS, max_tokens=6)
  written = make_writer(sampling, config).write(jobs)
  for job, w in zip(jobs, written, strict=True):
    row = [*job.ids, *w.tokens]
    (logprobs,) = forward_logprobs([row], config)
    at = len(job.ids) - 1 + np.arange(len(w.tokens))
    np.testing.assert_allclose(w.logprobs, logprobs[at, w.tokens], atol=1e-4)


def test_slots_that_do_not_divide_are_refused():
  mesh = AbstractMesh((1, 3, 1), AXES)
  with pytest.raises(UserError, match=r'sampling.slots=4 does not .* = 3 dev'):
    Writer(params_of(), MODEL, mesh, FEW_SLOTS, STOPS, 64)

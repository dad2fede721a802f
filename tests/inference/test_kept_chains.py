"""Tests the cache of chains: nothing is read twice, and results are equal."""

import dataclasses

import numpy as np
import pytest

from prm_jax.inference.generator import Generator, writing_flops
from prm_jax.inference.kept_chains import split_pieces
from prm_jax.inference.protocols import Request
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.writer import SampleRequest
from prm_jax.models import chain_flops
from prm_jax.runtime.errors import UserError
from tests.shared.tiny_generator import FORMAT, PROBLEM, make_generator
from tests.shared.tiny_generator import MODEL as GENERATOR_MODEL
from tests.shared.tiny_sampling import MODEL, STOPS, make_writer, some_jobs

pytestmark = pytest.mark.once

PLAIN = SamplingConfig(slots=8, max_tokens=12)


def kept(rows, **changes):
  return make_writer(dataclasses.replace(PLAIN, kept=rows, **changes))


def same(found, expected):
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def prompts(count):
  """Returns jobs of one step, whose ids end as prompts do."""
  return [
    job._replace(ids=(*job.ids, STOPS.separator), max_steps=1)
    for job in some_jobs(count)
  ]


def grow(jobs, written, width=2):
  """Returns `width` jobs for the next step of every job that ended one."""
  return [
    SampleRequest((*job.ids, *w.tokens.tolist()), 1000 * n + k, 1)
    for n, (job, w) in enumerate(zip(jobs, written, strict=True))
    for k in range(width)
    if w.tokens[-1] == STOPS.separator and len(w.tokens) > 1
  ]


def test_a_cache_larger_than_memory_is_refused():
  with pytest.raises(UserError, match=r'sampling\.kept=1000000000: .* GB'):
    kept(10**9)


@pytest.mark.parametrize('rows', [1, 3, 64])
def test_beams_are_the_same_with_and_without_a_cache(rows):
  plain, writer, jobs = make_writer(PLAIN), kept(rows), prompts(9)
  depths = 0
  while jobs and depths < 4:
    expected, found = plain.write(jobs), writer.write(jobs)
    same(found, expected)
    if depths and rows == 64:
      assert sum(w.prompt_tokens for w in found) == 0
      assert writer.stats.prompt_tokens < plain.stats.prompt_tokens
    jobs = grow(jobs, expected)[:20]
    depths += 1
  assert depths == 4


def test_dropped_entries_are_read_again():
  """Two chains of 40 tokens take turns in a cache of 64 tokens."""
  writer = kept(1, max_tokens=4)
  a, b = (
    SampleRequest((*[token] * 39, STOPS.separator), 0, 1) for token in (5, 6)
  )
  read = [writer.write([job])[0].prompt_tokens for job in (a, a, b, b, a, a)]
  assert read == [40, 0, 40, 0, 40, 0]
  writer.forget()
  assert writer.write([a])[0].prompt_tokens == 40


def test_every_prefix_that_ends_a_step_is_cached():
  writer = kept(8, max_tokens=30)
  jobs = [job._replace(max_steps=3) for job in prompts(12)]
  written = writer.write(jobs)
  prefixes = []
  for n, (job, w) in enumerate(zip(jobs, written, strict=True)):
    ids = (*job.ids, *w.tokens.tolist())
    ends = [i + 1 for i, t in enumerate(ids) if t == STOPS.separator]
    prefixes += [
      SampleRequest(ids[:end], n, 1) for end in ends if end >= len(job.ids)
    ]
  assert len(prefixes) > 15
  found = writer.write(prefixes)
  assert all(w.prompt_tokens == 0 for w in found)
  same(
    found,
    make_writer(dataclasses.replace(PLAIN, max_tokens=30)).write(prefixes),
  )
  # Of a step from elsewhere only the step itself is read.
  before = prefixes[-1].ids
  (w,) = writer.write([SampleRequest((*before, 7, 8, 9, STOPS.separator), 0)])
  assert (w.prompt_tokens, w.kept) == (5, len(before) - 1)


def test_few_programs_are_compiled():
  writer, jobs = kept(16), prompts(20)
  for _ in range(6):
    jobs = grow(jobs, writer.write(jobs), 3)[:20]
  names = [name for name, *_ in writer.stats.programs]
  assert names.count('chunk') <= 3
  assert names.count('recall') <= 8
  assert names.count('keep') <= 12


def test_pieces_by_hand():
  assert split_pieces((), STOPS) == []
  assert split_pieces((1, 5), STOPS) == [(1, 5)]
  ids = (1, 5, 3, 7, 8, 2, 2, 9, 2)
  assert split_pieces(ids, STOPS) == [(1, 5), (3, 7, 8), (2,), (2, 9), (2,)]


def test_flops_of_a_completion():
  """Each token is counted once: when it is read or when it is written."""
  generator: Generator = make_generator(kept=8)
  first = Request(PROBLEM, (), 'a', 3, max_steps=1)
  (found,) = generator.complete([first])
  prompt = len(generator.encode(first))
  assert [c.prompt_tokens for c in found] == [prompt, 0, 0]

  def written(length, n):
    return chain_flops(GENERATOR_MODEL, length - 1, n, n)

  expected = [written(prompt, c.tokens) for c in found]
  expected[0] += chain_flops(GENERATOR_MODEL, 0, prompt - 1)
  assert [c.flops for c in found] == pytest.approx(expected)
  # The prompt is cached, so that only the step after it is read.
  second = Request(PROBLEM, ('1 + 2 = 3',), 'b', 1, max_steps=1)
  ((after,),) = generator.complete([second])
  step = len(FORMAT.encode_step('1 + 2 = 3', True))
  assert after.prompt_tokens == step + 1  # with the token that ended the prompt
  assert after.flops == pytest.approx(
    written(prompt + step, after.tokens)
    + chain_flops(GENERATOR_MODEL, prompt - 1, step)
  )
  ((again,),) = generator.complete([second])
  assert again.prompt_tokens == 0
  assert again == after._replace(
    prompt_tokens=0,
    flops=written(prompt + step, after.tokens),
    logprob=again.logprob,
  )
  assert again.logprob == pytest.approx(after.logprob, abs=1e-5)


def test_a_sample_without_room_costs_nothing():
  (w,) = make_writer(PLAIN, max_length=8).write([SampleRequest((5,) * 8, 0)])
  assert writing_flops(MODEL, 8, w) == 0

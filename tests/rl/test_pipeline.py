"""Which parameters sample which batch: by hand, and from their chains."""

import itertools
import threading
import types

import jax
import numpy as np
import pytest

from prm_jax.data.encoding import make_format
from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Generator
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.models import TransformerConfig, init_params
from prm_jax.rl import episodes, pipeline
from prm_jax.rl.objective import view_tokens
from prm_jax.rl.pipeline import Batches
from prm_jax.rl.rating import Rater
from prm_jax.rl.schedule import RlLoopConfig, sampled_after
from prm_jax.runtime.errors import UserError
from tests.shared.packed import trees_of
from tests.shared.tiny_sampling import one_device

pytestmark = pytest.mark.once

UPDATES, EVERY = 7, 3
FORMAT = make_format('arithmetic', 48)
MODEL = TransformerConfig(
  vocab_size=110, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)
SAMPLING = SamplingConfig(slots=4, max_tokens=24)
PROBLEMS = [
  Problem(f'p{n}', 'arithmetic', f'mod 10 : {n} + 2 * 3', '9') for n in range(8)
]


@pytest.mark.parametrize(
  ('staleness', 'expected'),
  [
    (0, [0, 1, 2, 3, 4, 5, 6]),
    (1, [0, 0, 1, 3, 3, 4, 6]),
    (2, [0, 0, 0, 3, 3, 3, 6]),
    (9, [0, 0, 0, 3, 3, 3, 6]),
  ],
)
def test_which_parameters_sample_by_hand(staleness, expected):
  """They are never from before the last checkpoint."""
  found = [
    sampled_after(update, staleness, EVERY) for update in range(1, UPDATES + 1)
  ]
  assert found == expected


@pytest.fixture(scope='module')
def params():
  """Parameters after each update, far enough apart to be distinguished."""
  first = jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)
  scaled = jax.jit(lambda n: jax.tree.map(lambda x: x * (1 + 0.2 * n), first))
  return [scaled(n) for n in range(UPDATES + 1)]


@pytest.fixture(scope='module')
def policy(params):
  return Generator(params[0], MODEL, FORMAT, one_device(), SAMPLING, 0)


def make_batches(policy, params, rate, data, done=0, **config):
  """Batches of two problems, two chains of each."""
  config = RlLoopConfig(problems=2, samples=2, evaluate_every=1, **config)
  return Batches(
    config, policy, rate, lambda n: params[n], PROBLEMS, data, done
  )


def run(policy, params, staleness, done=0, look_at=()):
  """Returns the batches of a run whose parameters are known beforehand."""
  order = itertools.islice(itertools.count(), 2 * done, None)
  data = (np.array([next(order), next(order)]) % 8 for _ in range(UPDATES))
  threads, rater = set(), Rater(FORMAT, None)

  def rate(problems, groups):
    threads.add(threading.current_thread())
    return rater.rate(problems, groups)

  batches = make_batches(
    policy,
    params,
    rate,
    data,
    done,
    updates=UPDATES,
    staleness=staleness,
    checkpoint_every=EVERY,
  )
  found = {}
  for update in range(done + 1, UPDATES + 1):
    found[update] = batches.next(update - 1)
    if update in look_at:
      batches.lend(update)
      episodes.sample(policy, PROBLEMS[:1], 2, 'held out')
    if update % EVERY == 0:
      assert not batches.ahead
  batches.close()
  assert (threading.main_thread() in threads) == (staleness == 0)
  return found


def sampled_by(batch, params):
  """The updates whose parameters give the recorded log-probabilities."""
  rows = batch.rated.rows
  trees = trees_of(rows.tokens, rows.lengths)
  view = jax.jit(view_tokens, static_argnames='model')
  gaps = [
    np.abs(
      view({'backbone': each}, trees, model=MODEL).logprobs
      - rows.sampled_logprobs
    )[rows.written].max()
    for each in params
  ]
  return [n for n, gap in enumerate(gaps) if gap < 1e-4]


@pytest.mark.parametrize('staleness', [0, 1, 2])
def test_chains_are_sampled_by_the_right_parameters(policy, params, staleness):
  found = run(policy, params, staleness)
  for update, batch in found.items():
    after = sampled_after(update, staleness, EVERY)
    assert sampled_by(batch, params) == [after]
    assert batch.staleness == update - 1 - after


def chains_of(found):
  return {
    update: [
      (
        e.problem.id,
        e.sample.written.tokens.tobytes(),
        e.sample.written.logprobs.tobytes(),
      )
      for e in batch.rated.episodes
    ]
    for update, batch in found.items()
  }


def test_evaluations_and_resuming_change_no_chain(policy, params):
  whole = chains_of(run(policy, params, 2))
  assert chains_of(run(policy, params, 2, look_at=(1, 2, 3, 5))) == whole
  later = chains_of(run(policy, params, 2, done=EVERY))
  assert later == {n: whole[n] for n in later}


def test_an_error_in_the_thread_reaches_the_loop(policy, params):
  def rate(problems, groups):
    raise UserError('no verdict')

  data = iter([np.arange(2)] * 3)
  batches = make_batches(
    policy, params, rate, data, updates=UPDATES, staleness=1
  )
  with pytest.raises(UserError, match='no verdict'):
    batches.next(0)
  batches.close()


@pytest.mark.parametrize('staleness', [0, 1])
def test_lend_returns_how_long_it_waited_for_sampling(
  policy, params, staleness, monkeypatch
):
  """Else tokens per second would leave that time out."""
  slow, now, rated = 9.0, [0.0], itertools.count()
  rater, looks = Rater(FORMAT, None), threading.Event()
  main = threading.current_thread()

  def clock():
    if threading.current_thread() is main:
      looks.set()
    return now[0]

  def rate(problems, groups):
    # The second batch is rated once somebody waits for it.
    assert next(rated) == 0 or looks.wait(60)
    now[0] += slow
    return rater.rate(problems, groups)

  monkeypatch.setattr(pipeline, 'time', types.SimpleNamespace(monotonic=clock))

  data = iter([np.arange(2)] * 3)
  batches = make_batches(
    policy, params, rate, data, updates=3, staleness=staleness
  )
  batches.next(0)
  waited = batches.lend(0)  # the next batch is under way, or not begun
  assert waited == (slow if staleness else 0)
  assert now[0] == slow * (2 if staleness else 1)
  batches.next(1)
  batches.close()
  assert now[0] >= 2 * slow

"""Tests the Scorer: equal scores in three ways, few programs, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data import tries
from prm_jax.data.encoding import DoesNotFit
from prm_jax.inference import scorer as scorer_lib
from prm_jax.inference.loading import load
from prm_jax.inference.score import aggregate
from prm_jax.inference.scorer import Scorer
from prm_jax.models import (
  HeadConfig,
  forward,
  step_logits,
  step_probabilities,
)
from prm_jax.runtime.errors import UserError
from prm_jax.training.train_state import make_params
from tests.shared.tiny_scorer import FORMAT, HEAD, MESH, MODEL, the_scorer

PROBLEM = 'seven times three'


def words(rng, count, longest):
  letters = 'abcdefghijklmnopqrstuvwxyz'
  return tuple(
    ''.join(rng.choice(list(letters), rng.integers(1, longest + 1)))
    for _ in range(count)
  )


def some_steps(rng, most=5):
  return words(rng, rng.integers(1, most + 1), 14)


@functools.cache
def plain_scores(problem, steps):
  """One row of 128 tokens, no packing, no prefix."""
  encoding = FORMAT.encode(problem, steps)
  row = np.zeros((3, 1, 128), np.int32)
  row[0, 0, : len(encoding.tokens)] = encoding.tokens
  row[1] = np.arange(128)
  row[2] = 127
  params = the_scorer().params
  hidden = jitted_forward(params['backbone'], MODEL, *row)
  logits = step_logits(params['head'], hidden, encoding.step_ends[None])
  return np.asarray(step_probabilities(logits, HEAD))[0]


jitted_forward = jax.jit(forward, static_argnums=1)


def test_a_stream_of_odd_lengths_compiles_few_programs():
  scorer, rng = the_scorer(), np.random.default_rng(1)
  before, tokens = len(scorer.stats.programs), scorer.stats.tokens
  repeated = 0  # by the chains of a call
  for i in range(200):
    (problem,) = words(rng, 1, 40)
    if i % 2:
      steps = some_steps(rng)
      assert len(scorer.score(problem, steps)) == len(steps)
      tokens += len(FORMAT.encode(problem, steps).tokens)
      continue
    candidates = [some_steps(rng) for _ in range(rng.integers(1, 5))]
    _, chain_scores, _ = scorer.best_of_n(problem, candidates)
    assert len(chain_scores) == len(candidates)
    ids = [FORMAT.encode(problem, steps).tokens for steps in candidates]
    unique = tries.unique_tokens(ids)
    tokens += unique
    repeated += sum(map(len, ids)) - unique
  assert len(scorer.stats.programs) - before <= 12
  # What candidates share is read once, or again in another row.
  assert tokens <= scorer.stats.tokens < tokens + repeated
  assert scorer.stats.padded_tokens < 2 * tokens


def test_the_stats_count_the_compiled_programs():
  scorer = the_scorer()
  scorer.score(PROBLEM, ['a'])
  scorer.best_of_n(PROBLEM, [['a'], ['b', 'c']])
  compiled = [f._cache_size() for f in (scorer._row_scores, scorer._best_of_n)]
  assert min(compiled) > 0
  assert sum(compiled) == len(scorer.stats.programs)
  # How many candidates share a row makes no new program.
  for count in (1, 3, 5, 16):
    scorer.best_of_n(PROBLEM, [['a']] * count)
  assert sum(compiled) == len(scorer.stats.programs)


def test_score_score_many_and_best_of_n_agree():
  scorer, rng = the_scorer(), np.random.default_rng(2)
  candidates = [some_steps(rng) for _ in range(6)]
  many = scorer.score_many([(PROBLEM, steps) for steps in candidates])
  _, _, shared = scorer.best_of_n(PROBLEM, candidates)
  assert len(many) == len(shared) == 6
  for i, steps in enumerate(candidates):
    expected = plain_scores(PROBLEM, steps)
    assert expected.shape == (len(steps),)
    for scores in (scorer.score(PROBLEM, steps), many[i], shared[i]):
      assert scores.dtype == np.float32
      np.testing.assert_allclose(scores, expected, atol=1e-5)
  flat = np.concatenate(many)
  assert flat.min() < 0.3
  assert flat.max() > 0.7


def test_a_likelihood_head_scores_alike_in_all_ways():
  """The likelihood depends on neither packing nor the shared prompt."""
  head = HeadConfig('two_class', likelihood=True)
  params = make_params(jax.random.key(0), MODEL, head)
  params['backbone'] = the_scorer().params['backbone']
  scorer = Scorer(params, MODEL, head, FORMAT, MESH)
  candidates = [['2 * 3 = 6', '77 + 1 = 78'], ['seven is so'], ['x']]
  many = scorer.score_many([(PROBLEM, steps) for steps in candidates])
  _, _, shared = scorer.best_of_n(PROBLEM, candidates)
  for i, steps in enumerate(candidates):
    alone = scorer.score(PROBLEM, steps)
    np.testing.assert_allclose(many[i], alone, atol=1e-5)
    np.testing.assert_allclose(shared[i], alone, atol=1e-5)
  # A step of one token says nothing that was unexpected; digits weigh more.
  np.testing.assert_allclose(many[2], 1 / (1 + np.exp(-3.0)), atol=1e-6)
  assert many[0][1] < many[0][0] < many[1][0] < many[2][0]


def test_score_many_of_many_problems_and_calls(monkeypatch):
  """Scores from several length buckets and calls come in the given order."""
  monkeypatch.setattr(scorer_lib, 'CALL_FILL', 200)
  scorer, rng = the_scorer(), np.random.default_rng(3)
  chains = [(words(rng, 1, 40)[0], some_steps(rng)) for _ in range(12)]
  lengths = [len(FORMAT.encode(*chain).tokens) for chain in chains]
  assert min(lengths) < 64 < max(lengths)
  assert sum(lengths) > 2 * 200
  for chain, scores in zip(chains, scorer.score_many(chains), strict=True):
    np.testing.assert_allclose(scores, plain_scores(*chain), atol=1e-5)


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_chains_that_share_beginnings_score_as_alone(seed):
  """Repeated chains, prefixes of others, branches inside steps."""
  rng = np.random.default_rng(seed)
  candidates = [some_steps(rng)]
  for _ in range(7):
    steps = list(candidates[rng.integers(len(candidates))])
    steps = steps[: rng.integers(1, min(4, len(steps)) + 1)]
    if rng.random() < 0.5:
      steps[-1] = (
        steps[-1][: rng.integers(1, len(steps[-1]) + 1)].strip() or 'x'
      )
    if rng.random() < 0.5:
      steps.append(words(rng, 1, 10)[0])
    candidates.append(steps)
  scorer = the_scorer()
  _, _, shared = scorer.best_of_n(PROBLEM, candidates)
  many = scorer.score_many([(PROBLEM, steps) for steps in candidates])
  for i, steps in enumerate(candidates):
    alone = plain_scores(PROBLEM, tuple(steps))
    np.testing.assert_allclose(shared[i], alone, atol=1e-5)
    np.testing.assert_allclose(many[i], alone, atol=1e-5)


def test_score_many_reads_what_chains_share_once():
  scorer = the_scorer()
  chains = [(PROBLEM, ['one', 'two', last]) for last in ('a', 'b', 'c')]
  before = scorer.stats.tokens
  scorer.score_many([*chains, *chains])
  ids = [FORMAT.encode(*chain).tokens for chain in chains]
  assert (
    scorer.stats.tokens - before == len(ids[0]) + 2 * 2
  )  # letter, separator


def test_score_many_of_no_chains():
  assert the_scorer().score_many([]) == []


def test_a_score_does_not_depend_on_what_follows():
  scorer = the_scorer()
  steps = ['one step', 'another', 'third', 'fourth']
  whole = scorer.score(PROBLEM, steps)
  for n in (1, 2, 3):
    np.testing.assert_allclose(
      scorer.score(PROBLEM, steps[:n]), whole[:n], atol=1e-6
    )
  # In the same program it is the same number, not one close to it.
  other = scorer.score(PROBLEM, [*steps[:2], 'drith', 'fhtruo'])
  np.testing.assert_array_equal(other[:2], whole[:2])
  assert (other[2:] != whole[2:]).all()


@pytest.mark.parametrize('how', ['min', 'last', 'prod', 'max'])
def test_best_of_n_uses_the_given_aggregate(how):
  # Candidates of which each aggregate takes another one.
  scorer, rng = the_scorer(), np.random.default_rng(8)
  candidates = [some_steps(rng) for _ in range(6)]
  best, chain_scores, step_scores = scorer.best_of_n(PROBLEM, candidates, how)
  expected, default = (
    [float(aggregate(s, np.ones(len(s), bool), name)) for s in step_scores]
    for name in (how, 'min')
  )
  np.testing.assert_allclose(chain_scores, expected, rtol=1e-5)
  assert best == int(np.argmax(expected))
  assert how == 'min' or best != int(np.argmax(default))


def test_the_default_aggregate_is_min():
  scorer, rng = the_scorer(), np.random.default_rng(8)
  candidates = [some_steps(rng) for _ in range(6)]
  best, chain_scores, _ = scorer.best_of_n(PROBLEM, candidates)
  by_min = scorer.best_of_n(PROBLEM, candidates, 'min')
  assert best == by_min[0]
  np.testing.assert_array_equal(chain_scores, by_min[1])


def test_ties_go_to_the_first():
  """With a head of zeros every score is the same number."""
  scorer = the_scorer()
  params, rng = scorer.params, np.random.default_rng(5)
  scorer.params = {
    'backbone': params['backbone'],
    'head': jax.tree.map(jnp.zeros_like, params['head']),
  }
  try:
    for count in (1, 5):
      candidates = [some_steps(rng) for _ in range(count)]
      best, chain_scores, _ = scorer.best_of_n(PROBLEM, candidates)
      assert set(chain_scores.tolist()) == {0.5}
      assert best == 0
  finally:
    scorer.params = params


def test_the_best_candidate_may_have_any_index():
  scorer, rng = the_scorer(), np.random.default_rng(6)
  candidates = [some_steps(rng) for _ in range(5)]
  best, chain_scores, _ = scorer.best_of_n(PROBLEM, candidates)
  for shift in range(1, 5):
    turned = candidates[shift:] + candidates[:shift]
    index, scores, _ = scorer.best_of_n(PROBLEM, turned)
    assert turned[index] == candidates[best]
    np.testing.assert_allclose(scores, np.roll(chain_scores, -shift), atol=1e-5)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda s: s.best_of_n(PROBLEM, []), 'best_of_n without candidates'),
    (lambda s: s.best_of_n(PROBLEM, [['a'], []]), 'chain without steps'),
    (lambda s: s.score(PROBLEM, []), 'chain without steps'),
    (lambda s: s.score(PROBLEM, ['']), "step '' has no tokens"),
    (
      lambda s: s.score(PROBLEM, ['a', 'b' * 120]),
      'chain of 2 steps does not fit max_length=128: only the first 1 do',
    ),
    (
      lambda s: s.score_many([(PROBLEM, ['a']), (PROBLEM, ['a', 'b' * 120])]),
      'chain of 2 steps does not fit',
    ),
    (
      lambda s: s.best_of_n(PROBLEM, [['a'], ['a', 'b', 'c' * 120]]),
      'chain of 3 steps does not fit max_length=128: only the first 2',
    ),
    (
      lambda s: s.best_of_n(PROBLEM, [['a']], 'median'),
      "unknown aggregate 'median': expected one of min",
    ),
  ],
)
def test_refusals(call, message):
  """Errors have one line, and the stats do not change."""
  scorer = the_scorer()
  before = (len(scorer.stats.programs), scorer.stats.tokens)
  with pytest.raises(UserError, match=message) as caught:
    call(scorer)
  assert '\n' not in str(caught.value)
  assert (len(scorer.stats.programs), scorer.stats.tokens) == before


def test_a_problem_that_does_not_fit():
  with pytest.raises(DoesNotFit, match='do not fit max_length=128'):
    the_scorer().score('p' * 127, ['a'])


def test_load_without_a_run(tmp_path):
  with pytest.raises(UserError, match=r'holds neither the model\.json'):
    load(tmp_path / 'nowhere')
  (tmp_path / 'model.json').write_text('{"format": {"tokenizer": "bytes"}}')
  with pytest.raises(UserError, match='does not describe a model'):
    load(tmp_path)


def test_a_run_in_bfloat16(finished):
  """bfloat16 gives nearly the same scores under another name."""
  exact, rounded = load(finished), load(finished, dtype='bfloat16')
  kinds = {x.dtype for x in jax.tree.leaves(rounded.params['backbone'])}
  assert kinds == {jnp.dtype('bfloat16')} and rounded.name != exact.name
  chain = ('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 6'])
  ours, theirs = rounded.score(*chain), exact.score(*chain)
  # bfloat16 keeps 8 bits of each number.
  np.testing.assert_allclose(ours, theirs, atol=0.05)
  assert (ours != theirs).all()


@pytest.mark.parametrize('how', ['min', 'mean'])
def test_a_nan_score_is_never_the_best(how):
  """argmax would take NaN for the greatest."""
  candidates = [['abc'], ['abd'], ['abz'], ['abf']]
  scorer = the_scorer()
  row = FORMAT.tokenizer.encode('z')[0]
  table = scorer.params['backbone']['embed_tokens'].at[row].set(jnp.nan)
  backbone = scorer.params['backbone'] | {'embed_tokens': table}
  params = scorer.params | {'backbone': backbone}
  spoilt = Scorer(params, MODEL, HEAD, FORMAT, MESH)
  assert np.isnan(spoilt.score(PROBLEM, candidates[2])).all()
  expected, _, _ = scorer.best_of_n(PROBLEM, candidates[:2], how)
  assert spoilt.best_of_n(PROBLEM, candidates[:2], how)[0] == expected
  with pytest.raises(UserError, match=r'of 4 candidates for .* are NaN'):
    spoilt.best_of_n(PROBLEM, candidates, how)

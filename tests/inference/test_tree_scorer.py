"""Tests the TreeScorer: the Scorer's scores, with every step read once."""

import functools
import re

import numpy as np
import pytest

from prm_jax.data.encoding import make_format
from prm_jax.inference import tree_scorer as tree_scorer_lib
from prm_jax.inference.call_sizes import coarse_grid
from prm_jax.inference.piece_runs import split_into_waves
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.published import open_published
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import HeadConfig, chain_flops, prefix_store
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import run_module
from tests.shared.published_models import write_model
from tests.shared.tiny_trees import FORMAT, MODEL, make_scorer, some_chains

pytestmark = pytest.mark.once

PROBLEM = 'seven times three'


@functools.cache
def the_scorer():
  return make_scorer()


def unique_tokens(fmt, chains):
  """Returns the number of tokens in the tree of prompts and steps."""
  seen = {}
  for problem, steps in chains:
    seen[problem] = len(fmt.encode_prompt(problem))
    for i, step in enumerate(steps):
      tokens = len(fmt.encode_step(step, i == 0))
      seen[problem, *steps[: i + 1]] = tokens
  return sum(seen.values())


def check(scorer, trees, chains):
  """Checks scores against the Scorer's; returns the tokens read for each."""
  answers = trees.score([Scoring(*chain) for chain in chains])
  assert all(len(each) == 1 for each in answers)
  expected = scorer.score_many(chains)
  for (answer,), scores in zip(answers, expected, strict=True):
    np.testing.assert_allclose(answer.scores, scores, rtol=0, atol=1e-5)
  return [answer.tokens for (answer,) in answers]


@pytest.mark.parametrize(
  'head',
  [
    HeadConfig('logit'),
    HeadConfig('three_class', likelihood=True),
  ],
  ids=['logit', 'likelihood'],
)
def test_scores_equal_the_scorers_in_any_company(head):
  scorer = make_scorer(head=head)
  chains = some_chains(24)
  together = TreeScorer(scorer)
  assert sum(check(scorer, together, chains)) == unique_tokens(FORMAT, chains)
  assert sum(check(scorer, together, chains)) == 0
  order = np.random.default_rng(1).permutation(len(chains))
  apart = TreeScorer(scorer)
  tokens = [
    sum(check(scorer, apart, [chains[i] for i in part]))
    for part in np.split(order, [8])
  ]
  assert sum(tokens) == unique_tokens(FORMAT, chains)
  for trees in (together, apart):
    assert trees.stats.tokens == unique_tokens(FORMAT, chains)


def test_a_beam_reads_every_step_once():
  """Beams branch and change places at every step; few programs suffice."""
  scorer, rng = the_scorer(), np.random.default_rng(3)
  trees = TreeScorer(scorer)
  beams, asked, read = [()] * 4, [], 0
  for depth in range(7):
    beams = [
      (*beam, f'{depth} {i} {n}')
      for i, beam in enumerate(beams)
      for n in 'abcd'
    ]
    chains = [(PROBLEM, steps) for steps in beams]
    asked += chains
    read += sum(check(scorer, trees, chains))
    beams = [beams[i] for i in rng.permutation(16)[:4]]
  assert read == unique_tokens(FORMAT, asked)
  # Prefixes take 0, 32, 64 or 128 tokens.
  assert len(trees.stats.programs) <= 6


@pytest.mark.slow
def test_a_stream_of_odd_requests_compiles_few_programs():
  scorer, trees = the_scorer(), TreeScorer(the_scorer(), rows=64)
  for seed in range(12):
    chains = some_chains(1 + seed % 5, seed)
    trees.score([Scoring(*chain) for chain in chains])
  # T of 8 to 128, S of 0 to 128, B of 1 to 16.
  assert len(trees.stats.programs) <= 25
  check(scorer, trees, some_chains(7, 100))


@pytest.mark.slow
@pytest.mark.parametrize('rows', [1, 3])
def test_dropped_entries_are_read_again(rows):
  scorer, chains = the_scorer(), some_chains(16)
  trees = TreeScorer(scorer, rows)
  first = sum(check(scorer, trees, chains))
  assert first >= unique_tokens(FORMAT, chains) > rows * FORMAT.max_length
  again = sum(check(scorer, trees, chains))
  assert 0 < again <= first
  # The last chain is the most recently used.
  assert sum(check(scorer, trees, chains[-1:])) == 0


def test_tokens_and_flops_are_counted_once():
  trees = TreeScorer(the_scorer())
  prompt = len(FORMAT.encode_prompt(PROBLEM))
  a, b, c = (len(FORMAT.encode_step(step, True)) for step in ('a', 'bb', 'ccc'))
  asked = [
    Scoring(PROBLEM, ('a',)),
    Scoring(PROBLEM, ('a', 'bb')),
    Scoring(PROBLEM, ('a', 'ccc')),
    Scoring(PROBLEM, ('a', 'bb')),
  ]
  found = [scored for (scored,) in trees.score(asked)]
  assert [each.tokens for each in found] == [prompt + a, b, c, 0]
  head = 2 * MODEL.d_model  # of each step's end

  def flops(first, tokens):
    return chain_flops(MODEL, first, tokens) + head

  assert [each.flops for each in found] == pytest.approx(
    [flops(0, prompt + a), flops(prompt + a, b), flops(prompt + a, c), 0]
  )
  trees.forget()
  assert [[s.tokens for s in each] for each in trees.score(asked[:1])] == [
    [prompt + a]
  ]


def test_unreadable_chains_spoil_no_other():
  scorer = the_scorer()
  trees = TreeScorer(scorer)
  good = Scoring(PROBLEM, ('a', 'b'))
  long = Scoring(PROBLEM, ('a', 'x' * 130))
  blank = Scoring(PROBLEM, ('a', ''))
  found = trees.score([long, good, blank, Scoring('x' * 200, ('a',))])
  nothing = [ScoredSteps((), 0)]
  assert [each == nothing for each in found] == [True, False, True, True]
  expected = scorer.score(*good)
  np.testing.assert_allclose(found[1][0].scores, expected, atol=1e-5)
  assert trees.score([]) == []


def test_a_chain_that_fills_the_window_and_long_steps():
  """Runs are longer than a block, with and without a prefix."""
  fmt = make_format('bytes', 700)
  scorer = make_scorer(fmt=fmt)
  trees = TreeScorer(scorer, rows=2)
  steps = ('a' * 150, 'b' * 140, 'c' * 9)
  prompt = len(fmt.encode_prompt('p' * 200))
  last = fmt.max_length - prompt - 150 - 140 - 9 - 3 - 1
  chains = [('p' * 200, steps[:1]), ('p' * 200, (*steps, 'd' * last))]
  check(scorer, trees, chains[:1])
  assert sum(check(scorer, trees, chains[1:])) == 700 - prompt - 151
  alone = TreeScorer(scorer, rows=1)
  assert sum(check(scorer, alone, chains[1:])) == 700


def test_the_host_holds_one_number_for_each_token_of_the_cache():
  """Not for each token and all before it, which grows with the window."""
  trees = TreeScorer(make_scorer(), rows=2)
  problem, steps = PROBLEM, ('a', 'b') * 20
  trees.score([Scoring(problem, steps)])
  ids = trees.encode(problem, steps)
  path = trees._store.find(ids)
  assert len(path) == 1 + len(ids)
  assert sum(piece.slots.nbytes for piece in path) == 4 * sum(map(len, ids))
  assert all(piece.slots.base is None for piece in path)  # nor of a whole chain
  index = prefix_store.index_of(path, len(path), FORMAT.max_length)
  for row, piece in zip(index, path, strict=True):
    assert len({*row[: piece.end]}) == piece.end
    assert (row[piece.end :] == -1).all() and (row[: piece.end] >= 0).all()
    np.testing.assert_array_equal(row[: piece.end], index[-1][: piece.end])


@pytest.mark.slow
def test_slots_that_held_nan_can_be_used_again():
  """One token has an embedding of NaN."""
  scorer = make_scorer(broken=ord('!') + 4)
  trees = TreeScorer(scorer, rows=1)
  broken = Scoring(PROBLEM, ('a', '!', 'b'))
  for _ in range(3):
    ((found,),) = trees.score([broken])
    assert not np.isfinite(found.scores[1:]).any()
    for problem, steps in some_chains(4, 7):
      check(scorer, trees, [(problem, steps)])


@pytest.mark.slow
def test_a_nan_spoils_only_the_steps_after_it():
  """This holds in every packing, and when scores come from the cache."""
  scorer = make_scorer(broken=ord('!') + 4)
  problems = ['two', 'x', 'broken!', 'p0', 'p1', 'p2']
  steps = ['a', '!', 'so 17', '4!', 'is']
  rng = np.random.default_rng(5)
  chains = [
    (
      problems[rng.integers(len(problems))],
      tuple(steps[i] for i in rng.integers(5, size=rng.integers(1, 4))),
    )
    for _ in range(40)
  ]
  expected = {}
  for problem, each in chains:
    texts = [problem, *each]
    good = next((i for i, text in enumerate(texts) if '!' in text), len(texts))
    whole = np.full(len(each), np.nan)
    if good > 1:
      whole[: good - 1] = scorer.score(problem, each[: good - 1])
    expected[problem, each] = whole
  assert 10 < sum(np.isnan(scores).any() for scores in expected.values()) < 30
  fresh = TreeScorer(scorer)
  for trees in (fresh, TreeScorer(scorer, rows=1)):
    for _ in range(2):
      for part in (chains[:20], chains[20:]):
        answers = trees.score([Scoring(*chain) for chain in part])
        for chain, (scored,) in zip(part, answers, strict=True):
          np.testing.assert_allclose(
            scored.scores, expected[chain], rtol=0, atol=1e-5
          )
  assert all(
    scored.tokens == 0
    for (scored,) in fresh.score([Scoring(*chain) for chain in chains])
  )


def test_nothing_half_read_is_used_after_a_failure(monkeypatch):
  scorer, chains = the_scorer(), some_chains(6)
  trees = TreeScorer(scorer)

  def fail(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(tree_scorer_lib, 'index_of', fail)
    with pytest.raises(KeyboardInterrupt):
      trees.score([Scoring(*chain) for chain in chains])
  assert sum(check(scorer, trees, chains)) == unique_tokens(FORMAT, chains)


STYLES = ('qwen_prm', 'skywork', 'math_shepherd', 'rlhflow', 'trl')


@pytest.mark.slow
@pytest.mark.parametrize('style', STYLES)
def test_published_formats(style, tmp_path):
  write_model(style, tmp_path)
  own = style in ('math_shepherd', 'rlhflow')
  scorer = open_published(tmp_path, style if own else '', max_length=256)
  steps = ('Step 1: Let 2 + 3 = 5.', ' so the answer is 5', 'é = 12 eggs')
  chains = [
    (problem, (*steps[:n], '10 + 2 = 12'))
    for problem in ('Janet sells 3 eggs per day.', 'How many ducks?')
    for n in range(4)
  ]
  trees = TreeScorer(scorer, rows=8)
  tokens = sum(check(scorer, trees, chains[:2]) + check(scorer, trees, chains))
  assert tokens == unique_tokens(scorer.format, chains)


def test_waves_by_hand():
  trees = TreeScorer(the_scorer())
  store = trees._store
  at, new = {(): store.root}, []
  for path in ('p', 'pa', 'pab', 'pac', 'pacd', 'pe', 'q', 'pacf'):
    ids = tuple(map(ord, path))
    at[ids] = store.add(at[ids[:-1]], ids[-1:])
    new.append(at[ids])
  runs = [
    [''.join(chr(piece.ids[0]) for piece in run.pieces) for run in wave]
    for wave in split_into_waves(new)
  ]
  assert runs == [['pab', 'q'], ['cd', 'e'], ['f']]


def test_a_cache_of_no_rows_is_refused():
  with pytest.raises(UserError, match=r'prm.rows=0: expected >= 1'):
    TreeScorer(the_scorer(), rows=0)


def test_a_text_in_place_of_steps_is_refused():
  """Each of its letters would be a step."""
  with pytest.raises(UserError, match="steps='so': expected a list of texts"):
    TreeScorer(the_scorer()).encode(PROBLEM, 'so')


def test_a_chain_that_is_too_long_is_not_encoded_to_its_end():
  """So its length is not known."""
  trees = TreeScorer(the_scorer())
  with pytest.raises(
    UserError, match='chain of at least 129 tokens does not fit the 128 of'
  ):
    trees.encode('p', ('a',) * 10**6)


@pytest.mark.parametrize('share', [0.5, 0.1])
def test_a_cache_of_scores_larger_than_memory_is_refused(share):
  """It is refused before any memory is taken; the proposed size fits."""
  scorer = the_scorer()
  with pytest.raises(UserError, match=r'prm\.rows=1000000000: .* GB') as told:
    TreeScorer(scorer, rows=10**9, share=share)
  assert f' more than {share:.0%} of the ' in str(told.value)
  assert '\n' not in str(told.value)
  (fits,) = re.findall('lower it to ([0-9,]+) or less', str(told.value))
  rows = int(fits.replace(',', ''))
  sizes = scorer.model, scorer.mesh
  more = FORMAT.max_length, 'prm.rows', share
  slots = prefix_store.slots_for(*sizes, rows, *more)
  assert slots == rows * FORMAT.max_length
  with pytest.raises(UserError, match=f'lower it to {fits} or less'):
    prefix_store.slots_for(*sizes, rows + 1, *more)


def test_a_pool_takes_the_memory_that_is_computed():
  scorer = the_scorer()
  pool = TreeScorer(scorer, rows=3)._store.pool
  taken = sum(x.addressable_shards[0].data.nbytes for x in pool)
  slots = 3 * FORMAT.max_length
  assert taken == prefix_store.pool_bytes(scorer.model, scorer.mesh, slots)


@pytest.mark.slow
def test_every_mesh_gives_the_same_scores():
  found = run_module('tests.shared.score_trees_on_devices')
  one = found.pop('1,1,1')
  assert len(one['scores']) > 50 and found
  for result in found.values():
    np.testing.assert_allclose(
      result['scores'], one['scores'], rtol=0, atol=1e-5
    )
    assert result['tokens'] == one['tokens']


@pytest.mark.slow
def test_a_server_compiles_few_programs_and_gives_the_same_scores():
  """Rows with room to spare, and several calls where one would do."""
  scorer = the_scorer()
  trees = TreeScorer(scorer, rows=64, make_grid=coarse_grid)
  for seed in range(8):
    check(scorer, trees, some_chains(1 + 4 * seed, seed))
  sizes = trees.grid.sizes()
  assert trees.stats.programs <= {*sizes} and len(sizes) < 40

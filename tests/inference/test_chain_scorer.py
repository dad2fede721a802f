"""Tests that chains scored in one call get the scores of each alone."""

import numpy as np

from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.protocols import Scoring
from tests.shared.tiny_trees import FORMAT, make_scorer, some_chains


def test_scores_equal_those_of_each_chain_alone():
  scorer = make_scorer()
  chains = some_chains(20)
  found = ChainScorer(scorer).score([Scoring(*chain) for chain in chains])
  assert len(found) == len(chains)
  for [scored], (problem, steps) in zip(found, chains, strict=True):
    alone = scorer.score(problem, steps)
    np.testing.assert_allclose(scored.scores, alone, atol=1e-5)
    assert scored.tokens == len(FORMAT.encode(problem, steps).tokens)
    assert scored.flops > 0


def test_a_chain_that_does_not_fit_spoils_no_other():
  scorer = make_scorer()
  fits = Scoring('x', ('1 + 2 = 3',))
  long = Scoring('x', ('a', 'b' * FORMAT.max_length))
  empty = Scoring('x', ('',))
  [first], [second], [third], [fourth] = ChainScorer(scorer).score(
    [long, fits, empty, fits]
  )
  assert first.scores == third.scores == ()
  assert len(second.scores) == 1
  # Their places in a packed row differ, and with them the rounding.
  np.testing.assert_allclose(second.scores, fourth.scores, atol=1e-6)
  assert ChainScorer(scorer).score([long]) == [[first]]

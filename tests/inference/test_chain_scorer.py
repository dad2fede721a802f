"""Tests that chains scored in one call get the scores of each alone."""

import numpy as np
import pytest

from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import HeadConfig, chain_flops
from tests.shared.tiny_trees import FORMAT, MODEL, make_scorer, some_chains


def test_scores_equal_those_of_each_chain_alone():
  scorer = make_scorer()
  chains = some_chains(20)
  found = ChainScorer(scorer).score([Scoring(*chain) for chain in chains])
  assert len(found) == len(chains)
  for [scored], (problem, steps) in zip(found, chains, strict=True):
    alone = scorer.score(problem, steps)
    np.testing.assert_allclose(scored.scores, alone, atol=1e-5)
    assert scored.tokens == len(FORMAT.encode(problem, steps).tokens)


@pytest.mark.parametrize(
  'head',
  [HeadConfig('logit'), HeadConfig('three_class', likelihood=True)],
  ids=['logit', 'likelihood'],
)
def test_flops_are_those_of_the_closed_form_and_of_a_tree(head):
  scorer = make_scorer(head=head)
  chain = Scoring('x', ('1 + 2 = 3', 'a'))
  [[scored]], [[of_a_tree]] = (
    kind(scorer).score([chain]) for kind in (ChainScorer, TreeScorer)
  )
  if not head.likelihood:  # it reads one hidden state of each step
    backbone = chain_flops(MODEL, 0, scored.tokens)
    assert scored.flops == backbone + 2 * (2 * MODEL.d_model)
  assert scored.flops == pytest.approx(of_a_tree.flops)
  assert scored.tokens == of_a_tree.tokens


@pytest.mark.parametrize('likelihood', [False, True])
def test_a_nan_spoils_only_the_steps_after_it(likelihood):
  """Also where the chains share a row, and in what heads read."""
  head = HeadConfig('logit', likelihood=likelihood)
  scorer = make_scorer(head, broken=ord('!') + 4)
  chains = [
    ('p', ('a', 'b')),
    ('p', ('a', 'c!', 'd')),
    ('p', ('a', 'b', 'c', 'd', 'e!')),
    ('q', ('d',)),
    ('q!', ('d', 'e')),
  ]
  sound = [2, 1, 4, 1, 0]
  requests = [Scoring(*chain) for chain in chains]
  found = ChainScorer(scorer).score(requests)
  of_a_tree = TreeScorer(scorer, 8).score(requests)
  features = scorer.features_many(chains)
  for n, (problem, steps) in enumerate(chains):
    [scored], [wanted], good = found[n], of_a_tree[n], sound[n]
    assert np.isfinite(scored.scores[:good]).all()
    assert np.isnan(scored.scores[good:]).all()
    np.testing.assert_allclose(scored.scores, wanted.scores, atol=1e-5)
    assert len(scored.scores) == len(steps)
    states = features[n].states
    assert np.isnan(states[good:]).all() and len(states) == len(steps)
    if good:
      [alone] = scorer.features_many([(problem, steps[:good])])
      np.testing.assert_allclose(states[:good], alone.states, atol=1e-5)


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

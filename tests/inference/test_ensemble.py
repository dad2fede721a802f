"""The lowest score of several PRMs, with real ones of random weights."""

import numpy as np

from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.ensemble import LowestOf
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.models import HeadConfig
from tests.shared.tiny_trees import make_scorer, some_chains


class Fixed:
  """Gives the same scores to every chain."""

  counts_flops = False

  def __init__(self, name, *scores, **critiques):
    self.name = name
    self._scored = ScoredSteps(scores, 3, **critiques)

  def score(self, requests):
    return [[self._scored] for _ in requests]


def test_each_step_has_the_score_of_the_most_doubtful_prm():
  heads = [HeadConfig(kind) for kind in ('logit', 'two_class')]
  prms = [ChainScorer(make_scorer(head)) for head in heads]
  requests = [Scoring(*chain) for chain in some_chains(6)]
  found = LowestOf(prms).score(requests)
  alone = [prm.score(requests) for prm in prms]
  lower = np.zeros(2, int)
  for (one,), (first,), (second,) in zip(found, *alone, strict=True):
    lowest = np.minimum(first.scores, second.scores)
    np.testing.assert_array_equal(one.scores, lowest)
    assert one.tokens == first.tokens + second.tokens
    assert one.flops == first.flops + second.flops > 0
    lower += np.array([(lowest < x.scores).any() for x in (first, second)])
  assert lower.all()


def test_what_one_cannot_score_has_no_score():
  request = [Scoring('1 + 1', ('2',))]
  both = LowestOf([Fixed('a', 0.3, np.nan), Fixed('b', 0.5, 0.9)])
  assert both.name == 'a and b' and not both.counts_flops
  ((scored,),) = both.score(request)
  assert scored.scores[0] == 0.3 and np.isnan(scored.scores[1])
  ((scored,),) = LowestOf([Fixed('a', 0.3), Fixed('b')]).score(request)
  assert scored == ScoredSteps((), 6)


def test_critiques_without_a_verdict_are_counted():
  """The last two steps have no judge that both believe in."""
  critics = (
    Fixed('a', 0.3, 0.5, 0.5, unread=1, lost=2, refused=1),
    Fixed('b', 0.5, 0.5, 0.5, unread=4, refused=2),
    Fixed('c', 0.9, 0.9, 0.9),
  )
  ((scored,),) = LowestOf(critics).score([Scoring('1 + 1', ('2',) * 3)])
  assert scored == ScoredSteps((0.3, 0.5, 0.5), 9, 0.0, 5, 2, 2)

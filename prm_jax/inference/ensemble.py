"""Scores steps with several PRMs and believes the most doubtful one.

    Scoring requests -> every PRM -> the lowest score of each step

A policy that learns from one PRM finds what that PRM overlooks. What several
overlook is less (Coste et al., 2024, worst-case optimization of an ensemble).
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.inference.protocols import ScoredSteps, Scoring, StepScorer


class LowestOf:
  """Makes one `protocols.StepScorer` of several; tokens and FLOPs add up.

  A step that one of them cannot score has no score. Critiques of critics among
  them add up, too, and a step that one of them cannot judge counts as refused.

  Attributes:
    name: the names of all.
  """

  def __init__(self, scorers: Sequence[StepScorer]) -> None:
    self._scorers = scorers
    self.name = ' and '.join(scorer.name for scorer in scorers)
    self.counts_flops = all(scorer.counts_flops for scorer in scorers)

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`."""
    answers = [scorer.score(requests) for scorer in self._scorers]
    return [
      [_lowest([scored for (scored,) in of_request])]
      for of_request in zip(*answers, strict=True)
    ]


def _lowest(scored: Sequence[ScoredSteps]) -> ScoredSteps:
  """Returns the lowest score of each step, NaN and () where one has these."""
  every = [one.scores for one in scored]
  lowest = np.min(every, 0).tolist() if all(every) else ()
  return ScoredSteps(
    tuple(lowest),
    sum(one.tokens for one in scored),
    sum(one.flops for one in scored),
    sum(one.unread for one in scored),
    sum(one.lost for one in scored),
    max(one.refused for one in scored),
  )

"""Scores whole chains with a PRM, each in full: the step scorer of RL.

    Scoring requests -> Scorer.score_many, packed into rows -> ScoredSteps

Search scores chains as they grow and uses `TreeScorer`, which caches what it
read. RL scores whole chains once, for which packed rows are cheaper.
"""

from collections.abc import Sequence

from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.models import chain_flops
from prm_jax.runtime.errors import UserError


class ChainScorer:
  """Makes a `protocols.StepScorer` of a Scorer, without a cache.

  Attributes:
    name: identifies the PRM.
  """

  counts_flops = True

  def __init__(self, scorer: Scorer) -> None:
    self.name, self._scorer = scorer.name, scorer

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`."""
    lengths = [self._length(request) for request in requests]
    asked = [
      (request.problem, request.steps)
      for request, length in zip(requests, lengths, strict=True)
      if length
    ]
    scores = iter(self._scorer.score_many(asked) if asked else ())
    model = self._scorer.model
    return [
      [
        ScoredSteps(
          tuple(next(scores).tolist()), length, chain_flops(model, 0, length)
        )
        if length
        else ScoredSteps((), 0)
      ]
      for length in lengths
    ]

  def _length(self, request: Scoring) -> int:
    """Returns the chain's tokens, 0 if it cannot be encoded to its end."""
    try:
      encoding = self._scorer.format.encode(request.problem, request.steps)
    except UserError:
      return 0
    whole = len(encoding.step_ends) == len(request.steps)
    return len(encoding.tokens) if whole else 0

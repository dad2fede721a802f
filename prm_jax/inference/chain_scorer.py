"""Scores whole chains with a PRM, each in full: the step scorer of RL.

    Scoring requests -> Scorer.score_many, packed into rows -> ScoredSteps

Search scores chains as they grow and uses `TreeScorer`, which caches what it
read. RL scores whole chains once, for which packed rows are cheaper.
"""

from collections.abc import Sequence

from prm_jax.data.encoding import Encoding
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
    encodings = [self._encode(request) for request in requests]
    asked = [
      (request.problem, request.steps)
      for request, encoding in zip(requests, encodings, strict=True)
      if isinstance(encoding, Encoding)
    ]
    scores = iter(self._scorer.score_many(asked) if asked else ())
    return [
      [
        ScoredSteps(
          tuple(next(scores).tolist()),
          len(encoding.tokens),
          self._flops(encoding),
        )
        if isinstance(encoding, Encoding)
        else ScoredSteps((), 0)
      ]
      for encoding in encodings
    ]

  def fault(self, request: Scoring) -> str:
    """Says why a chain cannot be read to its end; '' where it can."""
    found = self._encode(request)
    return found if isinstance(found, str) else ''

  def _encode(self, request: Scoring) -> Encoding | str:
    """Encodes a chain; returns why it cannot be read to its end otherwise."""
    try:
      encoding = self._scorer.format.encode(request.problem, request.steps)
    except UserError as error:
      return str(error)
    read, steps = len(encoding.step_ends), len(request.steps)
    return encoding if read == steps else f'{read} of {steps} steps fit'

  def _flops(self, encoding: Encoding) -> float:
    scorer, logits = self._scorer, 0
    if scorer.head.likelihood:
      logits = int((scorer.format.token_kinds(encoding) > 0).sum())
    backbone = chain_flops(scorer.model, 0, len(encoding.tokens), logits)
    return backbone + scorer.head_flops * len(encoding.step_ends)

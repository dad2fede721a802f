"""A PRM as a `policy.StepScorer` of whole chains, each scored once.

Search asks for chains that grow, and `TreeScorer` reads each step of them once.
RL asks for chains that are whole: packed into rows they are one call.
"""

from collections.abc import Sequence

from prm_jax.inference.protocols import Scored, Scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.models import chain_flops
from prm_jax.runtime.errors import UserError


class ChainScorer:
  """Scores whatever it is asked, from the beginning.

  Args:
    scorer: the PRM.

  Attributes:
    name: says which PRM it is.
  """

  counts_flops = True

  def __init__(self, scorer: Scorer) -> None:
    self.name, self._scorer = scorer.name, scorer

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    """See `policy.StepScorer`."""
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
        Scored(
          tuple(next(scores).tolist()), length, chain_flops(model, 0, length)
        )
        if length
        else Scored((), 0)
      ]
      for length in lengths
    ]

  def _length(self, request: Scoring) -> int:
    """Tokens; 0 of a chain that cannot be read, or not to its end."""
    try:
      encoding = self._scorer.format.encode(request.problem, request.steps)
    except UserError:
      return 0
    whole = len(encoding.step_ends) == len(request.steps)
    return len(encoding.tokens) if whole else 0

"""A trained PRM for chains that grow: what search asks.

Scoring requests -> TreeScorer.score -> the score of every step
"""

from collections.abc import Sequence

from prm_jax.encoding import DoesNotFit
from prm_jax.errors import UserError
from prm_jax.policy import Scored, Scoring
from prm_jax.scorer import Scorer


class TreeScorer:
  """A PRM as a `policy.StepScorer`.

  Args:
    scorer: the PRM.
    rows: chains whose keys and values stay on the device, the latest used.
    name: says which PRM it is.
  """

  def __init__(self, scorer: Scorer, rows: int = 1024, name: str = 'prm'):
    self.name = name
    self._scorer, self._rows = scorer, rows

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    """See `policy.StepScorer`."""
    fitting = []
    for each in requests:
      try:
        encoding = self._scorer.format.encode(each.problem, each.steps)
        fitting.append(len(encoding.step_ends) == len(each.steps))
      except (DoesNotFit, UserError):
        fitting.append(False)
    chains = [
      (r.problem, r.steps)
      for r, fits in zip(requests, fitting, strict=True)
      if fits
    ]
    scores = iter(self._scorer.score_many(chains) if chains else ())
    return [
      [Scored(tuple(map(float, next(scores))) if fits else (), 0)]
      for fits in fitting
    ]

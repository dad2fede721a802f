"""What a policy wrote, rated: outcomes by the verifier, steps by a PRM.

    samples -> Episodes, Rows -> the reference's log-probabilities -> a PRM,
      which may learn from the outcomes first -> scores, and what steps are paid

The loop asks, and whoever looks at the policy while it learns.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Sample
from prm_jax.inference.protocols import Scoring, StepScorer
from prm_jax.rl import episodes, losses
from prm_jax.rl.episodes import Episode, Rows
from prm_jax.rl.views import Reference
from prm_jax.training.train_state import TrainState


class Said(NamedTuple):
  """What a PRM says of the steps of B chains.

  NaN where it is broken, or a chain does not fit its window.
  """

  scores: np.ndarray  # [B, P] float64 in [0, 1], to be looked at
  rewards: np.ndarray  # [B, P] float32 that forms of reward start from


class ChainPrm(Protocol):
  """Scores the steps of chains that a policy wrote.

  Attributes:
    name: says which PRM it is.
    state: what a checkpoint keeps of it; None of one that never changes.
  """

  name: str
  state: TrainState | None

  def learn(self, rows: Rows) -> dict[str, float]:
    """Learns from the outcomes, if it does; metrics of that."""
    ...

  def score(self, found: Sequence[Episode], rows: Rows) -> Said:
    """The same chains as text and as arrays."""
    ...


class TextPrm:
  """A PRM that reads text and stays as it is."""

  state = None

  def __init__(self, scorer: StepScorer) -> None:
    self.name, self._scorer = scorer.name, scorer

  def learn(self, rows: Rows) -> dict[str, float]:
    """Nothing."""
    del rows
    return {}

  def score(self, found: Sequence[Episode], rows: Rows) -> Said:
    """See `ChainPrm`; a chain without steps is not asked about."""
    scores = np.zeros(rows.step_mask.shape)
    asked = [b for b, episode in enumerate(found) if episode.steps]
    said = self._scorer.score(
      [Scoring(found[b].problem.text, found[b].steps) for b in asked]
    )
    for b, [scored] in zip(asked, said, strict=True):
      # Steps that do not fit have no score, which is not a low one.
      scores[b, : len(found[b].steps)] = scored.scores or np.nan
    return Said(scores, scores.astype(np.float32))


class Rated(NamedTuple):
  """Chains, and what was found of them.

  Attributes:
    rewards: [B, P] of steps, before any form of reward.
    told: metrics.
  """

  found: list[Episode]
  rows: Rows
  rewards: np.ndarray
  told: dict[str, float]


class Rater:
  """Asks the verifier, the reference and the PRM, in this order.

  Args:
    fmt: the policy's.
    prm: None: steps have no scores and no rewards.
    reference: what others compare with; None: nobody does.
  """

  def __init__(
    self,
    fmt: StepFormat,
    prm: ChainPrm | None,
    reference: Reference | None = None,
  ) -> None:
    self._format, self._reference, self.prm = fmt, reference, prm

  @property
  def state(self) -> TrainState | None:
    """What a checkpoint keeps of the PRM."""
    return None if self.prm is None else self.prm.state

  def rate(
    self,
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Sample]],
    learn: bool = False,
  ) -> Rated:
    """Rates the chains of each problem.

    Args:
      learn: whether the PRM learns from their outcomes before it scores them.
    """
    found = episodes.verify(problems, groups)
    rows = episodes.to_rows(found, self._format)
    told: dict[str, float] = {}
    if self._reference is not None:
      rows = self._reference.read(rows)
      told['kl_to_reference'] = divergence(rows)
    if self.prm is None:
      none = np.zeros(rows.step_mask.shape, np.float32)
      return Rated(found, rows, none, told)
    if learn:
      told |= self.prm.learn(rows)
    said = self.prm.score(found, rows)
    found = [
      episode._replace(scores=scores[: len(episode.steps)])
      for episode, scores in zip(found, said.scores, strict=True)
    ]
    return Rated(found, rows, said.rewards, told)


def divergence(rows: Rows) -> float:
  """KL from the reference, nats a token (k3), of the policy that sampled."""
  estimate = losses.kl(rows.sampled_logprobs, rows.reference_logprobs)
  written = rows.written
  return float(np.where(written, estimate, 0.0).sum() / max(written.sum(), 1))

"""Rates a policy's chains: outcomes by the verifier, steps by a PRM.

    samples -> Episodes, EpisodeRows -> the reference's log-probabilities
      -> a PRM, which may first learn from the outcomes -> step scores, rewards

The RL loop rates its training chains, and `hacking_watch.py` the chains of the
held-out problems.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Sample
from prm_jax.inference.protocols import Scoring, StepScorer
from prm_jax.rl import episodes as episodes_lib
from prm_jax.rl import losses
from prm_jax.rl.episodes import Episode, EpisodeRows
from prm_jax.rl.views import Reference
from prm_jax.training.train_state import TrainState


class StepScores(NamedTuple):
  """Holds a PRM's results for the steps of B chains.

  They are NaN if its computation is not finite or it cannot read a chain.

  Attributes:
    scores: probabilities, for evaluation.
    rewards: raw rewards, to which a form of reward is applied.
    unread: critiques that say nothing; see `ScoredSteps`.
  """

  scores: np.ndarray  # [B, P] float64 in [0, 1]
  rewards: np.ndarray  # [B, P] float32
  unread: int = 0


class ChainPrm(Protocol):
  """Scores the steps of chains that a policy wrote.

  Attributes:
    name: identifies the PRM.
    state: the state that a checkpoint keeps; None if it never changes.
  """

  name: str
  state: TrainState | None

  def learn(self, rows: EpisodeRows) -> dict[str, float]:
    """Learns from the outcomes if the PRM can, and returns metrics."""
    ...

  def score(self, episodes: Sequence[Episode], rows: EpisodeRows) -> StepScores:
    """Scores every step; `rows` are the same chains as arrays."""
    ...


class TextPrm:
  """Is a ChainPrm that reads text and never changes."""

  state = None

  def __init__(self, scorer: StepScorer) -> None:
    self.name, self._scorer = scorer.name, scorer

  def learn(self, rows: EpisodeRows) -> dict[str, float]:
    """Does nothing and returns no metrics."""
    del rows
    return {}

  def score(self, episodes: Sequence[Episode], rows: EpisodeRows) -> StepScores:
    """Scores every step; chains without steps are not sent to the PRM.

    A step beyond the PRM's window, or for which a critic has no words, counts
    as wrong. Unscored, its group would teach nothing, and a policy could write
    on and on.
    """
    scores = np.zeros(rows.step_mask.shape)
    asked = [b for b, episode in enumerate(episodes) if episode.steps]
    found, unread = self._read([episodes[b] for b in asked])
    for b, known in zip(asked, found, strict=True):
      # One that cannot be read from its first step on is not wrong.
      scores[b, : len(known) or len(episodes[b].steps)] = known or np.nan
    return StepScores(scores, scores.astype(np.float32), unread)

  def _read(
    self, episodes: Sequence[Episode]
  ) -> tuple[list[tuple[float, ...]], int]:
    """Returns the scores of each chain's steps, as many as the PRM can read.

    They are NaN where critiques were lost. With them comes the number of
    critiques that say nothing.
    """
    found: list[tuple[float, ...]] = [()] * len(episodes)
    too_many: dict[int, int] = {}
    unread = 0
    asking = {i: len(each.steps) for i, each in enumerate(episodes)}
    while asking:
      answers = self._scorer.score(
        [
          Scoring(episodes[i].problem.text, episodes[i].steps[:count])
          for i, count in asking.items()
        ]
      )
      for (i, count), [scored] in zip(asking.items(), answers, strict=True):
        unread += scored.unread
        known = scored.scores[: len(scored.scores) - scored.refused]
        if scored.lost:
          known = (np.nan,) * len(known)
        if known:
          found[i] = known
        else:
          too_many[i] = count
      # The most that can be read lies between the two.
      halves = {i: (len(found[i]) + most) // 2 for i, most in too_many.items()}
      asking = {i: n for i, n in halves.items() if n > len(found[i])}
    return found, unread


class Rated(NamedTuple):
  """Holds chains with their outcomes and scores.

  Attributes:
    rows: the same chains as arrays.
    rewards: [B, P] rewards of steps, before any form of reward.
    metrics: metrics of the PRM and the distance from the reference.
  """

  episodes: list[Episode]
  rows: EpisodeRows
  rewards: np.ndarray
  metrics: dict[str, float]


class Rater:
  """Applies the verifier, the reference and the PRM, in this order.

  Args:
    fmt: the policy's format.
    prm: None gives steps neither scores nor rewards.
    reference: the policy that log-probabilities are compared with; None skips
      the comparison.
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
    """Returns the PRM's state for a checkpoint."""
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
    episodes = episodes_lib.verify(problems, groups)
    rows = episodes_lib.to_rows(episodes, self._format)
    metrics: dict[str, float] = {}
    if self._reference is not None:
      rows = self._reference.read(rows)
      metrics['kl_to_reference'] = kl_to_reference(rows)
    if self.prm is None:
      none = np.zeros(rows.step_mask.shape, np.float32)
      return Rated(episodes, rows, none, metrics)
    if learn:
      metrics |= self.prm.learn(rows)
    scored = self.prm.score(episodes, rows)
    if scored.unread:
      metrics['unread_critiques'] = float(scored.unread)
    episodes = [
      episode._replace(scores=scores[: len(episode.steps)])
      for episode, scores in zip(episodes, scored.scores, strict=True)
    ]
    return Rated(episodes, rows, scored.rewards, metrics)


def kl_to_reference(rows: EpisodeRows) -> float:
  """Estimates KL(sampling policy || reference) in nats per token (k3)."""
  estimate = losses.kl(rows.sampled_logprobs, rows.reference_logprobs)
  written = rows.written
  return float(np.where(written, estimate, 0.0).sum() / max(written.sum(), 1))

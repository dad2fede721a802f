"""Which chains are worth labels: the most convincing wrong answers first.

    sampled chains with outcomes + a trained PRM -> select -> chains to label

Lightman et al. (2023), section 4.2: of each problem's N chains to label, 80%
are the wrong-answer chains that the PRM finds most convincing, 20% the most
convincing of what remains, right or wrong. A chain convinces by its aggregated
step scores. Labels are another source's business.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.inference.protocols import sample_seed
from prm_jax.inference.score import AGGREGATES, aggregate
from prm_jax.runtime.errors import UserError

METHODS = ('active', 'random')


class ScoresSteps(Protocol):
  """What is asked of a PRM; a `Scorer` is one."""

  def score_many(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[np.ndarray]:
    """Step scores of (problem, steps) pairs, [P] each."""
    ...


@dataclasses.dataclass(frozen=True)
class ActiveConfig:
  """How many chains, and which.

  Attributes:
    budget: chains to select of each problem.
    method: 'active', or 'random': the baseline, as many chains drawn uniformly.
    aggregate: how step scores become a chain score, one of AGGREGATES.
    wrong_share: of the budget that goes to wrong answers first, rounded.
    batch_size: chains that are scored at a time.
    seed: of 'random'.
  """

  budget: int = 8
  method: str = 'active'
  aggregate: str = 'prod'
  wrong_share: float = 0.8
  batch_size: int = 1024
  seed: int = 0

  def __post_init__(self) -> None:
    for name in ('budget', 'batch_size'):
      value = getattr(self, name)
      if not isinstance(value, int) or value < 1:
        raise UserError(f'active.{name}={value!r}: expected >= 1')
    for name, known in (('method', METHODS), ('aggregate', AGGREGATES)):
      value = getattr(self, name)
      if value not in known:
        raise UserError(
          f'active.{name}={value!r}: expected one of {", ".join(known)}'
        )
    share = self.wrong_share
    if not isinstance(share, int | float) or not 0 <= share <= 1:
      raise UserError(
        f'active.wrong_share={share!r}: expected a number in [0, 1]'
      )
    if not isinstance(self.seed, int) or self.seed < 0:
      raise UserError(
        f'active.seed={self.seed!r}: expected a whole number from 0 up'
      )


class Selection(NamedTuple):
  """The selected chains, problem by problem in the order of their first chains,
  and in the order in which they were selected.

  Attributes:
    indices: into the chains that were selected from.
    scores: of the selected, of `score.aggregate`, for 'prod' sums of
      logarithms; [] for 'random'.
  """

  indices: list[int]
  scores: list[float]


class Report(NamedTuple):
  """What was selected.

  Attributes:
    problems: that the chains are of.
    chains: to select from.
    selected: of them.
    wrong: of the selected, with a wrong answer.
    short: problems with fewer chains than the budget; all theirs are selected.
  """

  problems: int
  chains: int
  selected: int
  wrong: int
  short: int


def select(
  chains: Sequence[Chain], config: ActiveConfig, scorer: ScoresSteps | None
) -> tuple[Selection, Report]:
  """Selects the chains to label.

  Args:
    chains: samples with outcomes, in any order; those with equal problems
      belong together.
    scorer: a trained PRM; 'random' asks none.

  Raises:
    UserError: no chains, one has no outcome, or 'active' without a scorer.
  """
  if not chains:
    raise UserError('no chains to select from: expected at least one')
  problems: dict[str, list[int]] = {}
  for i, chain in enumerate(chains):
    if chain.outcome is None:
      raise UserError(
        f'chain {chain.meta.get("id", i)!r} has no outcome: active selection '
        'needs to know which answers are wrong'
      )
    problems.setdefault(chain.problem, []).append(i)
  scores = None
  if config.method == 'active':
    if scorer is None:
      raise UserError("active.method='active' needs a trained PRM: name one")
    scores = chain_scores(chains, config, scorer)
  selected: list[int] = []
  for problem, members in problems.items():
    if scores is None:
      seed = sample_seed(config.seed, problem, 0)
      order = np.random.default_rng(seed).permutation(members).tolist()
      order = order[: config.budget]
    else:
      order = most_convincing(members, scores, chains, config)
    selected += order
  found = [] if scores is None else [float(scores[i]) for i in selected]
  return Selection(selected, found), Report(
    problems=len(problems),
    chains=len(chains),
    selected=len(selected),
    wrong=sum(not chains[i].outcome for i in selected),
    short=sum(len(m) < config.budget for m in problems.values()),
  )


def take(
  chains: Sequence[Chain], indices: Sequence[int], config: ActiveConfig
) -> list[Chain]:
  """The selected chains, with method and rank in `meta['active']`.

  The rank of a problem's first is 0. Scores stay out of it: they differ in the
  last digits from machine to machine, and these chains are a job's input.
  """
  ranks: Counter[str] = Counter()
  selected = []
  for i in indices:
    about = {'method': config.method, 'rank': ranks[chains[i].problem]}
    ranks[chains[i].problem] += 1
    meta = {**chains[i].meta, 'active': about}
    selected.append(dataclasses.replace(chains[i], meta=meta))
  return selected


def most_convincing(
  members: Sequence[int],
  scores: np.ndarray,  # [N]
  chains: Sequence[Chain],
  config: ActiveConfig,
) -> list[int]:
  """Indices of one problem's selected chains, of `members`; ties in order.

  Where the wrong answers do not fill their share, the rest of it goes to the
  most convincing of what remains.
  """
  by_score = sorted(members, key=lambda i: -scores[i])
  places = int(config.wrong_share * config.budget + 0.5)
  wrong = [i for i in by_score if not chains[i].outcome][:places]
  remaining = [i for i in by_score if i not in set(wrong)]
  return wrong + remaining[: config.budget - len(wrong)]


def chain_scores(
  chains: Sequence[Chain], config: ActiveConfig, scorer: ScoresSteps
) -> np.ndarray:  # [N] float32
  """The aggregated score of each chain, in batches."""
  found = []
  longest = max(len(chain.steps) for chain in chains)
  for start in range(0, len(chains), config.batch_size):
    batch = chains[start : start + config.batch_size]
    scored = scorer.score_many([(c.problem, c.steps) for c in batch])
    # One width for all batches, so that one program aggregates them.
    scores = np.zeros((len(batch), longest), np.float32)
    mask = np.zeros((len(batch), longest), bool)
    for n, steps in enumerate(scored):
      scores[n, : len(steps)] = steps
      mask[n, : len(steps)] = True
    found.append(np.asarray(aggregate(scores, mask, config.aggregate)))
  return np.concatenate(found)

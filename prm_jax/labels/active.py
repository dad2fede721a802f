"""Selects the chains that are worth labelling: convincing wrong answers first.

    sampled chains with outcomes, a PRM's step scores -> select
      -> chains to label

Follows Lightman et al. (2023), section 4.2: of the N chains to label of each
problem, 80% are the wrong-answer chains with the highest chain scores, and 20%
are the highest-scoring of the remaining chains, right or wrong. The chain score
is the aggregate of the PRM's step scores. The selected chains go on to a label
source.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, was_cut_off
from prm_jax.inference.protocols import sample_seed
from prm_jax.inference.score import AGGREGATES, aggregate
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of, within
from prm_jax.runtime.errors import UserError

METHODS = ('active', 'random')


@dataclasses.dataclass(frozen=True)
class ActiveConfig:
  """Says how many chains are selected, and by which rule.

  Attributes:
    budget: number of chains to select per problem.
    method: 'active', or the baseline 'random', which draws uniformly.
    aggregate: how step scores become a chain score, one of AGGREGATES.
    wrong_share: share of the budget reserved for wrong answers, in [0, 1]; the
      number of chains is rounded.
    batch_size: number of chains that are scored, and kept on disk, at a time.
    seed: seed of the method 'random'.
  """

  budget: Annotated[int, at_least(1)] = 8
  method: Annotated[str, one_of(*METHODS)] = 'active'
  aggregate: Annotated[str, one_of(*AGGREGATES)] = 'prod'
  wrong_share: Annotated[float, within(0, 1)] = 0.8
  batch_size: Annotated[int, at_least(1)] = 1024
  seed: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)


class Selection(NamedTuple):
  """Holds the selected chains.

  Problems come in the order in which their first chains came, and the chains of
  a problem in the order in which they were selected.

  Attributes:
    indices: positions in the sequence that was selected from.
    scores: chain scores of the selected chains as `score.aggregate` returns
      them (for 'prod' these are logarithms); [] for the method 'random'.
  """

  indices: list[int]
  scores: list[float]


class SelectionReport(NamedTuple):
  """Counts what was selected.

  Attributes:
    problems: number of distinct problems.
    chains: number of chains to select from.
    selected: number of selected chains.
    wrong: number of selected chains with a wrong answer.
    short: number of problems with fewer chains than the budget, all of which
      are selected.
  """

  problems: int
  chains: int
  selected: int
  wrong: int
  short: int


def select(
  chains: Sequence[Chain],
  config: ActiveConfig,
  step_scores: Sequence[np.ndarray] | None,
) -> tuple[Selection, SelectionReport]:
  """Selects the chains to label.

  Args:
    chains: samples with outcomes, in any order, grouped by equal problem texts.
    step_scores: the scores [P] that a PRM gives the steps of each chain; None
      is enough for the method 'random'.

  Raises:
    UserError: There are no chains, one has no outcome, the method 'active' has
      no scores, or some of them are not finite.
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
    if step_scores is None:
      raise UserError("active.method='active' needs a trained PRM: name one")
    scores = chain_scores(chains, config, step_scores)
  selected: list[int] = []
  for problem, members in problems.items():
    if scores is None:
      seed = sample_seed(config.seed, problem, 0)
      order = np.random.default_rng(seed).permutation(members).tolist()
      order = order[: config.budget]
    else:
      order = most_convincing(members, scores, chains, config)
    selected += order
  kept = [] if scores is None else [float(scores[i]) for i in selected]
  return Selection(selected, kept), SelectionReport(
    problems=len(problems),
    chains=len(chains),
    selected=len(selected),
    wrong=sum(has_wrong_answer(chains[i]) for i in selected),
    short=sum(len(m) < config.budget for m in problems.values()),
  )


def take(
  chains: Sequence[Chain], indices: Sequence[int], config: ActiveConfig
) -> list[Chain]:
  """Returns the selected chains with method and rank in `meta['active']`.

  The first chain of each problem has rank 0. Scores are not written, because
  their last digits differ between machines and these chains are the input of a
  job that must be reproducible.
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
  """Selects among the chains of one problem by score; ties keep their order.

  Repeats of a chain's steps come after all others, as they would get the same
  labels. Where there are too few wrong answers to fill their share, the places
  left go to the highest-scoring of the remaining chains.

  Args:
    members: indices of the problem's chains.

  Returns:
    The selected members, wrong answers first.
  """
  firsts = {chains[i].steps: i for i in reversed(members)}
  distinct = set(firsts.values())
  by_score = sorted(members, key=lambda i: (i not in distinct, -scores[i]))
  places = int(config.wrong_share * config.budget + 0.5)
  wrong = [i for i in by_score if i in distinct and has_wrong_answer(chains[i])]
  wrong = wrong[:places]
  taken = set(wrong)
  remaining = [i for i in by_score if i not in taken]
  return wrong + remaining[: config.budget - len(wrong)]


def has_wrong_answer(chain: Chain) -> bool:
  """Says whether a chain with an outcome ends with a wrong answer.

  A chain that a limit cut off has none, although its outcome is False.
  """
  return not (chain.outcome or was_cut_off(chain))


def chain_scores(
  chains: Sequence[Chain],
  config: ActiveConfig,
  step_scores: Sequence[np.ndarray],  # [P] of each chain
) -> np.ndarray:  # [N] float32
  """Aggregates the step scores of each chain.

  Raises:
    UserError: the score of a chain is not finite.
  """
  longest = max(len(chain.steps) for chain in chains)
  scores = np.zeros((len(chains), longest), np.float32)
  mask = np.zeros((len(chains), longest), bool)
  for n, steps in enumerate(step_scores):
    scores[n, : len(steps)] = steps
    mask[n, : len(steps)] = True
  found = np.asarray(aggregate(scores, mask, config.aggregate))
  if len(unknown := np.flatnonzero(np.isnan(found))):
    first = chains[unknown[0]].meta.get('id', int(unknown[0]))
    raise UserError(
      f'{len(unknown):,} of {len(chains):,} chains that were scored together '
      f'have scores that are not finite, the first of them {first!r}: the '
      "PRM's arithmetic overflows; score in float32, or leave these chains out"
    )
  return found

"""Evaluates a PRM: a scorer and a data set to everything in results.json.

`enough_data.py` checks the data before, `dev_metrics.py` measures between the
checkpoints of training, and `shown_chains.py` chooses what the report shows.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, first_error
from prm_jax.data.datasets import Dataset
from prm_jax.data.encoding import DoesNotFit
from prm_jax.data.targets import TargetConfig
from prm_jax.evals import suite
from prm_jax.evals.shown_chains import chains_to_show
from prm_jax.inference.score import AGGREGATES, aggregate
from prm_jax.inference.scorer import Scorer
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, each, from_to_below, one_of
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat

Log = Callable[[str], None]
Scoring = Callable[[Sequence[Chain]], list[np.ndarray]]
# Samples of a problem from which reading its prompt once beats packing them
# with other problems' (fewer would also compile programs for odd sizes).
WORTH_SHARING = 8


@dataclasses.dataclass(frozen=True)
class PrmEvaluation:
  """Says how a reward model is evaluated.

  Attributes:
    best_of_n: the evaluation whose candidates it chooses from; '' for none.
    ns: numbers of candidates, ascending.
    aggregates: chain scores to compare.
    aggregate: the one of them that the report leads with.
    resamples: bootstrap samples of every interval.
    wrong_share: your estimate of the share of chains with an error. In each
      evaluation the threshold then flags a step in that share of the chains,
      without using labels. At 0 thresholds are chosen on dev chains.
    max_dev_problems: dev problems that are read at every checkpoint; 0 reads
      all. A trained PRM's threshold is chosen on all dev problems; with
      frozen.heads, and in the evaluation job, on these only.
    max_problems: problems of each evaluation, evenly spaced; 0 takes all.
    shown_chains: chains of each evaluation that the report shows.
  """

  best_of_n: str = 'arithmetic'
  ns: Annotated[tuple[int, ...], each(at_least(1))] = (1, 2, 4, 8, 16, 32, 64)
  aggregates: Annotated[tuple[str, ...], each(one_of(*AGGREGATES))] = (
    *('min', 'prod', 'mean', 'last'),
  )
  aggregate: str = 'min'
  resamples: Annotated[int, at_least(1)] = 2000
  wrong_share: Annotated[float, from_to_below(0, 1)] = 0.0
  max_dev_problems: Annotated[int, at_least(0)] = 0
  max_problems: Annotated[int, at_least(0)] = 0
  shown_chains: Annotated[int, at_least(0)] = 12

  def __post_init__(self) -> None:
    checks.check(self)
    checks.check_ascending('ns', self.ns)
    # The headline is one of the curves, so that the vote can be weighted by it.
    if self.aggregate not in self.aggregates:
      checks.fail(
        'aggregate',
        self.aggregate,
        f'expected one of aggregates: {", ".join(self.aggregates)}',
      )


def headline_aggregate(wanted: PrmEvaluation, targets: TargetConfig) -> str:
  """Returns the chain score that leads; an outcome model has only its last."""
  return wanted.aggregate if targets.supervision == 'process' else 'last'


def score_chains(scorer: Scorer, chains: Sequence[Chain]) -> list[np.ndarray]:
  """Returns each chain's step scores [R], for the R steps that were read."""
  fitting = []
  for chain in chains:
    try:
      fits = len(scorer.format.encode(chain.problem, chain.steps).step_ends)
    except DoesNotFit:
      fits = 0
    fitting.append(fits)

  groups: dict[str, list[int]] = {}
  for i, chain in enumerate(chains):
    if fitting[i]:
      groups.setdefault(chain.problem, []).append(i)
  scores = [np.zeros(0, np.float32) for _ in chains]
  alone = [i for g in groups.values() if len(g) < WORTH_SHARING for i in g]
  pairs = [(chains[i].problem, chains[i].steps[: fitting[i]]) for i in alone]
  for i, read in zip(alone, scorer.score_many(pairs), strict=True):
    scores[i] = read
  scoring = Heartbeat('scoring problems', len(groups))
  for problem, members in scoring.over(groups.items()):
    if len(members) < WORTH_SHARING:
      continue
    _, _, read = scorer.best_of_n(
      problem, [chains[i].steps[: fitting[i]] for i in members]
    )
    for i, values in zip(members, read, strict=True):
      scores[i] = values
  return scores


def chain_scores(
  chains: Sequence[Chain], scores: Sequence[np.ndarray], how: str
) -> np.ndarray:
  """Returns chain scores [M] of ragged step scores."""
  found = suite.pad_scores(chains, scores)
  aggregated = aggregate(found.values.astype(np.float32), found.mask, how)
  return np.where(found.whole, aggregated, -np.inf)


def of_some_problems(chains: Sequence[Chain], count: int) -> list[int]:
  """Returns indices of the chains of `count` evenly spaced problems.

  Args:
    count: number of problems; 0: all.
  """
  problems = list(dict.fromkeys(chain.problem for chain in chains))
  if not 0 < count < len(problems):
    return [*range(len(chains))]
  kept = {problems[i * len(problems) // count] for i in range(count)}
  return [i for i, chain in enumerate(chains) if chain.problem in kept]


def some_problems(chains: Sequence[Chain], count: int) -> Sequence[Chain]:
  """Returns the chains of `count` evenly spaced problems; 0 returns all."""
  chosen = of_some_problems(chains, count)
  whole = len(chosen) == len(chains)
  return chains if whole else [chains[i] for i in chosen]


def is_prmbench(chains: Sequence[Chain]) -> bool:
  """Says whether chains are PRMBench's; its class files have only errors."""
  return bool(chains) and chains[0].meta.get('dataset') == 'prmbench'


class Read(NamedTuple):
  """Holds chains, and the scores of each one's steps that were read."""

  chains: list[Chain]
  scores: list[np.ndarray]

  def labelled(self) -> 'Read':
    """Returns those that have step labels."""
    kept = [i for i, chain in enumerate(self.chains) if chain.labels]
    return Read([self.chains[i] for i in kept], [self.scores[i] for i in kept])


class Evaluated(NamedTuple):
  """Holds what an evaluation found.

  Attributes:
    results: the sections of results.json.
    threshold: the value below which a step is flagged, and its source.
    shown: chains that the report shows.
    step_scores: of every chain that was scored, its `set`, its index there
      (`chain`) and the `scores` of the steps that were read. Dev is a set, too.
  """

  results: dict[str, Any]
  threshold: dict[str, Any]
  shown: list[dict[str, Any]]
  step_scores: list[dict[str, Any]]


def _vote_weights(
  chains: Sequence[Chain],
  scores: np.ndarray,  # [N]; -inf: the chain was not read whole
  logarithmic: bool,
) -> np.ndarray:  # [N] float64, 0 or more
  """Returns the weights of the chains in a vote among those of their problem.

  Scaling all weights of a problem leaves its vote as it is. So logarithms are
  taken relative to the greatest of the problem: a product has no weight only
  where it is e^-745 of that.
  """
  if not logarithmic:
    return np.maximum(scores, 0.0)
  greatest: dict[str, float] = {}
  for chain, score in zip(chains, scores, strict=True):
    before = greatest.get(chain.problem, -np.inf)
    greatest[chain.problem] = max(before, float(score))
  most = np.array([greatest[chain.problem] for chain in chains])
  read = np.isfinite(scores)
  return np.exp(np.where(read, scores - np.where(read, most, 0.0), -np.inf))


def evaluate(
  wanted: PrmEvaluation,
  targets: TargetConfig,
  dataset: Dataset,
  prm: Scoring,
  orm: Scoring | None,
  seed: int,
  log: Log,
) -> Evaluated:
  """Scores dev and all evaluations, and judges the scores.

  Args:
    prm, orm: score chains, as `score_chains` does.
  """
  process = targets.supervision == 'process'
  how = headline_aggregate(wanted, targets)
  results: dict[str, Any] = {}
  chosen, threshold = None, {'value': 0.5, 'source': 'fixed'}
  shown, step_scores = [], []

  def read(name: str, every_chain: Sequence[Chain], problems: int) -> Read:
    """Scores a set, and keeps the scores."""
    indices = of_some_problems(every_chain, problems)
    chains = [every_chain[i] for i in indices]
    log(f'scoring {len(chains):,} chains of {name}')
    scores = prm(chains)
    _check_finite(name, chains, scores)
    step_scores.extend(
      {'set': name, 'chain': i, 'scores': own.tolist()}
      for i, own in zip(indices, scores, strict=True)
    )
    if unread := suite.unread_section(chains, scores):
      results.setdefault('unread', {})[name] = unread
    return Read(chains, scores)

  if process:
    dev = read('dev', dataset.dev, wanted.max_dev_problems).labelled()
    chosen = suite.choose_on_dev(*dev)
    source = f'best F1 on {len(dev.chains):,} dev chains'
    if share := wanted.wrong_share:
      chosen = suite.flag_share(chosen, *dev, share)
      source = f"each set's own, flagging {share:.0%} of its chains"
    threshold = {'value': chosen.threshold, 'source': source}
  for name, every_chain in dataset.evaluations.items():
    if not every_chain:
      log(f'{name} has no chains, and is left out')
      continue
    chains, scores = own = read(name, every_chain, wanted.max_problems)
    headline = chain_scores(chains, scores, how)
    if name == wanted.best_of_n:
      methods = {'orm': headline}
      if process:
        methods = {
          f'prm_{how}': chain_scores(chains, scores, how)
          for how in wanted.aggregates
        }
      if orm is not None:
        methods['orm'] = chain_scores(chains, orm(chains), 'last')
      weights = _vote_weights(chains, headline, how == 'prod')
      results |= _choose_best(wanted, chains, methods, weights, seed, log)
    limits = chosen
    if chosen:
      limits, found = _judge_set(wanted, name, own, chosen, seed, log)
      for section, of_set in found.items():
        results.setdefault(section, {})[name] = of_set
    shown += _with_thresholds(wanted, own, headline, limits)
  return Evaluated(results, threshold, shown, step_scores)


def _check_finite(
  name: str, chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> None:
  """Raises UserError, with its problem, for a chain with a score of NaN."""
  for chain, own in zip(chains, scores, strict=True):
    if not np.isfinite(own).all():
      raise UserError(
        f'a chain of {name} for {chain.problem[:60]!r} has scores that are not '
        'finite: the PRM overflows; score in float32, or leave the chain out'
      )


def _choose_best(
  wanted: PrmEvaluation,
  chains: Sequence[Chain],
  methods: Mapping[str, np.ndarray],  # of [M] chain scores
  weights: np.ndarray,  # [M]
  seed: int,
  log: Log,
) -> dict[str, Any]:
  """Returns the sections about choosing among the chains of a problem."""
  samples = len(suite.groups_of_equal_size(chains)[0])
  if samples < max(wanted.ns):
    log(f'best of N: N is at most {samples}, the fewest samples of a problem')
  return {
    'best_of_n': suite.best_of_n_section(
      chains, methods, weights, wanted.ns, seed, wanted.resamples
    ),
    'ranking': suite.chain_ranking_section(
      chains, methods, seed, wanted.resamples
    ),
  }


def _with_thresholds(
  wanted: PrmEvaluation,
  read: Read,
  headline: np.ndarray,  # [M]
  chosen: suite.ChosenOnDev | None,
) -> list[dict[str, Any]]:
  """Returns the chains to show; an outcome model's only have the chain's score.

  It is the last step's, and a chain that was not read whole has none.
  They have thresholds of their own where these are not dev's.
  """
  scores, own = read.scores, {}
  if not chosen:
    own = {'threshold': 0.0}  # no step is flagged
    scores = [
      np.where(np.arange(len(row)) == len(chain.steps) - 1, row, np.nan)
      for chain, row in zip(read.chains, scores, strict=True)
    ]
  elif wanted.wrong_share:
    own = {'threshold': chosen.threshold}
  found = chains_to_show(read.chains, scores, headline, wanted.shown_chains)
  return [each | own for each in found]


def _judge_set(
  wanted: PrmEvaluation,
  name: str,
  own: Read,
  chosen: suite.ChosenOnDev,
  seed: int,
  log: Log,
) -> tuple[suite.ChosenOnDev, dict[str, Any]]:
  """Judges the steps of a set by their labels, if it has some.

  Returns:
    The set's thresholds, which may be dev's, and its sections by name.
  """
  labelled = own.labelled()
  judged = labelled if labelled.chains else own
  if not any(map(len, judged.scores)):
    log(f'{name}: no step was read, so steps are not judged')
    return chosen, {}
  if wanted.wrong_share:
    chosen = suite.flag_share(chosen, *judged, wanted.wrong_share)
  if not labelled.chains:
    return chosen, {}
  if without := len(own.chains) - len(labelled.chains):
    log(f'{name}: {without:,} chains without step labels are left out')
  return chosen, _judge_steps(wanted, labelled, chosen, seed)


def _judge_steps(
  wanted: PrmEvaluation, read: Read, chosen: suite.ChosenOnDev, seed: int
) -> dict[str, Any]:
  """Returns the sections about the steps of one set: name -> section.

  Args:
    read: chains with step labels. First errors are looked for only if some have
      an error and some have none.
  """
  found = {}
  wrong = sum(first_error(chain.labels) >= 0 for chain in read.chains)
  if 0 < wrong < len(read.chains):
    found['localisation'] = suite.localisation_section(
      *read, chosen, seed, wanted.resamples
    )
    headline = chain_scores(*read, wanted.aggregate)
    found['diagnostics'] = suite.diagnostics_section(
      *read, headline, chosen.threshold
    )
  found['calibration'] = suite.calibration_section(
    *read, chosen.rules, seed, wanted.resamples
  )
  if is_prmbench(read.chains):
    found['prmbench'] = suite.prmbench_section(*read)
  return found

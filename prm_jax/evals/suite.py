"""Computes the sections of results.json from chains and their step scores.

It turns chains into the padded arrays that the metrics take. `scores` holds one
array [R] per chain, for the R steps that were read: all of its steps, or fewer
if the model's window cut it. Unread steps have no score and enter no metric.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, first_error, source_problem
from prm_jax.evals import (
  best_of_n,
  calibration,
  diagnostics,
  localisation,
  nulls,
  prmbench,
  ranking,
  steps,
  trivial,
)
from prm_jax.evals.policy import answer_ids
from prm_jax.evals.ranking import Ranked
from prm_jax.evals.trivial import Rule

NULL = 'random_per_text'


class PaddedScores(NamedTuple):
  """Holds step scores as padded arrays.

  Attributes:
    values: [M, P] float64, 0 where there is no score.
    mask: [M, P] bool, True at every step that exists.
    read: [M] number of steps of each chain that have a score.
  """

  values: np.ndarray
  mask: np.ndarray
  read: np.ndarray

  @property
  def whole(self) -> np.ndarray:
    """Returns [M] bool, True for chains of which every step was read."""
    return self.read == self.mask.sum(1)


def pad_scores(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> PaddedScores:
  """Pads the scores of chains to arrays over all of their steps."""
  _, mask = steps.pad([[0.0] * len(chain.steps) for chain in chains])
  read = np.array([len(row) for row in scores], np.int64)
  values = np.zeros(mask.shape)
  values[steps.scored_mask(mask, read)] = np.concatenate(scores)
  return PaddedScores(values, mask, read)


class ChosenOnDev(NamedTuple):
  """Holds what is chosen on dev chains and used unchanged on others.

  Attributes:
    threshold: steps that score below it are wrong.
    position: step index of the position baseline.
    rules: rules of `trivial.FEATURES`; those without one are left out.
  """

  threshold: float
  position: int
  rules: Mapping[str, Rule]


def problem_ids(chains: Sequence[Chain]) -> np.ndarray:  # [M]
  """Numbers the problems that those of chains come from."""
  ids: dict[str, int] = {}
  return np.array([ids.setdefault(source_problem(c), len(ids)) for c in chains])


def unread_section(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> dict[str, int]:
  """Counts the steps that the window cut off, and the chains that have any.

  The result is empty if every step was read.
  """
  of_steps = sum(len(chain.steps) for chain in chains)
  cut = sum(
    len(row) < len(chain.steps)
    for chain, row in zip(chains, scores, strict=True)
  )
  if not cut:
    return {}
  return {
    'steps': of_steps - sum(map(len, scores)),
    'of_steps': of_steps,
    'chains': cut,
    'of_chains': len(chains),
  }


def label_arrays(
  chains: Sequence[Chain],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns labels [M, P], the mask of known ones [M, P], first errors [M]."""
  values, exists = steps.pad(
    [
      [label.value for label in chain.labels] or [None] * len(chain.steps)
      for chain in chains
    ]
  )
  first = np.array([first_error(chain.labels) for chain in chains])
  return np.nan_to_num(values), exists & ~np.isnan(values), first


def judged_steps(
  chains: Sequence[Chain], arrays: PaddedScores
) -> tuple[np.ndarray, np.ndarray]:  # [M, P] each
  """Returns labels, and which steps are judged one by one.

  These are the steps with a label that were read, up to the first error.
  """
  labels, known, _ = label_arrays(chains)
  known &= steps.scored_mask(arrays.mask, arrays.read)
  known &= steps.until_first_error(labels, known)
  return labels, known


def rank_steps(chains: Sequence[Chain], scores: Sequence[np.ndarray]) -> Ranked:
  """Returns the steps that are judged one by one, with their problems."""
  arrays = pad_scores(chains, scores)
  labels, known = judged_steps(chains, arrays)
  problems = np.repeat(problem_ids(chains)[:, None], known.shape[1], 1)
  return Ranked(arrays.values[known], labels[known] >= 0.5, problems[known])


def groups_of_equal_size(chains: Sequence[Chain]) -> list[list[int]]:
  """Returns the indices of the samples of each problem, equally many of each.

  One curve needs the same number of samples of all problems. The smallest group
  with at least two samples sets it. Larger groups keep their first samples, and
  problems with one sample are left out.
  """
  groups = collections.defaultdict(list)
  for i, chain in enumerate(chains):
    if chain.outcome is not None:
      groups[chain.problem].append(i)
  sizes = [len(group) for group in groups.values() if len(group) > 1]
  samples = min(sizes, default=0)
  return [g[:samples] for g in groups.values() if len(g) >= samples > 0]


def best_of_n_section(
  chains: Sequence[Chain],
  chain_scores: Mapping[str, np.ndarray],
  vote_weights: np.ndarray,
  ns: Sequence[int],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Computes accuracy by n of every way to choose, with bootstrap intervals.

  Args:
    chains: chains with outcomes, several per problem.
    chain_scores: method -> scores [M]; the highest is chosen; -inf for
      a chain that was not read whole.
    vote_weights: [M] >= 0, weight of a chain's vote in `weighted_vote`.
    ns: sizes n; those above the number of samples are left out.
    seed: seed of votes and bootstrap.
  """
  groups = np.array(groups_of_equal_size(chains))  # [Q, N]
  correct = np.array([bool(chain.outcome) for chain in chains])[groups]
  answers = np.array(
    [
      answer_ids(
        chains[group[0]].problem, [chains[i].answer for i in group], right
      )
      for group, right in zip(groups, correct, strict=True)
    ]
  )
  ns = [n for n in ns if n <= groups.shape[1]]
  methods = {
    name: best_of_n.best_of_n_curve(scores[groups], correct, ns)
    for name, scores in chain_scores.items()
  }
  methods['majority'] = best_of_n.majority_curve(correct, answers, ns, seed)
  methods['weighted_vote'] = best_of_n.weighted_vote_curve(
    vote_weights[groups], correct, answers, ns, seed
  )
  methods['random'] = best_of_n.random_curve(correct, ns)
  methods[NULL] = nulls.random_per_text_curve(
    _text_ids(chains)[groups], correct, ns
  )
  methods['oracle'] = best_of_n.oracle_curve(correct, ns)
  return best_of_n.curves(methods, ns, seed, resamples, NULL)


def _text_ids(chains: Sequence[Chain]) -> np.ndarray:  # [M]
  """Numbers the chains' texts: problem, steps and answer."""
  ids: dict[tuple, int] = {}
  return np.array(
    [ids.setdefault((c.problem, c.steps, c.answer), len(ids)) for c in chains]
  )


def chain_ranking_section(
  chains: Sequence[Chain],
  chain_scores: Mapping[str, np.ndarray],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Computes how well chain scores rank right chains above wrong ones.

  All methods rank the same chains, those that every one of them read whole.

  Args:
    chains: chains with outcomes, several per problem.
    chain_scores: method -> scores [M]; -inf for a chain not read whole.

  Returns:
    method -> see `ranking.ranking`; `distinct_texts`, the mean number of
    different chains of a problem; `left_out`, the number of chains with an
    outcome that some method did not read whole.
  """
  known = np.array([chain.outcome is not None for chain in chains], bool)
  read = np.isfinite([*chain_scores.values()]).all(0)
  ranked = known & read
  right = np.array([bool(chain.outcome) for chain in chains])[ranked]
  problems = problem_ids(chains)
  texts = len(set(_text_ids(chains).tolist()))
  found: dict[str, Any] = {
    name: ranking.ranking(
      Ranked(values[ranked], right, problems[ranked]), seed, resamples
    )
    for name, values in chain_scores.items()
  }
  return found | {
    'distinct_texts': texts / len(set(problems.tolist())),
    'left_out': int((known & ~read).sum()),
  }


def localisation_section(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  chosen: ChosenOnDev,
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Computes ProcessBench's first-error F1, with baselines that need no model.

  Baselines read every step, also those that the model's window cut off.
  """
  values, mask, read = pad_scores(chains, scores)
  first = np.array([first_error(chain.labels) for chain in chains])
  threshold = chosen.threshold
  predicted = localisation.predict_first_error(values, mask, threshold, read)
  result = localisation.at_threshold(values, mask, first, threshold, read)
  _, low, high = localisation.f1_ci(
    predicted, first, problem_ids(chains), seed, resamples
  )
  best, upper = localisation.choose_threshold(values, mask, first, read)
  baselines = localisation.baselines(mask, first, chosen.position)
  for name, (sign, limit) in chosen.rules.items():
    feature = sign * trivial.scores(chains, name)
    baselines[name] = localisation.at_threshold(feature, mask, first, limit)
  return result | {
    'ci95': [low, high],
    'baselines': baselines | {'noise': nulls.noise(mask, first)},
    'upper_bound': {'threshold': best, 'f1': upper},
    'by_position': localisation.confusion_by_position(
      values, mask, first, threshold, read
    ),
  }


def calibration_section(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  rules: Mapping[str, Rule],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Computes the calibration of steps up to and including the first error.

  Returns:
    See `calibration.calibration`; also `ranking` over the same steps, and
    `baselines`, the `ranking` of features of the text.
  """
  arrays, ranked = pad_scores(chains, scores), rank_steps(chains, scores)
  labels, known = judged_steps(chains, arrays)

  def by(rule: Rule, feature: str) -> Ranked:
    values = rule.sign * trivial.scores(chains, feature)
    return ranked._replace(scores=values[known])

  return calibration.calibration(arrays.values, labels, known) | {
    'ranking': ranking.ranking(ranked, seed, resamples),
    'baselines': {
      name: ranking.ranking(by(rule, name), seed, resamples)
      for name, rule in rules.items()
    },
  }


def prmbench_section(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> dict[str, Any]:
  """Computes PRMBench's numbers by error class, `meta['classification']`."""
  values, mask, read = pad_scores(chains, scores)
  labels, known, _ = label_arrays(chains)
  known &= steps.scored_mask(mask, read)
  classes = [chain.meta.get('classification', '') for chain in chains]
  return prmbench.prmbench(values, labels, known, classes)


def diagnostics_section(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  chain_scores: np.ndarray,
  threshold: float,
) -> dict[str, Any]:
  """Computes the warning signs that accuracy alone does not show.

  Only chains that were read whole count: the lowest score of other chains, and
  whether they have a flagged step, is unknown.
  """
  arrays = pad_scores(chains, scores)
  chains = [c for c, whole in zip(chains, arrays.whole, strict=True) if whole]
  values, mask = arrays.values[arrays.whole], arrays.mask[arrays.whole]
  chain_scores = chain_scores[arrays.whole]
  first = np.array([first_error(chain.labels) for chain in chains], np.int64)
  result: dict[str, Any] = {
    'minimum_at_last': diagnostics.minimum_at_last(values, mask),
    'length_correlation': diagnostics.length_correlation(chain_scores, mask),
  }
  checked = np.array([chain.outcome is not None for chain in chains], bool)
  if checked.any():
    outcomes = np.array([bool(chain.outcome) for chain in chains])[checked]
    result['right_answer_wrong_process'] = diagnostics.wrong_process_found(
      values[checked], mask[checked], first[checked], outcomes, threshold
    )
  return result


def choose_on_dev(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> ChosenOnDev:
  """Chooses threshold, position and rules with the best F1 on dev chains."""
  values, mask, read = pad_scores(chains, scores)
  labels, known, first = label_arrays(chains)
  known &= steps.until_first_error(labels, known)
  threshold, _ = localisation.choose_threshold(values, mask, first, read)
  position, _ = localisation.choose_position(mask, first)
  rules = trivial.choose_rules(chains, labels, known, first)
  return ChosenOnDev(float(threshold), int(position), rules)


def flag_share(
  chosen: ChosenOnDev,
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  share: float,
) -> ChosenOnDev:
  """Replaces all thresholds by those that flag a share of these chains.

  The labels of the chains are not used: see `localisation.threshold_of_share`.
  """
  values, mask, read = pad_scores(chains, scores)
  return chosen._replace(
    threshold=localisation.threshold_of_share(values, mask, share, read),
    rules={
      name: Rule(
        sign,
        localisation.threshold_of_share(
          sign * trivial.scores(chains, name), mask, share
        ),
      )
      for name, (sign, _) in chosen.rules.items()
    },
  )

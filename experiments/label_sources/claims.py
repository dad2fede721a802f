"""The claims of label_sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.findings import (
  Claim,
  Finder,
  Found,
  baseline,
  judge,
  lead,
)
from experiments.label_sources.run import ACTIVE
from experiments.tables import mean, percent
from prm_jax.evals.suite import NULL

EXACT, SOFT = 'equal chains: verifier', 'equal chains: rollouts, soft'


def of_seeds(
  document: Mapping[str, Any], read: Callable[[Mapping[str, Any]], float]
) -> list[float]:
  """Returns a number of the runs of each seed."""
  return [read(runs) for runs in document['runs'].values()]


def chosen(document: Mapping[str, Any], run: str, method: str):
  """Returns best of 64 of each seed; None where a method was not measured."""
  if any(method not in x[run]['best_of_64'] for x in document['runs'].values()):
    return None
  return of_seeds(document, lambda x: x[run]['best_of_64'][method]['mean'])


def null_of(document: Mapping[str, Any], run: str) -> str:
  return baseline('random per text', chosen(document, run, NULL))


def hard_beats_soft(document: Mapping[str, Any]) -> Found:
  """Compares F1 by two kinds of rollout labels."""
  hard, soft = (
    of_seeds(
      document,
      lambda x, kind=kind: x[f'equal chains: rollouts, {kind}']['localisation'][
        'f1'
      ],
    )
    for kind in ('threshold 0', 'soft')
  )
  noise = of_seeds(
    document,
    lambda x: x[SOFT]['localisation']['baselines'].get('noise', {}).get('f1'),
  )
  return judge(
    [lead(hard, soft)], baseline('noise', None if None in noise else noise)
  )


def consensus_is_cleaner(document: Mapping[str, Any]) -> Found:
  """Compares labels on which two sources agree with the better source."""
  both, one, other = (
    [labels[name]['accuracy'] for labels in document['labels'].values()]
    for name in (
      'consensus',
      'rollouts, threshold 0',
      'rollouts by another completer, threshold 0',
    )
  )
  better = [*map(max, one, other)]
  return judge([lead(both, better)], baseline('the better source', better))


def active_selection(document: Mapping[str, Any]) -> Found:
  """Compares active with random selection, the mean of all budgets."""
  active, random = (
    of_seeds(
      document,
      lambda x, method=method: mean(
        [
          x[f'{method}: {budget}']['best_of_64']['prm_min']['mean']
          for budget in ACTIVE['budgets']
        ]
      ),
    )
    for method in ('active', 'random')
  )
  return judge([lead(active, random)], baseline('random chains', random))


def best_aggregate(
  run: str, best: Sequence[str], others: Sequence[str]
) -> Finder:
  """Makes a finder of whether some aggregates of step scores choose better.

  Args:
    run: the PRM, by what it was trained on.
    best: aggregates of which the worst has to be above all others.
    others: the other aggregates.
  """

  def find(document: Mapping[str, Any]) -> Found:
    def of(names: Sequence[str]) -> list[list[float]]:
      return [chosen(document, run, f'prm_{name}') for name in names]

    ours = [min(seed) for seed in zip(*of(best), strict=True)]
    theirs = [max(seed) for seed in zip(*of(others), strict=True)]
    names = (*best, *others)
    sides = ', '.join(
      f'{percent(mean(seeds))} by {name}'
      for name, seeds in zip(names, of(names), strict=True)
    )
    case = lead(ours, theirs)._replace(sides=sides)
    return judge([case], null_of(document, run))

  return find


CLAIMS = (
  Claim(
    'Hard labels at threshold 0 beat soft labels (first-error F1)',
    'the same order, after filtering (Zhang et al., 2025)',
    hard_beats_soft,
  ),
  Claim(
    'Labels on which two sources agree are right more often than those of the '
    'better source (% of chains)',
    'rollouts and a judge make a better PRM (Zhang et al., 2025)',
    consensus_is_cleaner,
  ),
  Claim(
    'Labels of the most convincing wrong chains are worth more than those of '
    'random chains (best of 64, mean of three budgets)',
    '2.6 times the chains (Lightman et al., 2023)',
    active_selection,
  ),
  Claim(
    "A PRM trained on soft rollout labels chooses best by the last step's "
    'score (best of 64)',
    'the last step is better than product and minimum (Zhang et al., 2025)',
    best_aggregate(SOFT, ('last',), ('min', 'prod')),
  ),
  Claim(
    'A PRM trained on exact labels chooses best by the lowest score or the '
    'product (best of 64)',
    'the same, for labels of people and judges (Zhang et al., 2025)',
    best_aggregate(EXACT, ('min', 'prod'), ('last',)),
  ),
)

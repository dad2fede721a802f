"""The claims of label_sources."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.findings import Claim, Finder, Found, compare_seeds
from experiments.label_sources.run import ACTIVE
from experiments.label_sources.tables import efficiency
from experiments.tables import mean, percent


def hard_beats_soft(document: Mapping[str, Any]) -> Found:
  """Compares F1 by two kinds of rollout labels; intervals must not overlap."""
  hard, soft = (
    [
      run[f'equal chains: rollouts, {kind}']['localisation']
      for run in document['runs'].values()
    ]
    for kind in ('threshold 0', 'soft')
  )
  found = compare_seeds([x['f1'] for x in hard], [x['f1'] for x in soft])
  return found._replace(
    holds=[a['ci95'][0] > b['ci95'][1] for a, b in zip(hard, soft, strict=True)]
  )


def consensus_is_cleaner(document: Mapping[str, Any]) -> Found:
  """Compares labels on which two sources agree with those of each source."""
  both, one, other = (
    [labels[name]['accuracy'] for labels in document['labels'].values()]
    for name in (
      'consensus',
      'rollouts, threshold 0',
      'rollouts by another completer, threshold 0',
    )
  )
  return Found(
    f'{percent(mean(both))} to {percent(mean(one))} and {percent(mean(other))}',
    f'each seed: {", ".join(map(percent, both))}',
    [a > max(b, c) for a, b, c in zip(both, one, other, strict=True)],
  )


def active_selection(document: Mapping[str, Any]) -> Found:
  """Finds whether active selection needs fewer chains, in each seed."""
  found = [
    efficiency(runs, ACTIVE['budgets'], 'min')
    for runs in document['runs'].values()
  ]
  known = [x for x in found if x is not None]
  return Found(
    f'{mean(known):.2f}x',
    'each seed: '
    + ', '.join('none' if x is None else f'{x:.2f}' for x in found),
    [x is not None and x > 1 for x in found],
  )


def best_aggregate(
  labels: str, best: Sequence[str], others: Sequence[str]
) -> Finder:
  """Makes a finder of whether some aggregates of step scores choose better.

  Args:
    labels: what the PRM was trained on.
    best: aggregates that have to be above all others, in each seed.
    others: the other aggregates.
  """

  def find(document: Mapping[str, Any]) -> Found:
    runs = [
      run[f'equal chains: {labels}']['best_of_64']
      for run in document['runs'].values()
    ]
    means = {
      how: [run[f'prm_{how}']['mean'] for run in runs]
      for how in (*best, *others)
    }
    return Found(
      '; '.join(
        f'{percent(mean(seeds))} ({how})' for how, seeds in means.items()
      ),
      f'each seed, {best[0]}: {", ".join(map(percent, means[best[0]]))}',
      [
        min(means[how][k] for how in best)
        > max(means[how][k] for how in others)
        for k in range(len(runs))
      ],
    )

  return find


CLAIMS = (
  Claim(
    'Hard labels at threshold 0 beat soft labels (first-error F1)',
    'the same order, after filtering (Zhang et al., 2025)',
    hard_beats_soft,
  ),
  Claim(
    'Labels on which two sources agree are right more often (% of chains)',
    'rollouts and a judge make a better PRM (Zhang et al., 2025)',
    consensus_is_cleaner,
  ),
  Claim(
    'Labels of the most convincing wrong chains are worth more than those of '
    'random chains (best of 64)',
    '2.6x (Lightman et al., 2023)',
    active_selection,
  ),
  Claim(
    "A PRM trained on soft rollout labels chooses best by the last step's "
    'score (best of 64)',
    'the last step is better than product and minimum (Zhang et al., 2025)',
    best_aggregate('rollouts, soft', ('last',), ('min', 'prod')),
  ),
  Claim(
    'A PRM trained on exact labels chooses best by the lowest score or the '
    'product (best of 64)',
    'the same, for labels of people and judges (Zhang et al., 2025)',
    best_aggregate('verifier', ('min', 'prod'), ('last',)),
  ),
)

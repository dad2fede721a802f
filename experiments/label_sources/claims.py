"""The claims of label_sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.ablations import intervals, values
from experiments.findings import (
  Claim,
  Finder,
  Found,
  baseline,
  judge,
  lead,
)
from experiments.label_sources.run import ACTIVE
from experiments.label_sources.soft import (
  CHOICE,
  ORM,
  UPDATES,
  WITHIN,
)
from experiments.tables import mean, percent
from prm_jax.evals.suite import NULL

EXACT, SOFT = 'equal chains: verifier', 'equal chains: rollouts, soft'


def of_seeds(
  document: Mapping[str, Any], read: Callable[[Mapping[str, Any]], float]
) -> list[float]:
  """Returns a number of the runs of each seed."""
  return [read(runs) for runs in document['runs'].values()]


def chosen(document: Mapping[str, Any], run: str, method: str) -> list[float]:
  """Returns best of 64 of each seed."""
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
    lambda x: x[SOFT]['localisation']['baselines']['noise']['f1'],
  )
  return judge([lead(hard, soft)], baseline('noise', noise))


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
    others: those that they are compared with.
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


# The last step chooses as an ORM does if it is less than this from it.
MARGIN = 0.05
AFTER_UPDATES = [f'{n:,} updates' for n in UPDATES]


def soft_row(updates: str, score: str, after: str = 'kept') -> str:
  """Names a row of soft.json."""
  return f'{updates}: soft, later steps {after}, {score}'


def last_is_best(after: str) -> Finder:
  """Makes a finder of whether the last step of a soft PRM chooses best.

  Args:
    after: whether the PRM learned from steps after the first error.
  """

  def find(document: Mapping[str, Any]) -> Found:
    cases = []
    for n in AFTER_UPDATES:
      last, *others = (
        values(document, soft_row(n, score, after), CHOICE)
        for score in ('last', 'min', 'prod')
      )
      best = [max(seed) for seed in zip(*others, strict=True)]
      cases.append(lead(last, best, n))
    row = soft_row(AFTER_UPDATES[0], 'last', after)
    null = values(document, row, f'random per text, {CHOICE}')
    return judge(cases, baseline('random per text', null))

  return find


def last_is_an_orm(document: Mapping[str, Any]) -> Found:
  """Compares what the last step and an ORM choose, within a margin."""
  cases = [
    lead(
      values(document, soft_row(n, 'last'), CHOICE),
      values(document, f'{n}: {ORM}', CHOICE),
      n,
    )
    for n in AFTER_UPDATES
  ]
  return judge(cases, 'no difference', (-MARGIN, MARGIN))


def last_ranks(document: Mapping[str, Any]) -> Found:
  """Compares how the last step ranks the chains of a problem with a coin."""
  cases = []
  for n in AFTER_UPDATES:
    row = soft_row(n, 'last')
    areas = values(document, row, WITHIN)
    coin = [0.5] * len(areas)
    paired = intervals(document, row, WITHIN)
    cases.append(lead(areas, coin, n, paired))
  orm = [values(document, f'{n}: {ORM}', WITHIN) for n in AFTER_UPDATES]
  shown = ', '.join(percent(mean(seeds)) for seeds in orm)
  return judge(cases, f'a coin 50.0; the ORM {shown}')


CLAIMS = (
  Claim(
    'Hard labels at threshold 0, which leave out what follows an error, beat '
    'soft labels, which keep it (first-error F1)',
    'the same order, after filtering (Zhang et al., 2025)',
    hard_beats_soft,
  ),
  Claim(
    'Labels of the chains on which two sources agree are right more often than '
    'those of the better source on all chains (% of chains)',
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
    last_is_best('kept'),
    'soft.json',
  ),
  Claim(
    'A PRM trained on soft rollout labels that leave out steps after the first '
    "error chooses best by the last step's score (best of 64)",
    'none',
    last_is_best('masked'),
    'soft.json',
  ),
  Claim(
    'The last step of a PRM trained on soft rollout labels ranks right chains '
    'above wrong ones of the same problem (AUC within problems)',
    'none; its target is that of an ORM',
    last_ranks,
    'soft.json',
  ),
  Claim(
    'The last step of a PRM trained on soft rollout labels chooses as an ORM '
    'of as many updates does, to within 5 points (best of 64)',
    'none; its target is that of an ORM',
    last_is_an_orm,
    'soft.json',
  ),
  Claim(
    'A PRM trained on exact labels chooses better by the lowest score, and by '
    "the product, than by the last step's score (best of 64)",
    'the same, for labels of people and judges (Zhang et al., 2025)',
    best_aggregate(EXACT, ('min', 'prod'), ('last',)),
  ),
)

"""From the curves of all arms to the chains an accuracy takes, and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.findings import Case, over
from experiments.rl_runs import Curve, pool
from experiments.tables import (
  between,
  percent,
  points,
  points_between,
  ratio_between,
  table,
  times,
)
from prm_jax.evals import bootstrap, compute, over_seeds

WANTED = (0.5, 0.7, 0.8)
REFERENCE = 'outcome'
ENDS = "outcome's end"

Tuning = Mapping[str, Mapping[float, Curve]]


def best_rate(curves: Mapping[float, Curve]) -> float:
  """Returns the learning rate with the highest mean accuracy of its curve."""
  return max(curves, key=lambda rate: curves[rate].right.mean())


def summarise(
  curves: Mapping[str, Sequence[Curve]],
  tuning: Tuning,
  rates: Mapping[str, float],
  seeds: Sequence[int],
  levels: Sequence[float] = WANTED,
) -> dict[str, Any]:
  """Summarises one length.

  Args:
    curves: the curve of each seed, for each arm.
    tuning: a curve at each learning rate that was tried, for each arm.
    rates: the learning rate of each arm.
    seeds: the seeds of the curves.
    levels: accuracies whose chains are counted.
  """
  found: dict[str, Any] = {
    'chains': next(iter(curves.values()))[0].chains.tolist(),
    'arms': {},
  }
  wanted: dict[str, float | None] = {f'{100 * x:.0f}': x for x in levels}
  if REFERENCE in curves:
    found['outcome_ends'] = float(mean_curve(curves[REFERENCE])[-1])
    wanted[ENDS] = None
    theirs = [curve.smooth()[:, -1] for curve in curves[REFERENCE]]
  for arm, of_seeds in curves.items():
    pooled, smooth = pool(of_seeds), [curve.smooth() for curve in of_seeds]
    mean = mean_curve(of_seeds)
    best = int(np.argmax(mean))
    found['arms'][arm] = {
      'rate': rates[arm],
      'by_rate': {
        f'{rate:g}': float(tried.right.mean())
        for rate, tried in tuning[arm].items()
      },
      'accuracy': accuracy_of(of_seeds),
      'score': pooled.score.mean(0).tolist(),
      'paid': pooled.paid.mean(0).tolist(),
      'steps': pooled.steps.tolist(),
      'ends': by_seed(seeds, [curve[:, -1] for curve in smooth]),
      'since_start': by_seed(seeds, [c[:, -1] - c[:, 0] for c in smooth]),
      'best': {
        'chains': int(pooled.chains[best]),
        'accuracy': float(mean[best]),
      },
      'alarms': sum(curve.hacked for curve in of_seeds),
      'git_commits': list(pooled.commits),
      'to_reach': {
        name: reach(of_seeds, curves.get(REFERENCE), level)
        for name, level in wanted.items()
      },
    }
    if REFERENCE in curves and arm != REFERENCE:  # of the same problems
      ends = [curve[:, -1] for curve in smooth]
      leads = [a - b for a, b in zip(ends, theirs, strict=True)]
      found['arms'][arm]['over_outcome'] = by_seed(seeds, leads)
  return found


def mean_curve(curves: Sequence[Curve]) -> np.ndarray:  # [L]
  """Returns the smooth accuracy, averaged over the problems of all seeds."""
  return np.mean([curve.smooth().mean(0) for curve in curves], 0)


def accuracy_of(curves: Sequence[Curve]) -> dict[str, list]:
  """Returns the mean smooth accuracy and its interval, and that of each seed.

  The interval is over seeds and problems; with one seed, over its problems.
  """
  seeds = np.stack([curve.smooth().mean(0) for curve in curves])
  if len(seeds) > 1:
    ends = over_seeds.independent(seeds)
    low, high = (np.clip(end, 0, 1).tolist() for end in (ends.low, ends.high))
  else:
    _, low, high = bootstrap.mean_ci(curves[0].smooth(), 0)
  return {
    'mean': seeds.mean(0).tolist(),
    'low': low,
    'high': high,
    'seeds': seeds.tolist(),
  }


def by_seed(
  seeds: Sequence[int], per_problem: Sequence[np.ndarray]
) -> dict[str, dict[str, Any]]:
  """Returns the mean and the interval over problems of each seed."""
  found = {}
  for seed, values in zip(seeds, per_problem, strict=True):
    mean, low, high = bootstrap.mean_ci(values, 0)
    found[str(seed)] = {'value': mean, 'ci95': [low, high]}
  return found


def ends_of(arm: Mapping[str, Any]) -> list[float]:
  """Returns the accuracy that each seed of an arm ends with."""
  return [it['value'] for it in arm['ends'].values()]


def since_start(arm: Mapping[str, Any], name: str = '') -> Case:
  """Makes a case of how far an arm's accuracy ends above where it began."""
  accuracy = arm['accuracy']
  sides = f'{percent(accuracy["mean"][0])} to {percent(accuracy["mean"][-1])}'
  seeds = list(arm['since_start'].values())
  values = [it['value'] for it in seeds]
  effect = over(values, [it['ci95'] for it in seeds])
  return Case(effect, name, sides, len(values))


def needed(right: np.ndarray, chains: np.ndarray, level: float):
  """Returns the chains until a curve [L] is at a level; None where it never is.

  The evaluation before the first chain is left out: 0 has no logarithm.
  """
  return compute.compute_to_reach(chains[1:], right[1:], level)


def reach(
  ours: Sequence[Curve], theirs: Sequence[Curve] | None, level: float | None
) -> dict[str, Any]:
  """Finds the chains an accuracy takes, and how many times fewer that is.

  Args:
    ours: the curve of each seed.
    theirs: the curves of the reference, outcome-only; None where it did not
      run.
    level: the accuracy; None: the one that theirs ends with.

  Returns:
    `chains` of the mean curve and of each of the `seeds`, None where it never
    comes so far. With theirs also `times_less`, the ratio of chains, None where
    ours never comes so far; and its `ci95` over seeds and problems, with `open`
    ends where a curve has no more budgets (`compute.times_less`). Where theirs
    does not reach the level its chains are more than all that it had, so the
    ratio is at least that, without an interval.
  """
  chains = ours[0].chains
  curves = np.stack([curve.smooth().mean(0) for curve in ours])
  others = curves
  if theirs is not None:
    others = np.stack([curve.smooth().mean(0) for curve in theirs])
  wanted = others[:, -1] if level is None else np.full(len(ours), level)
  found: dict[str, Any] = {
    'chains': needed(curves.mean(0), chains, wanted.mean()),
    'seeds': [
      needed(curve, chains, it)
      for curve, it in zip(curves, wanted, strict=True)
    ],
  }
  if theirs is None or theirs is ours:
    return found
  spent = needed(others.mean(0), chains, wanted.mean())
  if spent is not None:
    # What the seeds of theirs have with as many chains, in pairs with ours.
    places = np.log(chains[1:])
    wanted = np.array(
      [np.interp(np.log(spent), places, curve[1:]) for curve in others]
    )
  ratio = compute.times_less(
    (np.tile(chains[1:], (len(ours), 1)), curves[:, 1:]),
    (np.full(len(ours), chains[-1] if spent is None else spent), wanted),
  )
  return found | {
    'times_less': ratio['ratio'],
    # Without a number of theirs, the spread of its seeds is not known.
    'ci95': None if spent is None else ratio['ci95'],
    'open': None if spent is None else ratio['open'],
    'at_least': spent is None,
  }


def _chains(value: float | None) -> str:
  return 'never' if value is None else f'{value:,.0f}'


def _ratio(reached: Mapping[str, Any]) -> str:
  """Formats how many times fewer chains than outcome-only an accuracy takes."""
  ratio = reached['times_less']
  least = 'at least ' * bool(reached.get('at_least'))
  text = 'never' if ratio is None else f'{least}{times(ratio)}'
  if reached['ci95'] is None:
    return text
  return f'{text} ({ratio_between(reached["ci95"], reached["open"])})'


def reach_table(found: Mapping[str, Any]) -> str:
  """Shows the chains that each arm takes to some accuracies."""
  names = list(next(iter(found['arms'].values()))['to_reach'])
  heads = [
    f'{ENDS} ({percent(found["outcome_ends"])}%)'
    if name == ENDS
    else f'{name}%'
    for name in names
  ]
  rows = []
  for arm, measured in found['arms'].items():
    cells = []
    for name in names:
      reached = measured['to_reach'][name]
      seeds = ', '.join(map(_chains, reached['seeds']))
      text = f'{_chains(reached["chains"])} ({seeds})'
      if 'times_less' in reached:
        text += f'; {_ratio(reached)}'
      cells.append(text)
    rows.append([arm, f'{measured["rate"]:g}', *cells])
    if 'costs' in found:
      rows[-1].append(_costs(found['costs'][arm]))
  heads += ['extra labels and rollouts'] * ('costs' in found)
  return table(['arm', 'rate', *heads], rows)


def _costs(costs: Mapping[str, int]) -> str:
  """Formats what an arm needs beside the chains that it learns from."""
  labelled, rollouts = costs['labelled'], costs['rollouts']
  parts = [f'{labelled:,} labelled'] * (labelled > 0)
  parts += [f'{rollouts:,} rollouts'] * (rollouts > 0)
  return ', '.join(parts) or 'none'


def ends_table(found: Mapping[str, Any]) -> str:
  """Shows where each arm begins and ends."""

  def begin_to_end(values: Sequence[float], digits: int) -> str:
    return f'{values[0]:.{digits}f} to {values[-1]:.{digits}f}'

  rows = []
  for arm, measured in found['arms'].items():
    accuracy, seeds = measured['accuracy'], ends_of(measured)
    last = over(seeds)
    interval = ''
    if last.ci95:
      interval = f' ({between((max(last.ci95[0], 0), last.ci95[1]))})'
    change = since_start(measured).effect
    rows.append(
      [
        arm,
        percent(accuracy['mean'][0]),
        percent(measured['best']['accuracy']),
        f'{measured["best"]["chains"]:,}',
        f'{percent(accuracy["mean"][-1])}{interval}',
        ', '.join(map(percent, seeds)),
        points(change.value)
        + (f' ({points_between(change.ci95)})' if change.ci95 else ''),
        *(
          begin_to_end(measured[name], 2) if any(measured[name]) else 'none'
          for name in ('score', 'paid')
        ),
        begin_to_end(measured['steps'], 1),
        f'{measured["alarms"]} of {len(seeds)}',
      ]
    )
  heads = (
    'arm | at first, % | best, % | after chains | in the end, % (95%) | '
    'each seed | since the start, points (95%) | '
    'lowest score, first to last | paid for steps, first to last | '
    'steps, first to last | alarms'
  )
  return table(heads, rows)


def rates_table(found: Mapping[str, Any]) -> str:
  """Shows the mean accuracy of each arm at each learning rate."""
  rates = list(next(iter(found['arms'].values()))['by_rate'])
  rows = [
    [arm, *map(percent, measured['by_rate'].values())]
    for arm, measured in found['arms'].items()
  ]
  return table(['arm', *rates], rows)


def render(results: Mapping[str, Any], over: str = 'seeds and problems') -> str:
  """Makes all tables.

  Args:
    over: what the intervals are over.
  """
  parts = []
  for found in results.values():
    parts += [
      f'**{found["title"]}.** Chains that an accuracy takes (each seed in '
      "brackets, where the outcome's end is the seed's own), and how many "
      'times fewer than outcome-only that is (95% interval over '
      f'{over}; an end with < or > lies beyond the chains that were sampled):',
      reach_table(found),
      'Where each arm ends:',
      ends_table(found),
    ]
    if not any(arm['by_rate'] for arm in found['arms'].values()):
      continue  # there was one rate to choose from
    parts += [
      'Mean accuracy of all evaluations on the seed that chose the learning '
      'rates, in percent, by learning rate:',
      rates_table(found),
    ]
  return '\n\n'.join(parts)

"""From the curves of all arms to the chains an accuracy takes, and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.rl_runs import Curve, pool
from experiments.tables import between, percent, table, times
from prm_jax.evals import bootstrap, compute

WANTED = (0.7, 0.8, 0.9)
REFERENCE = 'outcome'
ENDS = "outcome's end"
RESAMPLES = 2000

Tuning = Mapping[str, Mapping[float, Curve]]


def best_rate(curves: Mapping[float, Curve]) -> float:
  """Returns the learning rate with the highest mean accuracy of its curve."""
  return max(curves, key=lambda rate: curves[rate].right.mean())


def summarise(
  curves: Mapping[str, Sequence[Curve]],
  tuning: Tuning,
  rates: Mapping[str, float],
) -> dict[str, Any]:
  """Summarises one length, with the problems of all seeds pooled.

  Args:
    curves: the curve of each seed, for each arm.
    tuning: the first seed's curve at each learning rate, for each arm.
    rates: the learning rate of each arm.
  """
  pooled = {arm: pool(of_seeds) for arm, of_seeds in curves.items()}
  found: dict[str, Any] = {
    'chains': next(iter(pooled.values())).chains.tolist(),
    'arms': {},
  }
  wanted: dict[str, float | None] = {f'{100 * x:.0f}': x for x in WANTED}
  if REFERENCE in pooled:
    found['outcome_ends'] = float(pooled[REFERENCE].smooth()[:, -1].mean())
    wanted[ENDS] = None
  for arm, curve in pooled.items():
    smooth = curve.smooth()
    mean, low, high = bootstrap.mean_ci(smooth, 0)
    best = int(np.argmax(mean))
    # The best evaluation is chosen on these problems. So every evaluation is
    # compared with the last, and all these intervals hold together at 95%.
    lost = smooth[:, :-1] - smooth[:, -1:]
    level = 1 - 0.05 / lost.shape[1]
    _, least, _ = bootstrap.mean_ci(lost, 0, level=level)
    found['arms'][arm] = {
      'rate': rates[arm],
      'by_rate': {
        f'{rate:g}': float(tried.right.mean())
        for rate, tried in tuning[arm].items()
      },
      'accuracy': {'mean': mean, 'low': low, 'high': high},
      'score': curve.score.mean(0).tolist(),
      'paid': curve.paid.mean(0).tolist(),
      'steps': curve.steps.tolist(),
      'seeds_end': [float(c.smooth()[:, -1].mean()) for c in curves[arm]],
      'best': {'chains': int(curve.chains[best]), 'accuracy': mean[best]},
      'fall': mean[best] - mean[-1],
      'falls': bool(max(least) > 0),
      'alarms': sum(c.hacked for c in curves[arm]),
      'to_reach': {
        name: reach(curves[arm], curves.get(REFERENCE), level)
        for name, level in wanted.items()
      },
    }
  return found


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
    comes so far. With theirs also `times_less`, the ratio of chains; where
    theirs does not come so far, `at_least`, the ratio by all of its chains.
    `ci95` of `times_less` is a bootstrap interval over seeds and their
    problems, from the resamples in which both come so far; `reached` is the
    share of these.
  """
  chains = ours[0].chains
  curves = [[c.smooth() for c in ours], [c.smooth() for c in theirs or ours]]

  def mean_curve(side: int, seeds: Sequence[int], draws: Sequence[np.ndarray]):
    pairs = zip(seeds, draws, strict=True)
    return np.mean([curves[side][s][d].mean(0) for s, d in pairs], 0)

  def needed_by_both(seeds: Sequence[int], draws: Sequence[np.ndarray]):
    mine, other = (mean_curve(side, seeds, draws) for side in (0, 1))
    wanted = other[-1] if level is None else level
    return needed(mine, chains, wanted), needed(other, chains, wanted)

  everything = [np.arange(len(curve)) for curve in curves[0]]
  every = list(range(len(ours)))
  mine, other = needed_by_both(every, everything)
  found: dict[str, Any] = {
    'chains': mine,
    'seeds': [needed_by_both([s], [everything[s]])[0] for s in every],
  }
  if theirs is None or theirs is ours or mine is None:
    return found
  if other is None:
    return found | {'at_least': float(chains[-1] / mine)}
  rng, ratios = np.random.default_rng(0), []
  for _ in range(RESAMPLES):
    seeds = rng.choice(every, len(every))
    draws = [rng.choice(everything[s], len(everything[s])) for s in seeds]
    a, b = needed_by_both(seeds, draws)
    if a is not None and b is not None:
      ratios.append(b / a)
  return found | {
    'times_less': other / mine,
    'ci95': list(bootstrap.interval(np.array(ratios))) if ratios else None,
    'reached': len(ratios) / RESAMPLES,
  }


def _chains(value: float | None) -> str:
  return 'never' if value is None else f'{value:,.0f}'


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
        low, high = reached['ci95']
        text += f'; {times(reached["times_less"])} ({low:.1f} to {high:.1f}'
        text += f', {100 * reached["reached"]:.0f}%)'
      elif 'at_least' in reached:
        text += f'; at least {times(reached["at_least"])}'
      cells.append(text)
    rows.append([arm, f'{measured["rate"]:g}', *cells])
  return table(['arm', 'rate', *heads], rows)


def ends_table(found: Mapping[str, Any]) -> str:
  """Shows where each arm begins and ends."""

  def change(values: Sequence[float], digits: int) -> str:
    return f'{values[0]:.{digits}f} to {values[-1]:.{digits}f}'

  rows = []
  for arm, measured in found['arms'].items():
    accuracy, seeds = measured['accuracy'], measured['seeds_end']
    last = between((accuracy['low'][-1], accuracy['high'][-1]))
    rows.append(
      [
        arm,
        percent(accuracy['mean'][0]),
        percent(measured['best']['accuracy']),
        f'{measured["best"]["chains"]:,}',
        f'{percent(accuracy["mean"][-1])} ({last})',
        ', '.join(map(percent, seeds)),
        f'{"yes" if measured["falls"] else "no"}, {percent(measured["fall"])}',
        *(
          change(measured[name], 2) if any(measured[name]) else 'none'
          for name in ('score', 'paid')
        ),
        change(measured['steps'], 1),
        f'{measured["alarms"]} of {len(seeds)}',
      ]
    )
  heads = (
    'arm | at first, % | best, % | after chains | in the end, % (95%) | '
    'each seed | falls beyond noise | lowest score, first to last | '
    'paid for steps, first to last | steps, first to last | alarms'
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


def render(results: Mapping[str, Any]) -> str:
  """Makes all tables."""
  parts = []
  for k, found in results.items():
    parts += [
      f'**{k} operations.** Chains that an accuracy takes (each seed in '
      'brackets), and how many times fewer than outcome-only that is (95% '
      'interval over seeds and problems, and the share of resamples in which '
      'both reach it):',
      reach_table(found),
      'Where each arm ends:',
      ends_table(found),
      'Mean accuracy of all evaluations on the first seed, in percent, by '
      'learning rate:',
      rates_table(found),
    ]
  return '\n\n'.join(parts)

"""Curves of all arms -> chains that an accuracy takes, and the tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.rl_runs import Curve, together
from prm_jax.evals import bootstrap, compute

WANTED = (0.7, 0.8, 0.9)
REFERENCE = 'outcome'
ENDS = "outcome's end"
RESAMPLES = 2000

Tuning = Mapping[str, Mapping[float, Curve]]


def best_rate(curves: Mapping[float, Curve]) -> float:
  """The learning rate with the highest mean accuracy over all looks."""
  return max(curves, key=lambda rate: curves[rate].right.mean())


def summarise(
  curves: Mapping[str, Sequence[Curve]],
  tuning: Tuning,
  rates: Mapping[str, float],
) -> dict[str, Any]:
  """One length. Problems of all seeds are pooled."""
  pooled = {arm: together(of_seeds) for arm, of_seeds in curves.items()}
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
    # The best look is found on the same problems: each look before the last is
    # compared with it, all together at 95%.
    lost = smooth[:, :-1] - smooth[:, -1:]
    level = 1 - 0.05 / lost.shape[1]
    _, least, _ = bootstrap.mean_ci(lost, 0, level=level)
    found['arms'][arm] = {
      'rate': rates[arm],
      'by_rate': {
        f'{rate:g}': float(each.right.mean())
        for rate, each in tuning[arm].items()
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
  """Chains until a curve [L] is at a level; None where it never is.

  The look before the first chain has no logarithm, and is left out.
  """
  return compute.compute_to_reach(chains[1:], right[1:], level)


def reach(
  ours: Sequence[Curve], theirs: Sequence[Curve] | None, level: float | None
) -> dict[str, Any]:
  """Chains that an accuracy takes, and how many times less than outcome-only.

  Args:
    ours, theirs: of each seed.
    level: the accuracy; None: that which theirs ends with.

  Returns:
    `chains` of the mean curve, and of each of the `seeds`, None where never;
    with theirs `times_less`, or, where theirs does not come so far,
    `at_least`, by all its chains; `ci95` of `times_less`, over seeds and the
    problems of each, among the resamples in which both come so far, whose share
    is `reached`.
  """
  chains = ours[0].chains
  curves = [[c.smooth() for c in ours], [c.smooth() for c in theirs or ours]]

  def means(side: int, seeds: Sequence[int], draws: Sequence[np.ndarray]):
    pairs = zip(seeds, draws, strict=True)
    return np.mean([curves[side][s][d].mean(0) for s, d in pairs], 0)

  def both(seeds: Sequence[int], draws: Sequence[np.ndarray]):
    mine, other = (means(side, seeds, draws) for side in (0, 1))
    wanted = other[-1] if level is None else level
    return needed(mine, chains, wanted), needed(other, chains, wanted)

  everything = [np.arange(len(curve)) for curve in curves[0]]
  every = list(range(len(ours)))
  mine, other = both(every, everything)
  found: dict[str, Any] = {
    'chains': mine,
    'seeds': [both([s], [everything[s]])[0] for s in every],
  }
  if theirs is None or theirs is ours or mine is None:
    return found
  if other is None:
    return found | {'at_least': float(chains[-1] / mine)}
  rng, ratios = np.random.default_rng(0), []
  for _ in range(RESAMPLES):
    seeds = rng.choice(every, len(every))
    draws = [rng.choice(everything[s], len(everything[s])) for s in seeds]
    a, b = both(seeds, draws)
    if a is not None and b is not None:
      ratios.append(b / a)
  return found | {
    'times_less': other / mine,
    'ci95': list(bootstrap.interval(np.array(ratios))) if ratios else None,
    'reached': len(ratios) / RESAMPLES,
  }


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def _chains(value: float | None) -> str:
  return 'never' if value is None else f'{value:,.0f}'


def reach_table(found: Mapping[str, Any]) -> str:
  names = list(next(iter(found['arms'].values()))['to_reach'])
  heads = [
    f'{ENDS} ({percent(found["outcome_ends"])}%)'
    if name == ENDS
    else f'{name}%'
    for name in names
  ]
  lines = [
    f'| arm | rate | {" | ".join(heads)} |',
    '| --- | --- |' + ' --- |' * len(heads),
  ]
  for arm, told in found['arms'].items():
    cells = []
    for name in names:
      each = told['to_reach'][name]
      seeds = ', '.join(map(_chains, each['seeds']))
      text = f'{_chains(each["chains"])} ({seeds})'
      if 'times_less' in each:
        low, high = each['ci95']
        text += f'; {each["times_less"]:.1f}x ({low:.1f} to {high:.1f}'
        text += f', {100 * each["reached"]:.0f}%)'
      elif 'at_least' in each:
        text += f'; at least {each["at_least"]:.1f}x'
      cells.append(text)
    lines.append(f'| {arm} | {told["rate"]:g} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def ends_table(found: Mapping[str, Any]) -> str:
  lines = [
    '| arm | at first, % | best, % | after chains | in the end, % (95%) | each '
    'seed | falls beyond noise | lowest score, first to last | paid for steps, '
    'first to last | steps, first to last | alarms |',
    '| --- |' + ' --- |' * 10,
  ]
  for arm, told in found['arms'].items():
    mean, low, high = (told['accuracy'][k] for k in ('mean', 'low', 'high'))
    seeds = ', '.join(map(percent, told['seeds_end']))
    says, paid = (
      f'{told[name][0]:.2f} to {told[name][-1]:.2f}'
      for name in ('score', 'paid')
    )
    lines.append(
      f'| {arm} | {percent(mean[0])} | {percent(told["best"]["accuracy"])} | '
      f'{told["best"]["chains"]:,} | {percent(mean[-1])} ({percent(low[-1])} '
      f'to {percent(high[-1])}) | {seeds} | '
      f'{"yes" if told["falls"] else "no"}, {percent(told["fall"])} | '
      f'{says if any(told["score"]) else "none"} | '
      f'{paid if any(told["paid"]) else "none"} | '
      f'{told["steps"][0]:.1f} to {told["steps"][-1]:.1f} | '
      f'{told["alarms"]} of {len(told["seeds_end"])} |'
    )
  return '\n'.join(lines)


def rates_table(found: Mapping[str, Any]) -> str:
  rates = list(next(iter(found['arms'].values()))['by_rate'])
  lines = [
    f'| arm | {" | ".join(rates)} |',
    '| --- |' + ' --- |' * len(rates),
  ]
  for arm, told in found['arms'].items():
    cells = ' | '.join(map(percent, told['by_rate'].values()))
    lines.append(f'| {arm} | {cells} |')
  return '\n'.join(lines)


def render(results: Mapping[str, Any]) -> str:
  """All tables, Markdown."""
  parts = []
  for k, found in results.items():
    parts += [
      f'**{k} operations.** Chains that an accuracy takes (each seed), and how '
      'many times less than outcome-only (95% over seeds and problems; the '
      'share of resamples in which both come so far):',
      reach_table(found),
      'Where each arm ends:',
      ends_table(found),
      'Mean accuracy of all looks on the first seed, %, by learning rate:',
      rates_table(found),
    ]
  return '\n\n'.join(parts)

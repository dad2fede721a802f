"""How the results of each experiment answer its claims.

The functions of claims.py: a results.json to what is found, and whether that
holds in each case the claim is asked of.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import ablations
from experiments.label_sources.run import ACTIVE
from experiments.label_sources.tables import efficiency
from experiments.rl_process_vs_outcome.tables import ENDS

HOLDS, PARTLY, FAILS = 'holds', 'partly', 'fails'


class Found(NamedTuple):
  """Our side of a claim.

  Attributes:
    number: with its unit.
    interval: 95%, or each seed, as it says.
    holds: of each case the claim is asked of.
  """

  number: str
  interval: str
  holds: Sequence[bool]

  @property
  def verdict(self) -> str:
    return HOLDS if all(self.holds) else PARTLY if any(self.holds) else FAILS


Finder = Callable[[Mapping[str, Any]], Found]


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def between(ci95: Sequence[float]) -> str:
  return ' to '.join(percent(bound) for bound in ci95)


def mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def steps_beat_answers(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  prm, orm = (
    [run[name]['mean'][-1] for run in runs] for name in ('prm_min', 'orm')
  )
  gaps = [
    f'{percent(a)} to {percent(b)}' for a, b in zip(prm, orm, strict=True)
  ]
  return Found(
    f'{percent(mean(prm))} to {percent(mean(orm))} at N = {runs[0]["n"][-1]}',
    f'each seed: {", ".join(gaps)}',
    [run['prm_min']['ci95'][-1][0] > run['orm']['ci95'][-1][1] for run in runs],
  )


def votes_do_not_help(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  first, last = ([run['majority']['mean'][k] for run in runs] for k in (0, -1))
  return Found(
    f'{percent(mean(first))} to {percent(mean(last))}',
    'each seed: '
    + ', '.join(
      f'{percent(a)} to {percent(b)}' for a, b in zip(first, last, strict=True)
    ),
    [
      run['majority']['ci95'][-1][0] <= run['majority']['mean'][0]
      for run in runs
    ],
  )


def human_labels_teach(document: Mapping[str, Any]) -> Found:
  sets = document['results']['localisation']
  return Found(
    '; '.join(f'{percent(x["f1"])} ({name})' for name, x in sets.items()),
    '; '.join(between(x['ci95']) for x in sets.values()),
    [x['ci95'][0] > x['baselines']['random']['f1'] for x in sets.values()],
  )


def training_beats_likelihood(document: Mapping[str, Any]) -> Found:
  sets = document['results']['localisation']
  leads = {
    name: rows['likelihood']['minus_digit_likelihood']
    for name, rows in sets.items()
  }
  return Found(
    '; '.join(f'{100 * x["difference"]:+.1f} ({k})' for k, x in leads.items()),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in leads.values()
    ),
    [x['ci95'][0] > 0 for x in leads.values()],
  )


def hard_beats_soft(document: Mapping[str, Any]) -> Found:
  hard, soft = (
    [
      run[f'equal chains: rollouts, {kind}']['localisation']
      for run in document['runs'].values()
    ]
    for kind in ('threshold 0', 'soft')
  )
  return Found(
    ' to '.join(
      percent(mean([x['f1'] for x in side])) for side in (hard, soft)
    ),
    'each seed: '
    + ', '.join(
      f'{percent(a["f1"])} to {percent(b["f1"])}'
      for a, b in zip(hard, soft, strict=True)
    ),
    [a['ci95'][0] > b['ci95'][1] for a, b in zip(hard, soft, strict=True)],
  )


def consensus_is_cleaner(document: Mapping[str, Any]) -> Found:
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
  found = [
    efficiency(runs, ACTIVE['budgets'], 'F1')
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
  """Whether some aggregates of step scores are above others, each seed."""

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
        f'{percent(mean(each))} ({how})' for how, each in means.items()
      ),
      f'each seed, {best[0]}: {", ".join(map(percent, means[best[0]]))}',
      [
        min(means[how][k] for how in best)
        > max(means[how][k] for how in others)
        for k in range(len(runs))
      ],
    )

  return find


def little_compute(document: Mapping[str, Any]) -> Found:
  """Beam's compute for what best of 64 reaches, by operations."""
  found = {}
  for k, results in document['results'].items():
    (asked,) = (
      each
      for each in results['times_less']
      if (each['method'], each['size']) == ('best of N, PRM', 64)
    )
    found[k] = asked['ours']['beam']
  return Found(
    '; '.join(f'{x["ratio"]:.1f}x ({k} operations)' for k, x in found.items()),
    '; '.join(
      ' to '.join(f'{bound:.1f}' for bound in x['ci95']) for x in found.values()
    ),
    [x['ratio'] >= 5 for x in found.values()],
  )


def beam_with_4(document: Mapping[str, Any]) -> Found:
  found = {
    k: results['differences']['beam with 4 and best of 16 by PRM']
    for k, results in document['results'].items()
  }
  return Found(
    '; '.join(
      f'{100 * x["mean"]:+.1f} ({k} operations)' for k, x in found.items()
    ),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in found.values()
    ),
    [x['ci95'][1] >= 0 for x in found.values()],
  )


def rereads_nothing(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  medians = [
    sorted(r['scoring_ratios'])[len(r['scoring_ratios']) // 2] for r in rows
  ]
  return Found(
    '; '.join(
      f'{ratio:.1f}x ({row["model"]}, {row["problems"]} at once)'
      for ratio, row in zip(medians, rows, strict=True)
    ),
    'of rounds: '
    + '; '.join(
      f'{min(r["scoring_ratios"]):.1f} to {max(r["scoring_ratios"]):.1f}'
      for r in rows
    ),
    [ratio >= 5 for ratio in medians],
  )


def sampling_is_fast(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  return Found(
    '; '.join(f'{r["ratio"]:.2f}x ({r["model"]}, {r["what"]})' for r in rows),
    'of rounds: '
    + '; '.join(
      f'{min(r["ratios"]):.2f} to {max(r["ratios"]):.2f}' for r in rows
    ),
    [r['ratio'] >= 3 for r in rows],
  )


def loop_is_fast(document: Mapping[str, Any]) -> Found:
  ratios = {row['rewards']: row['ratio']['wall'] for row in document['rows']}
  return Found(
    '; '.join(
      f'{sorted(each)[len(each) // 2]:.2f}x ({name})'
      for name, each in ratios.items()
    ),
    'of rounds: '
    + '; '.join(
      f'{min(each):.2f} to {max(each):.2f}' for each in ratios.values()
    ),
    [sorted(each)[len(each) // 2] >= 3 for each in ratios.values()],
  )


def fewer_chains(arm: str) -> Finder:
  """Chains of an arm until it is where outcome-only ends, by operations."""

  def find(document: Mapping[str, Any]) -> Found:
    found = {
      k: results['arms'][arm]['to_reach'][ENDS]
      for k, results in document['results'].items()
    }
    numbers, intervals = [], []
    for k, x in found.items():
      never = x['chains'] is None
      told = 'never' if never else f'{x["times_less"]:.1f}x'
      numbers.append(f'{told} ({k} operations)')
      ci95 = None if never else x['ci95']
      intervals.append(
        f'{ci95[0]:.1f} to {ci95[1]:.1f}' if ci95 else 'not estimated'
      )
    return Found(
      '; '.join(numbers),
      '; '.join(intervals),
      [
        x['chains'] is not None and x['ci95'] is not None and x['ci95'][0] > 1
        for x in found.values()
      ],
    )

  return find


def is_hacked(arm: str) -> Finder:
  """How far an arm falls from its best look, by operations."""

  def find(document: Mapping[str, Any]) -> Found:
    told = {
      k: results['arms'][arm] for k, results in document['results'].items()
    }
    ends = [
      (x['accuracy']['low'][-1], x['accuracy']['high'][-1])
      for x in told.values()
    ]
    return Found(
      '; '.join(
        f'{percent(x["best"]["accuracy"])} to '
        f'{percent(x["accuracy"]["mean"][-1])} ({k} operations)'
        for k, x in told.items()
      ),
      '; '.join(f'in the end {between(ci95)}' for ci95 in ends),
      [x['falls'] for x in told.values()],
    )

  return find


def weak_prm(with_outcome: bool) -> Finder:
  """How far accuracy falls by the forms of a weak PRM, alone or not."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = {
      name: told
      for name, told in document['results']['arms'].items()
      if name.endswith('and outcome') == with_outcome
    }
    return Found(
      '; '.join(
        f'{percent(told["accuracy"]["mean"][0])} to '
        f'{percent(told["accuracy"]["mean"][-1])} ({name})'
        for name, told in arms.items()
      ),
      'in the end '
      + '; '.join(
        between((told['accuracy']['low'][-1], told['accuracy']['high'][-1]))
        for told in arms.values()
      ),
      [told['falls'] != with_outcome for told in arms.values()],
    )

  return find


def arm_leads(first: str, second: str, name: str) -> Finder:
  """Whether one arm of an ablation measures more than another, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    ours, theirs = (
      ablations.values(document, arm, name) for arm in (first, second)
    )
    pairs = [
      f'{percent(a)} to {percent(b)}' for a, b in zip(ours, theirs, strict=True)
    ]
    return Found(
      f'{percent(mean(ours))} to {percent(mean(theirs))}',
      f'each seed: {", ".join(pairs)}',
      [a > b for a, b in zip(ours, theirs, strict=True)],
    )

  return find


def pays_on(arm: str) -> Finder:
  """Whether a PRM's choice is better than a chain at random, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    chosen, random = (
      ablations.values(document, arm, name)
      for name in (ablations.BY_PRM, 'right chains')
    )
    return Found(
      f'{percent(mean(chosen))} to {percent(mean(random))}',
      'each seed: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(chosen, random, strict=True)
      ),
      [a > b for a, b in zip(chosen, random, strict=True)],
    )

  return find


def gap_grows(document: Mapping[str, Any]) -> Found:
  """PRM's lead over the ORM, the shortest chains and the longest."""
  gaps = {
    arm: [
      a - b
      for a, b in zip(
        ablations.values(document, arm, ablations.BY_PRM),
        ablations.values(document, arm, ablations.BY_ORM),
        strict=True,
      )
    ]
    for arm in document['runs']
  }
  short, *_, long = gaps.values()
  return Found(
    '; '.join(f'{100 * mean(each):+.1f} ({arm})' for arm, each in gaps.items()),
    'each seed, first and last: '
    + ', '.join(
      f'{100 * a:+.1f} to {100 * b:+.1f}'
      for a, b in zip(short, long, strict=True)
    ),
    [b > a for a, b in zip(short, long, strict=True)],
  )


def process_is_cheaper(behind: int) -> Finder:
  """PRM beside the ORM with `behind` times five times as many chains."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = list(document['runs'])
    pairs = list(zip(arms, arms[behind:], strict=False))
    prm, orm = (
      [ablations.values(document, pair[side], name) for pair in pairs]
      for side, name in enumerate((ablations.BY_PRM, ablations.BY_ORM))
    )
    return Found(
      '; '.join(
        f'{percent(mean(a))} ({first} chains) to {percent(mean(b))} ({second})'
        for (first, second), a, b in zip(pairs, prm, orm, strict=True)
      ),
      f'each seed at {pairs[-1][0]} and {pairs[-1][1]}: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(prm[-1], orm[-1], strict=True)
      ),
      [
        a > b
        for ours, theirs in zip(prm, orm, strict=True)
        for a, b in zip(ours, theirs, strict=True)
      ],
    )

  return find

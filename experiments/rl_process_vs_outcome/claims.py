"""What rl_process_vs_outcome is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found, between, percent
from experiments.rl_process_vs_outcome.tables import ENDS


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
  """How far an arm falls from its best look, by operations.

  On each seed: it falls, and that seed ends below where all began.
  """

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
      '; '.join(
        f'in the end {between(ci95)}; each seed: '
        f'{", ".join(map(percent, x["seeds_end"]))}'
        for x, ci95 in zip(told.values(), ends, strict=True)
      ),
      [
        x['falls'] and end < x['accuracy']['mean'][0]
        for x in told.values()
        for end in x['seeds_end']
      ],
    )

  return find


CLAIMS = (
  Claim(
    "With PRM scores beside it outcome RL's end takes fewer chains",
    'none for plain scores',
    fewer_chains('outcome + PRM'),
  ),
  Claim(
    'With the exact gain of each step (PAV)',
    '5 to 6x, with learned ones (PAV; Setlur et al., 2025)',
    fewer_chains('outcome + exact PAV'),
  ),
  Claim(
    'So do exact step labels',
    'none',
    fewer_chains('outcome + exact labels'),
  ),
  Claim(
    'The sum of PRM scores as the only reward is hacked: accuracy falls',
    'below 4% at PRM rewards above 0.9 (Tiwari et al., 2026)',
    is_hacked('PRM, sum'),
  ),
  Claim(
    'So is its min form',
    'less than sums, and usually all the same (PURE; Cheng et al., 2025)',
    is_hacked('PRM, min form'),
  ),
)

"""The claims of rl_process_vs_outcome."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found
from experiments.rl_process_vs_outcome.tables import ENDS
from experiments.tables import between, percent, times


def fewer_chains(arm: str) -> Finder:
  """Makes a finder of whether an arm needs fewer chains than outcome-only.

  Both have to reach the accuracy that outcome-only ends with.
  """

  def find(document: Mapping[str, Any]) -> Found:
    numbers, intervals, holds = [], [], []
    for k, results in document['results'].items():
      reached = results['arms'][arm]['to_reach'][ENDS]
      never = reached['chains'] is None
      number = 'never' if never else times(reached['times_less'])
      numbers.append(f'{number} ({k} operations)')
      ci95 = None if never else reached['ci95']
      intervals.append(
        f'{ci95[0]:.1f} to {ci95[1]:.1f}' if ci95 else 'not estimated'
      )
      holds.append(ci95 is not None and ci95[0] > 1)
    return Found('; '.join(numbers), '; '.join(intervals), holds)

  return find


def is_hacked(arm: str) -> Finder:
  """Makes a finder of whether an arm is hacked, in each seed.

  It is where its mean accuracy falls from its best, and the seed ends below
  where all seeds began.
  """

  def find(document: Mapping[str, Any]) -> Found:
    numbers, intervals, holds = [], [], []
    for k, results in document['results'].items():
      measured = results['arms'][arm]
      accuracy, seeds = measured['accuracy'], measured['seeds_end']
      numbers.append(
        f'{percent(measured["best"]["accuracy"])} to '
        f'{percent(accuracy["mean"][-1])} ({k} operations)'
      )
      last = between((accuracy['low'][-1], accuracy['high'][-1]))
      intervals.append(
        f'in the end {last}; each seed: {", ".join(map(percent, seeds))}'
      )
      holds += [
        measured['falls'] and end < accuracy['mean'][0] for end in seeds
      ]
    return Found('; '.join(numbers), '; '.join(intervals), holds)

  return find


CLAIMS = (
  Claim(
    "With PRM scores added, RL reaches outcome-only's final accuracy with "
    'fewer chains',
    'none for plain scores',
    fewer_chains('outcome + PRM'),
  ),
  Claim(
    'With the exact gain of each step added (PAV), RL reaches it with fewer '
    'chains',
    '5 to 6x, with learned gains (PAV; Setlur et al., 2025)',
    fewer_chains('outcome + exact PAV'),
  ),
  Claim(
    'With exact step labels added, RL reaches it with fewer chains',
    'none',
    fewer_chains('outcome + exact labels'),
  ),
  Claim(
    'The sum of PRM scores as the only reward is hacked: accuracy falls',
    'below 4% at PRM rewards above 0.9 (Tiwari et al., 2026)',
    is_hacked('PRM, sum'),
  ),
  Claim(
    'The min form of PRM scores as the only reward is hacked: accuracy falls',
    'less than sums, and usually all the same (PURE; Cheng et al., 2025)',
    is_hacked('PRM, min form'),
  ),
)

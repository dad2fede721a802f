"""The claims of rl_process_vs_outcome."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.findings import (
  BELOW,
  TIMES,
  Case,
  Claim,
  Effect,
  Finder,
  Found,
  baseline,
  judge,
)
from experiments.rl_process_vs_outcome.tables import (
  ENDS,
  REFERENCE,
  ends_of,
  since_start,
)
from prm_jax.evals import compute


def fewer_chains(arm: str) -> Finder:
  """Makes a finder of whether an arm needs fewer chains than outcome-only.

  Both have to reach the accuracy that outcome-only ends with.
  """

  def find(document: Mapping[str, Any]) -> Found:
    cases, chains = [], []
    for k, results in document['results'].items():
      if arm not in results['arms']:
        continue
      reached = results['arms'][arm]['to_reach'][ENDS]
      if 'open' in reached:
        ci95, ends = reached['ci95'], reached['open']
      else:
        ci95, ends = by_ends(results, arm)
      effect = Effect(reached.get('times_less'), ci95, ends)
      name = title_of(k, results)
      cases.append(Case(effect, name, '', len(reached['seeds'])))
      reference = results['arms'][REFERENCE]['to_reach'][ENDS]
      chains.append(f'{reference["chains"]:,.0f}')
    return judge(
      cases,
      f'outcome-only, {"; ".join(chains)} chains',
      (1.0, math.inf),
      TIMES,
    )

  return find


def by_ends(
  results: Mapping[str, Any], arm: str
) -> tuple[list[float], list[bool]]:
  """Returns the interval of the ratio as far as the ends of all seeds tell.

  Results of before there were curves of each seed tell whether an arm is above
  outcome-only with as many chains, which is a ratio of at least 1.
  """
  ours, theirs = (
    np.array(ends_of(results['arms'][name])) for name in (arm, REFERENCE)
  )
  spent = np.full(len(ours), results['chains'][-1])
  found = compute.times_less((spent[:, None], ours[:, None]), (spent, theirs))
  return found['ci95'], found['open']


def title_of(name: str, results: Mapping[str, Any]) -> str:
  """Returns what a setting is called."""
  return results.get('title', f'{name} operations')


def is_hacked(arm: str) -> Finder:
  """Makes a finder of whether an arm ends below where it began."""

  def find(document: Mapping[str, Any]) -> Found:
    cases, nulls = [], []
    for k, results in document['results'].items():
      if arm not in results['arms']:
        continue
      measured = results['arms'][arm]
      name = title_of(k, results)
      cases.append(since_start(measured, name))
      nulls.append(baseline('the start', [measured['accuracy']['mean'][0]]))
      nulls.append(baseline("outcome-only's end", [results['outcome_ends']]))
    return judge(cases, '; '.join(nulls), BELOW)

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

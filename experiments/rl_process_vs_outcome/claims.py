"""The claims of rl_process_vs_outcome."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.findings import (
  ABOVE,
  TIMES,
  Case,
  Claim,
  Effect,
  Finder,
  Found,
  judge,
  over,
)
from experiments.rl_process_vs_outcome.tables import (
  ENDS,
  REFERENCE,
  ends_of,
  since_start,
)
from experiments.tables import percent


def fewer_chains(arm: str, times: float = 1.0) -> Finder:
  """Makes a finder of whether an arm needs fewer chains than outcome-only.

  Both have to reach the accuracy that outcome-only ends with. Settings in which
  that is not above the start, by its interval, are left out.

  Args:
    times: as many times fewer it has to be.
  """

  def find(document: Mapping[str, Any]) -> Found:
    cases, chains = [], []
    for results in _settings(document, arm):
      learned = since_start(results['arms'][REFERENCE]).effect
      if (learned.ci95 or [learned.value])[0] <= 0:
        continue
      reached = results['arms'][arm]['to_reach'][ENDS]
      effect = Effect(reached['times_less'], reached['ci95'], reached['open'])
      title = results['title']
      cases.append(Case(effect, title, '', len(reached['seeds'])))
      reference = results['arms'][REFERENCE]['to_reach'][ENDS]
      chains.append(f'{reference["chains"]:,.0f}')
    return judge(
      cases,
      f'outcome-only, {"; ".join(chains)} chains',
      (times, math.inf),
      TIMES,
    )

  return find


def ends_higher(arm: str) -> Finder:
  """Makes a finder of whether an arm ends with more right than outcome-only."""

  def find(document: Mapping[str, Any]) -> Found:
    cases, nulls = [], []
    for results in _settings(document, arm):
      ours = ends_of(results['arms'][arm])
      leads = results['arms'][arm]['over_outcome'].values()
      effect = over(*([it[k] for it in leads] for k in ('value', 'ci95')))
      mean = sum(ours) / len(ours)
      title = results['title']
      cases.append(Case(effect, title, percent(mean), len(ours)))
      nulls.append(percent(results['outcome_ends']))
    return judge(cases, f"outcome-only's end {'; '.join(nulls)}", ABOVE)

  return find


def _settings(document: Mapping[str, Any], arm: str) -> list[Mapping[str, Any]]:
  """Returns the results of the settings in which an arm ran.

  Where it ran twice with the same models, beside other arms, the first counts.
  """
  found = document['results']
  return [
    it
    for it in found.values()
    if arm in it['arms']
    and arm not in found.get(it.get('shares'), {'arms': ()})['arms']
  ]


CLAIMS = (
  Claim(
    'With exact step labels added, RL reaches the accuracy that outcome-only '
    'ends with from a third of its chains',
    'an aim of this project',
    fewer_chains('outcome + exact labels', 3.0),
  ),
  Claim(
    'With the scores of a learned PRM added, RL reaches the accuracy that '
    'outcome-only ends with from four tenths of its chains',
    '2.5x (PRIME)',
    fewer_chains('outcome + PRM', 2.5),
  ),
  Claim(
    'With the scores of a learned PRM in wrong chains alone, RL reaches the '
    'accuracy that outcome-only ends with from four tenths of its chains',
    'none',
    fewer_chains('outcome + PRM, wrong chains', 2.5),
  ),
  Claim(
    'Learning only from chains whose scores agree with the outcome (PROF), RL '
    'reaches the accuracy that outcome-only ends with from fewer chains',
    'more than 4% above blending (arXiv 2509.03403)',
    fewer_chains('outcome of consistent chains'),
  ),
  Claim(
    'With the scores of a PRM that is refreshed on chains of the policy, RL '
    'reaches the accuracy that outcome-only ends with from four tenths of its '
    'chains',
    '2.5x (PRIME)',
    fewer_chains('outcome + refreshed PRM', 2.5),
  ),
  Claim(
    'With exact step labels added, RL ends higher than outcome-only',
    'none',
    ends_higher('outcome + exact labels'),
  ),
  Claim(
    'With the scores of a learned PRM added, RL ends higher than outcome-only',
    'none',
    ends_higher('outcome + PRM'),
  ),
  Claim(
    'With the scores of a learned PRM in wrong chains alone, RL ends higher '
    'than outcome-only',
    'none',
    ends_higher('outcome + PRM, wrong chains'),
  ),
  Claim(
    'With scores of a learned PRM whose weight falls to 0, RL ends higher than '
    'outcome-only',
    'none',
    ends_higher('outcome + PRM, decaying'),
  ),
  Claim(
    'With the scores of a PRM that is refreshed on chains of the policy, RL '
    'ends higher than outcome-only',
    'none',
    ends_higher('outcome + refreshed PRM'),
  ),
  Claim(
    'With process advantages (PAV) by a PRM that learned from rollouts, RL '
    'ends higher than outcome-only',
    'none',
    ends_higher('outcome + PAV'),
  ),
  Claim(
    'With process advantages (PAV) by a PRM that began as the policy and '
    'learned from rollouts of its chains, RL ends higher than outcome-only',
    'none',
    ends_higher('outcome + PAV, own chains'),
  ),
  Claim(
    'With process advantages (PAV) of the best of four rollouts by a PRM that '
    'began as the policy, RL ends higher than outcome-only',
    'none',
    ends_higher('outcome + PAV, best of 4'),
  ),
  Claim(
    'With process advantages (PAV) of the best of four rollouts by a PRM that '
    'began as the policy, RL reaches the accuracy that outcome-only ends with '
    'from fewer chains',
    '5 to 6x (Setlur et al., 2025)',
    fewer_chains('outcome + PAV, best of 4'),
  ),
  Claim(
    'With the lowest score of three learned PRMs added, RL ends higher than '
    'outcome-only',
    'none',
    ends_higher('outcome + lowest of 3 PRMs'),
  ),
)

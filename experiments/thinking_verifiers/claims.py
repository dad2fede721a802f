"""The claims of thinking_verifiers."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found, baseline, judge, lead
from experiments.thinking_verifiers.run import (
  DOMAINS,
  LIKE,
  ORM,
  OUTCOME,
  PRM,
  RL,
  SAMPLES,
  SFT,
  rows_of,
)

FEW, MANY = SAMPLES[0], SAMPLES[-1]
Arm = tuple[str, int]


def values(
  document: Mapping[str, Any], domain: str, arm: Arm, value: str
) -> list[float] | None:
  """Returns a number of each seed; None where it was not measured."""
  found = rows_of(document, domain, arm[0], LIKE, arm[1])
  return [row[value] for row in found] or None


def leads(ours: Arm, theirs: Arm, value: str, *domains: str) -> Finder:
  """Makes a finder of whether one arm has more of a value than another."""

  def find(document: Mapping[str, Any]) -> Found:
    cases = [
      lead(
        values(document, domain, ours, value),
        values(document, domain, theirs, value),
        domain,
      )
      for domain in domains
    ]
    null = 'noise' if value == 'f1' else 'majority'
    shown = [
      baseline(f'{domain}: {null}', values(document, domain, theirs, null))
      for domain in domains
    ]
    return judge(cases, '; '.join(shown))

  return find


CLAIMS = (
  Claim(
    'A critic that writes once finds more first errors than a PRM with the '
    'same backbone and labels (F1)',
    'R-PRM 70.4 against 56.5 on ProcessBench (She et al., 2025)',
    leads((SFT, FEW), (PRM, 0), 'f1', *DOMAINS),
  ),
  Claim(
    'RL on its own verdicts makes a trained critic find more of them (F1)',
    'StepWiser (Xiong et al., 2025)',
    leads((RL, FEW), (SFT, FEW), 'f1', *DOMAINS),
  ),
  Claim(
    'Sixteen critiques pick better than one (best of 16)',
    'GenPRM and ThinkPRM scale with parallel critiques',
    leads((SFT, MANY), (SFT, FEW), 'picked', *DOMAINS),
  ),
  Claim(
    'Beyond arithmetic a critic of outcomes picks better than one of steps '
    '(best of 16)',
    'over fourteen domains (arXiv 2510.00492)',
    leads((OUTCOME, MANY), (SFT, MANY), 'picked', 'logic'),
  ),
  Claim(
    'Beyond arithmetic an ORM picks better than a PRM (best of 16)',
    'about equal (arXiv 2510.00492)',
    leads((ORM, 0), (PRM, 0), 'picked', 'logic'),
  ),
)

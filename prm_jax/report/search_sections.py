"""Makes the sections of a search and of its abstention filter.

They turn what `evals.search.search_section` (in results.json) and
`evals.abstain.abstain_section` (in abstain.json) found into what the template
shows.
"""

from collections.abc import Mapping
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.report.chain_views import crop
from prm_jax.report.values import NOTHING, format_percent, is_number
from prm_jax.runtime.errors import UserError

MAX_DECISIONS = 24
COSTS = {
  'samples': 'completions requested',
  'rounds': 'rounds',
  'tokens': 'tokens written by the policy',
  'prompt_tokens': 'tokens read by the policy',
  'scored_tokens': 'tokens read by the PRM',
  'policy_flops': 'FLOPs of the policy',
  'prm_flops': 'FLOPs of the PRM',
  'flops': 'FLOPs of all models',
  'seconds': 'seconds, while other problems ran as well',
}
UNITS = ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'))


def format_amount(value: float) -> str:
  """Formats an amount in few characters: 0.25, 784, 12,345, 3.1G."""
  for unit, suffix in UNITS:
    if value >= 0.9995 * unit:  # else 999.6M would be 1e+03M
      return f'{value / unit:.3g}{suffix}'
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def search(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a summary, the cost of a problem, and what was given up.

  Raises:
    UserError: the section does not have the documented form.
  """
  problems = _count(section, 'problems', 'search')
  failed = _count(section, 'failed', 'search')
  accuracy = section.get('accuracy')
  sentences = []
  if accuracy is not None:
    mean, pair = _interval(accuracy, 'search.accuracy')
    sentences.append(
      f'The chosen answer is right for {format_percent(mean, pair)} of '
      f'{_count(section, "answers_known", "search"):,} problems.'
    )
  else:
    sentences.append(f'{problems:,} problems, whose answers are not known.')
  if failed:
    counted = '' if accuracy is None else ', which count as wrong'
    sentences.append(f'The search failed for {failed:,}{counted}.')
  ended = section.get('ended')
  if is_number(ended) and ended < 1:
    sentences.append(
      f'The chosen chain is complete for {format_percent(ended, None)}.'
    )
  saved = section.get('saved_tokens')
  if is_number(saved) and saved:
    sentences.append(
      f'Rejecting chains early saved an estimated {format_amount(saved)} '
      'tokens.'
    )
  costs = []
  for name, value in _object(section, 'cost', 'search').items():
    mean, (low, high) = _interval(value, f'search.cost.{name}')
    if 'flops' in name and not mean:
      continue  # 0 FLOPs means that they are not known
    costs.append(
      (
        COSTS.get(name, name),
        format_amount(mean),
        f'[{format_amount(low)}, {format_amount(high)}]',
      )
    )
  return {
    'sentence': ' '.join(sentences),
    'costs': costs,
    'dead': _tally(section, 'dead'),
    'failures': _tally(section, 'failures'),
    'lost': section.get('lost') or 0,
  }


# In place of a filter whose search went on after it was chosen.
ABSTAINED_BEFORE: dict[str, Any] = {
  'sentence': 'The search went on after this filter was chosen, which says '
  'nothing of it as it is now: run prm_jax.abstain again.',
  'figure': None,
  'aurc': None,
  'decisions': [],
}


def abstain(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the filter's promise, its measured errors and its decisions.

  Raises:
    UserError: the section does not have the documented form.
  """
  tested = _object(section, 'tested', 'abstain')
  problems = _count(tested, 'problems', 'abstain.tested')
  answered = _count(tested, 'answered', 'abstain.tested')
  wanted, confidence = (
    _fraction(section, name) for name in ('wanted_error', 'confidence')
  )
  decisions = section.get('problems')
  if not isinstance(decisions, list):
    raise UserError('abstain.problems: expected a list')
  promise = f'at most {wanted:.3g} of the answers wrong'
  if section.get('threshold') is None:
    summary = (
      f'No threshold was shown to leave {promise} with confidence '
      f'{confidence:.3g}, so no problem is answered.'
    )
  else:
    summary = (
      f'A problem is answered if its chain score is at least '
      f'{section["threshold"]:.4g}, a calibrated probability of '
      f'{section["probability"]:.2f}: {answered:,} of {problems:,} problems. '
      f'Thresholds were proposed on '
      f'{_count(section, "tried_on", "abstain"):,} held-out problems. On '
      f'{_count(section, "tested_on", "abstain"):,} others this one was shown '
      f'to leave, with confidence {confidence:.3g}, {promise} in the long run '
      'over problems of their kind.'
    )
    if tested.get('error') is not None:
      errors = format_percent(tested['error'], tested['ci95'])
      errors_of_all = format_percent(tested['error_of_all'], None)
      summary += (
        f' Of the answers given here {errors} are wrong; without the filter '
        f'{errors_of_all} of all problems have no right answer.'
      )
  curve = section.get('risk_coverage')
  return {
    'sentence': summary,
    'figure': _risk_figure(curve, section, tested) if curve else None,
    'aurc': curve
    and [
      (name, f'{curve[key]:.4f}' if curve[key] is not None else NOTHING)
      for name, key in (
        ('this PRM', 'aurc'),
        ('an uninformative score', 'aurc_random'),
        ('a perfect score', 'aurc_best'),
      )
    ],
    'decisions': [_decision(each) for each in decisions[:MAX_DECISIONS]],
    'total': len(decisions),
  }


def _risk_figure(
  curve: Mapping[str, Any],
  section: Mapping[str, Any],
  tested: Mapping[str, Any],
) -> markupsafe.Markup | None:
  coverage, risk = curve.get('coverage'), curve.get('risk')
  lists = isinstance(coverage, list) and isinstance(risk, list)
  if not lists or not all(map(is_number, [*coverage, *risk])):
    raise UserError('abstain.risk_coverage: expected coverage and risk')
  if len(coverage) != len(risk) or not coverage:
    return None
  point = None
  if tested.get('error') is not None:
    point = tested['answered'] / tested['problems'], tested['error']
  label = (
    f'Line chart of the error rate against coverage: {100 * risk[0]:.1f}% at '
    f'{100 * coverage[0]:.1f}% answered, {100 * risk[-1]:.1f}% at '
    f'{100 * coverage[-1]:.1f}%'
  )
  drawn = figures.risk_coverage(curve, section['wanted_error'], point, label)
  return markupsafe.Markup(drawn)


def _decision(each: Any) -> dict[str, Any]:
  if not isinstance(each, Mapping) or 'answered' not in each:
    raise UserError('abstain.problems: expected an object with answered')
  weak = each.get('weakest_step') or {}
  likely = each.get('probability')
  outcomes = {True: 'right', False: 'wrong'}
  return {
    'id': crop(str(each.get('id', ''))),
    'answered': bool(each['answered']),
    'answer': crop(str(each.get('answer') or NOTHING)),
    'outcome': outcomes.get(each.get('outcome'), 'not checked'),
    'probability': f'{likely:.2f}' if is_number(likely) else NOTHING,
    'weakest': weak and f'{weak["number"]} ({weak["score"]:.2f})',
    'words': crop(str(weak.get('text', ''))),
  }


def _tally(section: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
  counts = _object(section, name, 'search')
  if not all(map(is_number, counts.values())):
    raise UserError(f'search.{name}: expected counts by reason')
  return [(reason, f'{count:,}') for reason, count in counts.items()]


def _object(section: Mapping[str, Any], name: str, where: str) -> Mapping:
  value = section.get(name)
  if not isinstance(value, Mapping):
    raise UserError(f'{where}.{name}: expected an object')
  return value


def _count(section: Mapping[str, Any], name: str, where: str) -> int:
  value = section.get(name)
  if not isinstance(value, int) or isinstance(value, bool) or value < 0:
    raise UserError(f'{where}.{name} is {value!r}: expected a count')
  return value


def _fraction(section: Mapping[str, Any], name: str) -> float:
  value = section.get(name)
  if not is_number(value) or not 0 <= value <= 1:
    raise UserError(f'abstain.{name} is {value!r}: expected a fraction')
  return value


def _interval(value: Any, where: str) -> tuple[float, tuple[float, float]]:
  if isinstance(value, Mapping) and is_number(value.get('mean')):
    pair = value.get('ci95')
    if isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)):
      return value['mean'], (pair[0], pair[1])
  raise UserError(f'{where}: expected a mean and its interval under ci95')

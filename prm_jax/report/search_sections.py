"""The sections of a search: what it found and took, and where it may abstain.

From `evals.search.search_section` (in results.json) and
`evals.abstain.abstain_section` (in abstain.json) to what the template shows.
"""

from collections.abc import Mapping
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.report.chain_views import cropped
from prm_jax.report.sections import NOTHING, number, quoted
from prm_jax.runtime.errors import UserError

MAX_DECISIONS = 24
COSTS = {
  'samples': 'completions asked for',
  'rounds': 'rounds',
  'tokens': 'tokens written by the policy',
  'prompt_tokens': 'tokens read by the policy',
  'scored_tokens': 'tokens read by the PRM',
  'policy_flops': 'FLOPs of the policy',
  'prm_flops': 'FLOPs of the PRM',
  'flops': 'FLOPs of all models asked',
  'seconds': 'seconds, the others in flight included',
}
UNITS = ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'))


def amount(value: float) -> str:
  """A count or a measure in few characters: 0.25, 784, 12,345, 3.1G."""
  for unit, suffix in UNITS:
    if value >= unit:
      return f'{value / unit:.3g}{suffix}'
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def search(section: Mapping[str, Any]) -> dict[str, Any]:
  """A sentence, the cost of a problem, and what was given up.

  Raises:
    UserError: it has not the documented form.
  """
  problems = _count(section, 'problems', 'search')
  failed = _count(section, 'failed', 'search')
  accuracy = section.get('accuracy')
  sentences = []
  if accuracy is not None:
    mean, pair = _interval(accuracy, 'search.accuracy')
    sentences.append(
      f'The chosen answer is right for {quoted(mean, pair)} of '
      f'{_count(section, "answers_known", "search"):,} problems.'
    )
  else:
    sentences.append(f'{problems:,} problems, without known answers.')
  if failed:
    sentences.append(f'Nothing came of {failed:,}, which count as wrong.')
  ended = section.get('ended')
  if number(ended) and ended < 1:
    sentences.append(
      f'The chosen chain came to its end for {quoted(ended, None)}.'
    )
  saved = section.get('saved_tokens')
  if number(saved) and saved:
    sentences.append(
      f'Chains that were rejected early would have been {amount(saved)} tokens '
      'longer, by estimate.'
    )
  costs = []
  for name, value in _object(section, 'cost', 'search').items():
    mean, (low, high) = _interval(value, f'search.cost.{name}')
    if 'flops' in name and not mean:
      continue  # nobody knows, which is not 0
    costs.append(
      (COSTS.get(name, name), amount(mean), f'[{amount(low)}, {amount(high)}]')
    )
  return {
    'sentence': ' '.join(sentences),
    'costs': costs,
    'dead': _tally(section, 'dead'),
    'failures': _tally(section, 'failures'),
    'lost': section.get('lost') or 0,
  }


def abstain(section: Mapping[str, Any]) -> dict[str, Any]:
  """What the filter promises, what it did, and its decisions.

  Raises:
    UserError: it has not the documented form.
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
  promise = f'at most {wanted:.3g} of the answered wrong'
  if section.get('threshold') is None:
    said = (
      f'No threshold was shown to leave {promise} at confidence '
      f'{confidence:.3g}: nothing is answered.'
    )
  else:
    said = (
      f'Answered is what has a chain score of {section["threshold"]:.4g} or '
      f'more, calibrated {section["probability"]:.2f}: '
      f'{answered:,} of {problems:,} problems. '
      f'{_count(section, "tried_on", "abstain"):,} held-out problems proposed '
      f'thresholds, {_count(section, "tested_on", "abstain"):,} others showed '
      f'for this one that '
      f'with confidence {confidence:.3g} there are {promise}, in the long run '
      'over problems of their kind.'
    )
    if tested.get('error') is not None:
      said += (
        f' Of those answered here {quoted(tested["error"], tested["ci95"])} '
        f'are wrong; of all, {quoted(tested["error_of_all"], None)}.'
      )
  curve = section.get('risk_coverage')
  return {
    'sentence': said,
    'figure': _risk_figure(curve, section, tested) if curve else None,
    'aurc': curve
    and [
      (name, f'{curve[key]:.4f}' if curve[key] is not None else NOTHING)
      for name, key in (
        ('this PRM', 'aurc'),
        ('a score that says nothing', 'aurc_random'),
        ('a perfect one', 'aurc_best'),
      )
    ],
    'decisions': [_decision(each) for each in decisions[:MAX_DECISIONS]],
    'total': len(decisions),
  }


def risk_coverage(
  curve: Mapping[str, Any], wanted: float, point: Any, label: str
) -> str:
  """Error rate among the answered against the share that is answered, as SVG.

  Args:
    curve: `coverage`, `risk` and `aurc_random`, fractions.
    wanted: the error rate that is asked for: a dotted line.
    point: coverage and error of the chosen filter, or None.
    label: the text alternative.
  """
  svg = figures.svg_of(640, 360, label, 'wide')
  box = left, top, right, bottom = 46, 30, 620, 306
  points = list(zip(curve['coverage'], curve['risk'], strict=True))
  highest = max([y for _, y in points] + [wanted, curve['aurc_random'] or 0.0])
  high = min(1.0, 1.1 * highest) or 1.0
  sx = figures.linear(0, 1, left, right)
  sy = figures.linear(0, high, bottom, top)
  x_ticks = [(i / 5, f'{20 * i}') for i in range(6)]
  y_ticks = [(v, f'{100 * v:.4g}') for v in figures.nice_ticks(0, high, 6)]
  names = ('problems answered, %', 'wrong among the answered, %')
  figures.axes(svg, box, sx, sy, x_ticks, y_ticks, names)
  line = f'M{left} {sy(wanted):.1f}H{right}'
  figures.add(svg, 'path', class_='diagonal', d=line)
  at = {'class_': 'tick', 'x': left + 4, 'y': sy(wanted) - 5}
  figures.add(svg, 'text', 'wanted', **at)
  path = figures.line_of(figures.thin(points), sx, sy)
  figures.add(svg, 'path', class_='line prm', d=path)
  if point:
    x, y = sx(point[0]), sy(point[1])
    figures.add(svg, 'circle', class_='dot prm', cx=x, cy=y, r=5)
  return figures.text_of(svg)


def _risk_figure(
  curve: Mapping[str, Any],
  section: Mapping[str, Any],
  tested: Mapping[str, Any],
) -> markupsafe.Markup | None:
  coverage, risk = curve.get('coverage'), curve.get('risk')
  lists = isinstance(coverage, list) and isinstance(risk, list)
  if not lists or not all(map(number, [*coverage, *risk])):
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
  drawn = risk_coverage(curve, section['wanted_error'], point, label)
  return markupsafe.Markup(drawn)


def _decision(each: Any) -> dict[str, Any]:
  if not isinstance(each, Mapping) or 'answered' not in each:
    raise UserError('abstain.problems: expected an object with answered')
  weak = each.get('weakest_step') or {}
  likely = each.get('probability')
  outcomes = {True: 'right', False: 'wrong'}
  return {
    'id': cropped(str(each.get('id', ''))),
    'answered': bool(each['answered']),
    'answer': cropped(str(each.get('answer') or NOTHING)),
    'outcome': outcomes.get(each.get('outcome'), 'not checked'),
    'probability': f'{likely:.2f}' if number(likely) else NOTHING,
    'weakest': weak and f'{weak["number"]} ({weak["score"]:.2f})',
    'words': cropped(str(weak.get('text', ''))),
  }


def _tally(section: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
  counts = _object(section, name, 'search')
  if not all(map(number, counts.values())):
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
  if not number(value) or not 0 <= value <= 1:
    raise UserError(f'abstain.{name} is {value!r}: expected a fraction')
  return value


def _interval(value: Any, where: str) -> tuple[float, tuple[float, float]]:
  if isinstance(value, Mapping) and number(value.get('mean')):
    pair = value.get('ci95')
    if isinstance(pair, list) and len(pair) == 2 and all(map(number, pair)):
      return value['mean'], (pair[0], pair[1])
  raise UserError(f'{where}: expected a mean and its interval under ci95')

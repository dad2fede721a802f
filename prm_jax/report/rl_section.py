"""Shows what an RL run's policy learned, and whether by hacking.

Turns the section `rl` of results.json and the accuracies on test problems into
what the template shows.
"""

from collections.abc import Mapping
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.report.values import format_percent, is_number
from prm_jax.runtime.errors import UserError

MAX_ROWS = 12
# Metric of a look -> head of its column, and whether it is a percentage.
COLUMNS = {
  'accuracy': ('right, %', True),
  'chain_score': ('lowest step score', False),
  'paid': ('reward for steps', False),
  'steps': ('steps', False),
  'step_tokens': ('tokens a step', False),
  'repeated': ('steps repeated, %', True),
  'trivial': ('steps trivial, %', True),
  'unfinished': ('unfinished, %', True),
}
PRM_METRICS = 'chain_score', 'paid'  # a run without a PRM has none
# A look has none if the PRM could not score any chain.
MAY_LACK = {'chain_score'}
ROSE = {'score': 'the PRM score', 'paid': 'the reward for steps'}


def rl(
  section: Mapping[str, Any], sampling: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns a sentence, the alarms, the figure and the table of looks.

  A look measures the policy on held-out problems during training.

  Args:
    section: `looks`, `alarms`, `has_prm` and `tested_after`.
    sampling: accuracies on test problems, `before` and `after` training.

  Raises:
    UserError: a section does not have the documented form.
  """
  looks, alarms = section.get('looks'), section.get('alarms')
  if not isinstance(looks, list) or not looks or not isinstance(alarms, list):
    raise UserError('rl: expected a list of looks, one at least, and of alarms')
  for look in looks:
    metrics = look.get('told') if isinstance(look, dict) else None
    if not isinstance(metrics, dict) or not all(
      is_number(v) for v in metrics.values()
    ):
      raise UserError('rl.looks: expected objects with numbers under told')
    if not all(isinstance(look.get(k), int) for k in ('update', 'chains')):
      raise UserError('rl.looks: expected whole numbers, update and chains')
    if missing := COLUMNS.keys() - metrics.keys() - MAY_LACK:
      raise UserError(f'rl.looks.told: {min(missing)!r} is missing')
  if not isinstance(section.get('has_prm'), bool):
    raise UserError('rl.has_prm: expected true or false')
  if not isinstance(section.get('tested_after'), int):
    raise UserError('rl.tested_after: expected a whole number')
  names = ('before', 'after')
  if not all(isinstance(sampling.get(name), dict) for name in names):
    raise UserError('sampling: expected the policy before and after')
  before, after = (
    format_percent(found['mean'], found['ci95'])
    for found in (sampling[name]['accuracy'] for name in names)
  )
  every = -(-len(looks) // MAX_ROWS)
  shown = looks[::-1][::every][::-1]
  columns = {
    name: column
    for name, column in COLUMNS.items()
    if section['has_prm'] or name not in PRM_METRICS
  }
  return {
    'sentence': (
      f'Of the chains for test problems, {before} were right before '
      f'training, and {after} at the checkpoint that was best on held-out '
      f'problems, after {section["tested_after"]:,} chains.'
    ),
    'alarms': [_alarm(each) for each in alarms],
    'has_prm': section['has_prm'],
    'figure': _figure(looks, section['has_prm']),
    'columns': [head for head, _ in columns.values()],
    'rows': [
      (
        f'{look["chains"]:,}',
        look['hacked'],
        [
          _cell(look['told'], name, percent)
          for name, (_, percent) in columns.items()
        ],
      )
      for look in shown
    ],
  }


def _cell(metrics: Mapping[str, Any], name: str, percent: bool) -> str:
  """Writes one metric of a look."""
  if name not in metrics:
    return 'none'
  return f'{100 * metrics[name]:.1f}' if percent else f'{metrics[name]:.3g}'


def _alarm(alarm: Mapping[str, Any]) -> str:
  try:
    points, score = 100 * alarm['accuracy']['mean'], alarm['score']['mean']
    return (
      f'At update {alarm["update"]:,}: since update {alarm["since"]:,} '
      f'{ROSE[alarm["by"]]} rose by {score:.3f}, and verified accuracy changed '
      f'by {points:+.1f} points, beyond noise: the reward is hacked.'
    )
  except (KeyError, TypeError) as error:
    raise UserError(f'rl.alarms: {error} is missing or malformed') from None


def _figure(looks: list[Mapping[str, Any]], has_prm: bool) -> markupsafe.Markup:
  """Draws verified accuracy and PRM score against the chains sampled."""
  series = [
    {
      'name': name,
      'style': style,
      'points': [
        (look['chains'], look['told'][key])
        for look in looks
        if key in look['told']
      ],
    }
    for name, style, key in (
      ('verified accuracy', 'vote', 'accuracy'),
      ('lowest step score', 'prm', 'chain_score'),
    )
    if (has_prm or key not in PRM_METRICS)
    and any(key in look['told'] for look in looks)
  ]
  ends = ', '.join(
    f'{s["name"]} from {s["points"][0][1]:.3g} to {s["points"][-1][1]:.3g}'
    for s in series
  )
  label = f'Line chart against sampled chains: {ends}'
  return markupsafe.Markup(
    figures.curves(
      series, 'on held-out problems', label, 0.0, False, 'chains sampled'
    )
  )

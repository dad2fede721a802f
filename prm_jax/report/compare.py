"""Puts several runs on one page: their numbers, curves and settings.

Each row is a number that at least one of the runs has; of a curve over N, its
last point. Settings on which all runs agree are left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import markupsafe

from prm_jax.report import figures, files, values
from prm_jax.report.templates import render_template
from prm_jax.report.training_section import smoothing_of
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE

STYLES = ('prm', 'orm', 'vote', 'reference')
MAX_RUNS = len(STYLES)
MAX_FIGURES = 12

# A name, and (text, interval) for each run.
TableRows = list[tuple[str, list[tuple[str, str]]]]


class ComparedRun(NamedTuple):
  """Holds the files of a workdir that are compared: JSON, and metrics."""

  name: str
  results: Mapping[str, Any]
  manifest: Mapping[str, Any]
  config: Mapping[str, Any]
  metrics: Mapping[str, list[tuple[int, float]]]


def read_run(workdir: paths.Path, name: str) -> ComparedRun:
  """Reads the files of a workdir; those beside results.json may be absent.

  Raises:
    UserError: results.json is missing, or a file is malformed.
  """
  manifest, results = files.read_document(workdir)
  config, metrics = workdir / 'config.json', workdir / 'metrics.jsonl'
  return ComparedRun(
    name,
    results,
    manifest,
    paths.read_json(config, DELETE) if config.is_file() else {},
    files.read_metrics(metrics) if metrics.is_file() else {},
  )


def list_numbers(
  section: Mapping[str, Any], path: str = ''
) -> Iterator[tuple[str, float, tuple[float, float] | None]]:
  """Yields (dotted name, value, 95% interval or None) of each number.

  A curve over N gives its last point, whose N is in its name.
  """
  ci95 = section.get('ci95')
  pair = (
    isinstance(ci95, list) and len(ci95) == 2 and all(map(_is_finite, ci95))
  )
  ns = section.get('n')
  last_n = f', N = {ns[-1]}' if isinstance(ns, list) and ns else ''
  for name, value in section.items():
    where = f'{path}.{name}' if path else name
    if isinstance(value, Mapping):
      mean, bounds = value.get('mean'), value.get('ci95')
      if isinstance(mean, list) and mean and _is_finite(mean[-1]):
        last = bounds[-1] if isinstance(bounds, list) and bounds else None
        at = f'{where}{last_n}'
        known = last and None not in last
        yield at, float(mean[-1]), tuple(last) if known else None
        if lead := value.get('over_null'):
          yield from list_numbers({'over_null': lead}, at)
      else:
        yield from list_numbers(value, where)
    elif value is None or values.is_number(value):
      if _is_finite(value):
        yield where, float(value), tuple(ci95) if pair else None
      # An interval beside several numbers belongs to the first of them, which
      # may be unknown.
      pair = False


def _is_finite(value: Any) -> bool:
  return values.is_number(value) and math.isfinite(value)


def flatten(settings: Mapping[str, Any], path: str = '') -> dict[str, str]:
  """Returns all settings as text, by their dotted names."""
  found: dict[str, str] = {}
  for name, value in settings.items():
    where = f'{path}.{name}' if path else name
    if isinstance(value, Mapping):
      found |= flatten(value, where)
    else:
      found[where] = repr(value)
  return found


def number_rows(runs: Sequence[ComparedRun]) -> TableRows:
  """Returns rows of (number, interval), in the order of the first run."""
  found = [
    {name: (value, ci95) for name, value, ci95 in list_numbers(run.results)}
    for run in runs
  ]
  names = list(dict.fromkeys(name for numbers in found for name in numbers))

  def cell(numbers: Mapping[str, Any], name: str) -> tuple[str, str]:
    if name not in numbers:
      return values.NOTHING, ''
    value, ci95 = numbers[name]
    bounds = f'[{_format(ci95[0])}, {_format(ci95[1])}]' if ci95 else ''
    return _format(value), bounds

  return [(name, [cell(numbers, name) for numbers in found]) for name in names]


def _format(value: float) -> str:
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def setting_rows(runs: Sequence[ComparedRun]) -> TableRows:
  """Returns rows of the settings in which the runs differ, sorted by name."""
  found = [flatten(run.config) for run in runs]
  names = sorted({name for settings in found for name in settings})
  rows = [
    (name, [settings.get(name, values.NOTHING) for settings in found])
    for name in names
  ]
  return [
    (name, [(cell, '') for cell in cells])
    for name, cells in rows
    if len(set(cells)) > 1
  ]


def draw_metrics(runs: Sequence[ComparedRun]) -> list[markupsafe.Markup]:
  """Draws a figure for each metric that more than one run logged twice."""
  lines = [
    {
      name: points
      for name, points in run.metrics.items()
      if sum(math.isfinite(value) for _, value in points) > 1
    }
    for run in runs
  ]
  names = list(dict.fromkeys(name for each in lines for name in each))
  shared = [name for name in names if sum(name in each for each in lines) > 1]
  # Losses and metrics on held-out data come first.
  shared.sort(key=lambda name: ('loss' not in name, 'eval/' not in name))
  views = []
  for name in shared[:MAX_FIGURES]:
    series = [
      {'name': run.name, 'style': style, 'points': each[name]}
      for run, each, style in zip(runs, lines, STYLES, strict=False)
      if name in each
    ]
    ends = ', '.join(
      f'{s["name"]} ends with {s["points"][-1][1]:.3g}' for s in series
    )
    label = f'Line chart of {name} against training step: {ends}'
    drawn = figures.curves(series, name, label, smoothing_of(name), small=True)
    views.append(markupsafe.Markup(drawn))
  return views


def compare(workdirs: Sequence[str]) -> str:
  """Returns a page that compares runs, as text.

  Args:
    workdirs: two to MAX_RUNS, each with a results.json. A run is named as its
      workdir is given here.

  Raises:
    UserError: there are too many or too few, or a file is malformed.
  """
  if not 2 <= len(workdirs) <= MAX_RUNS:
    raise UserError(
      f'{len(workdirs)} runs to compare: expected 2 to {MAX_RUNS}, so that '
      'their curves can be told apart'
    )
  if len(set(workdirs)) < len(workdirs):
    raise UserError('a run is named twice; name different workdirs')
  runs = [read_run(paths.open_path(name), name) for name in workdirs]
  try:
    return render(runs)
  except files.MALFORMED as error:
    raise files.not_documented(', '.join(workdirs), error) from error


def render(runs: Sequence[ComparedRun]) -> str:
  """Returns the page as text."""
  return render_template(
    'compare.html.j2',
    runs=[
      (run.name, str(run.manifest.get('name') or ''), style)
      for run, style in zip(runs, STYLES, strict=False)
    ],
    numbers=number_rows(runs),
    settings=setting_rows(runs),
    drawings=draw_metrics(runs),
    all_have_configs=all(run.config for run in runs),
  )

"""Several runs -> one page: their numbers, curves and configs side by side.

A row is a number that at least one of the runs has; of a curve over N, its last
point. What all configs have in common is left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import markupsafe

from prm_jax.report import figures, files, sections
from prm_jax.report.page import SMOOTHING, environment
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE, read_results

STYLES = ('prm', 'orm', 'vote', 'reference')
MAX_RUNS = len(STYLES)
MAX_FIGURES = 12


class Run(NamedTuple):
  """What is compared of a workdir: parsed JSON, and metrics by name."""

  name: str
  results: Mapping[str, Any]
  manifest: Mapping[str, Any]
  config: Mapping[str, Any]
  metrics: Mapping[str, list[tuple[int, float]]]


def read_run(workdir: paths.Path, name: str) -> Run:
  """The files of a workdir; those beside results.json may be absent.

  Raises:
    UserError: results.json is missing, or a file is malformed.
  """
  path = workdir / 'results.json'
  if not path.is_file():
    raise UserError(f'{path}: no such file; evaluate the run, then compare it')
  document = read_results(workdir)
  for section in ('manifest', 'results'):
    if not isinstance(document.get(section), dict):
      raise UserError(f'{path}: expected an object under {section!r}')
  config, metrics = workdir / 'config.json', workdir / 'metrics.jsonl'
  return Run(
    name,
    document['results'],
    document['manifest'],
    paths.read_json(config, DELETE) if config.is_file() else {},
    files.read_metrics(metrics) if metrics.is_file() else {},
  )


def numbers(
  section: Mapping[str, Any], path: str = ''
) -> Iterator[tuple[str, float, tuple[float, float] | None]]:
  """(name, value, 95% interval or None) of all that is one, or ends in one."""
  ci95 = section.get('ci95')
  pair = isinstance(ci95, list) and len(ci95) == 2 and all(map(_known, ci95))
  for name, value in section.items():
    where = f'{path}.{name}' if path else name
    if isinstance(value, Mapping):
      mean, bounds = value.get('mean'), value.get('ci95')
      if isinstance(mean, list) and mean and _known(mean[-1]):
        last = bounds[-1] if isinstance(bounds, list) and bounds else None
        yield where, float(mean[-1]), tuple(last) if last else None
      else:
        yield from numbers(value, where)
    elif _known(value):
      # The interval beside several numbers is that of the first of them.
      yield where, float(value), tuple(ci95) if pair else None
      pair = False


def _known(value: Any) -> bool:
  return sections.number(value) and math.isfinite(value)


def flat(config: Mapping[str, Any], path: str = '') -> dict[str, str]:
  """Settings by their dotted names, as text."""
  found: dict[str, str] = {}
  for name, value in config.items():
    where = f'{path}.{name}' if path else name
    if isinstance(value, Mapping):
      found |= flat(value, where)
    else:
      found[where] = repr(value)
  return found


def number_rows(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
  """Name, and each run's (number, interval); in the order of the first run."""
  found = [
    {name: (value, ci95) for name, value, ci95 in numbers(run.results)}
    for run in runs
  ]
  names = list(dict.fromkeys(name for each in found for name in each))

  def cell(each: Mapping[str, Any], name: str) -> tuple[str, str]:
    if name not in each:
      return sections.NOTHING, ''
    value, ci95 = each[name]
    bounds = f'[{_short(ci95[0])}, {_short(ci95[1])}]' if ci95 else ''
    return _short(value), bounds

  return [(name, [cell(each, name) for each in found]) for name in names]


def _short(value: float) -> str:
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def setting_rows(
  runs: Sequence[Run],
) -> list[tuple[str, list[tuple[str, str]]]]:
  """The settings in which the runs differ."""
  found = [flat(run.config) for run in runs]
  names = sorted({name for each in found for name in each})
  rows = [
    (name, [each.get(name, sections.NOTHING) for each in found])
    for name in names
  ]
  return [
    (name, [(cell, '') for cell in cells])
    for name, cells in rows
    if len(set(cells)) > 1
  ]


def drawings(runs: Sequence[Run]) -> list[markupsafe.Markup]:
  """A figure for each metric that more than one run logged."""
  names = list(dict.fromkeys(name for run in runs for name in run.metrics))
  shared = [
    name for name in names if sum(name in run.metrics for run in runs) > 1
  ]
  # Losses and what was measured on held-out data first.
  shared.sort(key=lambda name: ('loss' not in name, 'eval/' not in name))
  views = []
  for name in shared[:MAX_FIGURES]:
    series = [
      {'name': run.name, 'style': style, 'points': run.metrics[name]}
      for run, style in zip(runs, STYLES, strict=False)
      if name in run.metrics
    ]
    exact = name == 'lr' or name.startswith('eval/')
    ends = ', '.join(
      f'{s["name"]} ends with {s["points"][-1][1]:.3g}' for s in series
    )
    drawn = figures.curves(
      series,
      name,
      f'Line chart of {name} against training step: {ends}',
      0.0 if exact else SMOOTHING,
      True,
    )
    views.append(markupsafe.Markup(drawn))
  return views


def compare(workdirs: Sequence[str]) -> str:
  """The page as text.

  Args:
    workdirs: two to MAX_RUNS, each with results.json; named as they are given.

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
  return (
    environment()
    .get_template('compare.html.j2')
    .render(
      figure_css=markupsafe.Markup(figures.STYLE),
      runs=[
        (run.name, str(run.manifest.get('name') or ''), style)
        for run, style in zip(runs, STYLES, strict=False)
      ],
      numbers=number_rows(runs),
      settings=setting_rows(runs),
      drawings=drawings(runs),
      all_have_configs=all(run.config for run in runs),
    )
  )

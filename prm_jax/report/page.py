"""A run's workdir -> one HTML page.

Reads what the jobs wrote (`results.json`, `metrics.jsonl`, `orm/metrics.jsonl`,
`chains.jsonl`, `trees.jsonl`, `abstain.json`, `config.json`), turns it into
sections of plain text and SVG, and renders them with `page.html.j2`. Everything
that is not SVG from this package goes through jinja2's autoescape: problems and
steps are a model's words and are trusted with nothing. Same files, same bytes.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from prm_jax.data import chains
from prm_jax.report import (
  chain_views,
  explorer,
  figures,
  files,
  rl_section,
  search_sections,
  sections,
)
from prm_jax.report import trees as tree_views
from prm_jax.report.verdict import verdict
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE, read_results

SMOOTHING = 0.02  # share of the run that a loss curve averages over
LOSSES = ('loss', 'step_loss', 'lm_loss')


def write_report(workdir: paths.Path) -> paths.Path:
  """Writes `workdir/report.html` and returns its path.

  Args:
    workdir: holds `results.json`; the other files are shown where present.
  Raises:
    UserError: `results.json` is missing, or a file is malformed.
  """
  workdir = paths.open_path(workdir)
  path = workdir / 'results.json'
  if not path.is_file():
    raise UserError(f'{path}: no such file; evaluate the run, then report it')
  document = read_results(workdir)
  for name in ('manifest', 'results'):
    if not isinstance(document.get(name), dict):
      raise UserError(f'{path}: expected an object under {name!r}')
  curves = {}
  for name, style, folder in (('PRM', 'prm', '.'), ('ORM', 'orm', 'orm')):
    metrics = workdir / folder / 'metrics.jsonl'
    if metrics.is_file():
      curves[name] = {'style': style, 'metrics': files.read_metrics(metrics)}
  shown, total = [], 0
  if (workdir / 'chains.jsonl').is_file():
    shown, total = chain_views.read_chains(workdir / 'chains.jsonl')
  trees, tree_count = [], 0
  if (workdir / 'trees.jsonl').is_file():
    trees, tree_count = tree_views.read_trees(workdir / 'trees.jsonl')
  abstained = read_abstain(workdir / 'abstain.json')
  config = ''
  if (workdir / 'config.json').is_file():
    config_path = workdir / 'config.json'
    config = paths.read_json(config_path, DELETE)
    config = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
  manifest = document['manifest']
  try:
    html = render(
      str(manifest.get('name') or '') or workdir.resolve().name,
      manifest,
      document['results'],
      curves,
      (shown, total),
      config,
      (trees, tree_count),
      abstained,
    )
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  report = workdir / 'report.html'
  # A model may write half of a surrogate pair, which UTF-8 cannot hold.
  paths.write_bytes(report, html.encode('utf-8', errors='replace'))
  return report


def render(
  title: str,
  manifest: Mapping[str, Any],
  results: Mapping[str, Any],
  curves: Mapping[str, Mapping[str, Any]],
  shown_chains: tuple[Sequence[tuple[chains.Chain, dict]], int],
  config: str,
  shown_trees: tuple[Sequence[Mapping[str, Any]], int] = ((), 0),
  abstained: Mapping[str, Any] | None = None,
) -> str:
  """The page as text.

  Args:
    title: heads the page.
    manifest: versions, seeds, fingerprints, the command: shown as a table.
    results: sections by name; the absent ones leave no trace.
    curves: run name -> `style` and `metrics` (see `read_metrics`).
    shown_chains: chains with `scores`, `chosen`, `note`; how many there were.
    config: shown as it is, collapsed.
    shown_trees: views of search trees (see `trees`); how many there were.
    abstained: what `search_sections.abstain` gave; None where there is none.
  Raises:
    UserError: a section does not have the documented form.
  """
  threshold = manifest.get('threshold')
  cut = threshold.get('value') if isinstance(threshold, dict) else threshold
  cut = cut if sections.number(cut) else 0.5
  known = (
    *('best_of_n', 'localisation', 'calibration', 'search', 'rl'),
    'unread',
  )
  for name in known:
    if not isinstance(results.get(name) or {}, dict):
      raise UserError(f'{name}: expected an object')
  searched = results.get('search')
  searched = searched and search_sections.search(searched)
  learned = results.get('rl')
  learned = learned and rl_section.rl(learned, results.get('sampling') or {})
  best = results.get('best_of_n')
  best = best and sections.best_of_n(best, manifest.get('aggregate', 'min'))
  found = results.get('localisation')
  found = found and sections.localisation(found)
  calibrated = [
    sections.calibration(name, values)
    for name, values in (results.get('calibration') or {}).items()
  ]
  rest = {
    name: value
    for name, value in results.items()
    if name not in known and value not in ({}, None)
  }
  others = []
  if unread := results.get('unread'):
    others.append(('steps that were not read', sections.unread(unread)))
  others += [
    (name.replace('_', ' '), sections.plain(value))
    for name, value in rest.items()
    if isinstance(value, dict)
  ]
  if single := {k: v for k, v in rest.items() if not isinstance(v, dict)}:
    others.append(('in all', sections.plain(single)))
  shown, total = shown_chains
  records = [
    chain_views.chain_view(chain, extra, cut)
    for chain, extra in shown[: chain_views.MAX_CHAINS]
  ]
  problems = [
    (problem, list(group))
    for problem, group in itertools.groupby(records, lambda r: r['problem'])
  ]
  return (
    environment()
    .get_template('page.html.j2')
    .render(
      title=title,
      figure_css=markupsafe.Markup(figures.STYLE),
      verdict=verdict(best, found, calibrated),
      search=searched,
      rl=learned,
      abstain=abstained,
      trees=shown_trees[0],
      tree_count=shown_trees[1],
      best=best,
      localisation=found,
      calibrations=calibrated,
      others=others,
      training=training(curves),
      problems=problems,
      explorer=explorer.explorer(shown, cut) if shown else None,
      found=len(shown),
      script_hash=explorer.SCRIPT_HASH,
      shown=len(records),
      total=total,
      cut=f'{cut:.2f}',
      command=manifest.get('command'),
      manifest=sections.plain(
        {k: v for k, v in manifest.items() if k != 'command'}
      ),
      config=config,
    )
  )


def environment() -> jinja2.Environment:
  """Where the templates are; what they are given is escaped."""
  return jinja2.Environment(
    loader=jinja2.PackageLoader('prm_jax', 'report'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )


def read_abstain(path: paths.Path) -> dict[str, Any] | None:
  """The view of a filter; None where none was chosen.

  Raises:
    UserError: the file is malformed.
  """
  if not path.is_file():
    return None
  section = paths.read_json(path, 'run prm_jax.abstain again').get('abstain')
  try:
    if not isinstance(section, dict):
      raise UserError("expected an object under 'abstain'")
    return search_sections.abstain(section)
  except UserError as error:
    raise UserError(f'{path}: {error}; run prm_jax.abstain again') from error


def training(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
  """The loss figure, one small figure for every other metric; None if no run.

  A second run (the ORM baseline) is drawn as a second curve.
  """
  metrics = []
  for run in curves.values():
    metrics += [name for name in run['metrics'] if name not in metrics]
  if not metrics:
    return None
  metrics.sort(key=lambda name: LOSSES.index(name) if name in LOSSES else 9)
  views, broken = [], []
  for name in metrics:
    series = [
      {'name': run, 'style': c['style'], 'points': c['metrics'][name]}
      for run, c in curves.items()
      if name in c['metrics']
    ]
    said = []
    for s in series:
      values = [y for _, y in s['points'] if math.isfinite(y)]
      lost = len(s['points']) - len(values)
      if lost:
        broken.append(f'{s["name"]} {name}: {lost:,}')
      if values:
        last = s['points'][-1][0]
        said.append(
          f'{s["name"]} from {values[0]:.3g} to {values[-1]:.3g} at step '
          f'{last:,}'
        )
    label = f'Line chart of {name} against training step: {"; ".join(said)}'
    # Schedules and evaluations carry no noise to average away.
    exact = name == 'lr' or name.startswith('eval/')
    small = name != metrics[0]
    share = 0.0 if exact else SMOOTHING
    drawn = figures.curves(series, name, label, share, small)
    views.append(markupsafe.Markup(drawn))
  return {
    'main': views[0],
    'name': metrics[0],
    'others': views[1:],
    'runs': [(run, c['style']) for run, c in curves.items()],
    'smoothing': f'{SMOOTHING:.0%}',
    'broken': ', '.join(broken),
  }

"""Turns a run's workdir into one HTML page.

Reads what the jobs wrote (`results.json`, `metrics.jsonl`, `orm/metrics.jsonl`,
`chains.jsonl`, `trees.jsonl`, `abstain.json`, `config.json`), turns it into
sections of plain text and SVG, and renders them with `page.html.j2`. Problems
and steps are the text of a model and are never trusted: jinja2 escapes
everything but the SVG of this package. The same files give the same bytes.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prm_jax.data import chains
from prm_jax.report import (
  chain_views,
  explorer,
  files,
  localisation_section,
  rl_section,
  search_sections,
  sections,
  selection_section,
  values,
)
from prm_jax.report import trees as tree_views
from prm_jax.report.templates import render_template
from prm_jax.report.training_section import training
from prm_jax.report.verdict import verdict
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE, read_results

CHECKED_SECTIONS = (
  *('best_of_n', 'ranking', 'localisation', 'calibration', 'diagnostics'),
  *('unread', 'search', 'rl', 'heads'),
)


@dataclasses.dataclass(frozen=True)
class RunFiles:
  """Holds what the page shows of a workdir, parsed.

  Attributes:
    title: the run's name, which heads the page.
    manifest: versions, seeds, fingerprints and the command.
    results: the sections of results.json by name.
    config: the config as text; '' if there is none.
    chosen_from: name of the data set that best of N chooses from; '' if the
      config does not say it.
    curves: run name -> `style` and `metrics` (see `files.read_metrics`).
    chains: chains with `scores`, `chosen` and `note`.
    chain_count: number of chains in the file.
    trees: views of search trees (see `trees.tree_view`).
    tree_count: number of trees in the file.
    abstained: the view of an abstention filter, or None.
  """

  title: str
  manifest: Mapping[str, Any]
  results: Mapping[str, Any]
  config: str
  chosen_from: str
  curves: Mapping[str, Mapping[str, Any]]
  chains: Sequence[tuple[chains.Chain, dict]]
  chain_count: int
  trees: Sequence[Mapping[str, Any]]
  tree_count: int
  abstained: Mapping[str, Any] | None


def write_report(workdir: paths.Path) -> paths.Path:
  """Writes `workdir/report.html` and returns its path.

  Args:
    workdir: holds `results.json`; the other files are shown where present.

  Raises:
    UserError: `results.json` is missing, or a file is malformed.
  """
  workdir = paths.open_path(workdir)
  run = read_run_files(workdir)
  try:
    html = render(run)
  except UserError as error:
    raise UserError(f'{workdir / "results.json"}: {error}') from error
  except files.MALFORMED as error:
    raise files.not_documented(workdir / 'results.json', error) from error
  report = workdir / 'report.html'
  # A model may write half of a surrogate pair, which UTF-8 cannot hold.
  paths.write_bytes(report, html.encode('utf-8', errors='replace'))
  return report


def read_run_files(workdir: paths.Path) -> RunFiles:
  """Reads the files of a workdir; those beside results.json may be absent.

  Raises:
    UserError: results.json is missing, or a file is malformed.
  """
  manifest, results = files.read_document(workdir)
  curves = {}
  main = 'policy' if {'rl', 'sampling'} & results.keys() else 'PRM'
  for name, style, folder in ((main, 'prm', '.'), ('ORM', 'orm', 'orm')):
    metrics = workdir / folder / 'metrics.jsonl'
    if metrics.is_file():
      curves[name] = {'style': style, 'metrics': files.read_metrics(metrics)}
  shown, chain_count = [], 0
  if (workdir / 'chains.jsonl').is_file():
    shown, chain_count = chain_views.read_chains(workdir / 'chains.jsonl')
  trees, tree_count = [], 0
  if (workdir / 'trees.jsonl').is_file():
    trees, tree_count = tree_views.read_trees(workdir / 'trees.jsonl')
  abstained = read_abstain(workdir)
  config, chosen_from = '', ''
  if (workdir / 'config.json').is_file():
    settings = paths.read_json(workdir / 'config.json', DELETE)
    config = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    evaluation = settings.get('evaluation')
    if isinstance(evaluation, dict):
      chosen_from = str(evaluation.get('best_of_n') or '')
  return RunFiles(
    title=str(manifest.get('name') or '') or workdir.resolve().name,
    manifest=manifest,
    results=results,
    config=config,
    chosen_from=chosen_from,
    curves=curves,
    chains=shown,
    chain_count=chain_count,
    trees=trees,
    tree_count=tree_count,
    abstained=abstained,
  )


def read_abstain(workdir: paths.Path) -> dict[str, Any] | None:
  """Reads the view of an abstention filter; None if there is no such file.

  Raises:
    UserError: the file is malformed.
  """
  path = workdir / 'abstain.json'
  if not path.is_file():
    return None
  document = paths.read_json(path, 'run prm_jax.abstain again')
  section, about = document.get('abstain'), document.get('manifest')
  searched = read_results(workdir).get('dataset')
  if isinstance(about, dict) and about.get('searched', searched) != searched:
    return search_sections.ABSTAINED_BEFORE
  try:
    if not isinstance(section, dict):
      raise UserError("expected an object under 'abstain'")
    return search_sections.abstain(section)
  except UserError as error:
    raise UserError(f'{path}: {error}; run prm_jax.abstain again') from error
  except files.MALFORMED as error:
    raise files.not_documented(path, error) from error


def render(run: RunFiles) -> str:
  """Returns the page as text.

  Raises:
    UserError: a section of the results does not have the documented form.
  """
  threshold = run.manifest.get('threshold')
  cut = threshold.get('value') if isinstance(threshold, dict) else threshold
  cut = cut if values.is_number(cut) else 0.5
  source = threshold.get('source') if isinstance(threshold, dict) else ''
  cuts = {chain_views.own_cut(extra, cut) for _, extra in run.chains}
  shown_cut = f'{cut:.4g}' if cuts <= {cut} else 'the threshold of its set'
  if cuts == {0}:  # of an outcome model, of which no step is flagged
    shown_cut = ''
  shown = [
    chain_views.chain_view(chain, extra, cut)
    for chain, extra in run.chains[: chain_views.MAX_CHAINS]
  ]
  made_with = {k: v for k, v in run.manifest.items() if k != 'command'}
  return render_template(
    'page.html.j2',
    **view_results(
      run.results, run.manifest.get('aggregate', 'min'), run.chosen_from
    ),
    title=run.title,
    abstain=run.abstained,
    trees=run.trees,
    tree_count=run.tree_count,
    training=training(run.curves),
    problems=[
      (problem, list(group))
      for problem, group in itertools.groupby(shown, lambda v: v['problem'])
    ],
    explorer=explorer.build(run.chains, cut) if run.chains else None,
    script_hash=explorer.SCRIPT_HASH,
    shown=len(shown),
    found=len(run.chains),
    total=run.chain_count,
    cut=shown_cut,
    threshold=source,
    command=run.manifest.get('command'),
    manifest=values.flatten_rows(made_with),
    config=run.config,
  )


def view_results(
  results: Mapping[str, Any], aggregate: str, chosen_from: str
) -> dict[str, Any]:
  """Returns the sections of results.json as the template shows them.

  Args:
    results: sections by name. An absent one leaves no trace on the page; an
      unknown one becomes a plain table.
    aggregate: the aggregation that the config names, for best-of-N.
    chosen_from: the data set that best of N chooses from; '' if unknown.

  Raises:
    UserError: a section does not have the documented form.
  """
  for name in CHECKED_SECTIONS:
    if not isinstance(results.get(name) or {}, dict):
      raise UserError(f'{name}: expected an object')
  searched = results.get('search')
  searched = searched and search_sections.search(searched)
  learned = results.get('rl')
  learned = learned and rl_section.rl(learned, results.get('sampling') or {})
  best = results.get('best_of_n')
  best = best and selection_section.best_of_n(best, aggregate)
  ranked = results.get('ranking')
  ranked = ranked and selection_section.ranking(ranked, aggregate)
  localised = results.get('localisation')
  localised = localised and localisation_section.localisation(localised)
  calibrated = [
    sections.calibration(name, found)
    for name, found in (results.get('calibration') or {}).items()
  ]
  unread = results.get('unread') or {}
  return {
    'verdict': verdict(best, localised, calibrated),
    'search': searched,
    'rl': learned,
    'best': best,
    'ranking': ranked,
    'localisation': localised,
    'calibrations': calibrated,
    'covered': sections.coverage(unread, chosen_from),
    'coverages': [
      sections.coverage(unread, name)
      for name in results.get('localisation') or {}
    ],
    'others': list(view_others(results)),
  }


def view_others(
  results: Mapping[str, Any],
) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
  """Yields heading, caption and rows of what has no section of its own."""
  recorded = 'As recorded by the run'
  if unread := results.get('unread'):
    yield 'steps that were not read', recorded, sections.unread(unread)
  if heads := results.get('heads'):
    caption = 'Means over seeds, with 95% intervals over problems and seeds'
    yield 'heads on the frozen backbone', caption, sections.heads(heads)
  if warnings := results.get('diagnostics'):
    caption = 'Signs of trouble that accuracy alone does not show'
    yield 'diagnostics', caption, sections.diagnostics(warnings)
  rest = {
    name: value
    for name, value in results.items()
    if name not in CHECKED_SECTIONS and value not in ({}, None)
  }
  for name, value in rest.items():
    if isinstance(value, dict):
      yield name.replace('_', ' '), recorded, values.flatten_rows(value)
  if single := {k: v for k, v in rest.items() if not isinstance(v, dict)}:
    yield 'in all', recorded, values.flatten_rows(single)

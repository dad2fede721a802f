"""A run's workdir -> one HTML page.

Reads what the evaluation and the loop wrote (`results.json`, `metrics.jsonl`,
`orm/metrics.jsonl`, `chains.jsonl`, `config.json`), turns it into sections of
plain text and SVG, and renders them with `page.html.j2`. Everything that is
not SVG from `figures.py` goes through jinja2's autoescape: problems and steps
are a model's words and are trusted with nothing. Same files, same bytes.
"""

import importlib.resources
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from prm_jax import chains, paths
from prm_jax.errors import UserError
from prm_jax.report import figures, sections
from prm_jax.report.verdict import verdict

MAX_CHAINS = 24
MAX_CHARACTERS = 4000  # of one problem or step: a page is not a data file
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
  document = _object(path.read_bytes(), path)
  for name in ('manifest', 'results'):
    if not isinstance(document.get(name), dict):
      raise UserError(f'{path}: expected an object under {name!r}')
  curves = {}
  for name, style, folder in (('PRM', 'prm', '.'), ('ORM', 'orm', 'orm')):
    metrics = workdir / folder / 'metrics.jsonl'
    if metrics.is_file():
      curves[name] = {'style': style, 'metrics': read_metrics(metrics)}
  shown, total = [], 0
  if (workdir / 'chains.jsonl').is_file():
    shown, total = read_chains(workdir / 'chains.jsonl')
  config = ''
  if (workdir / 'config.json').is_file():
    config_path = workdir / 'config.json'
    config = _object(config_path.read_bytes(), config_path)
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
    )
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  report = workdir / 'report.html'
  # A model may write half of a surrogate pair, which UTF-8 cannot hold.
  report.write_bytes(html.encode('utf-8', errors='replace'))
  return report


def render(
  title: str,
  manifest: Mapping[str, Any],
  results: Mapping[str, Any],
  curves: Mapping[str, Mapping[str, Any]],
  shown_chains: tuple[Sequence[tuple[chains.Chain, dict]], int],
  config: str,
) -> str:
  """The page as text.

  Args:
    title: heads the page.
    manifest: versions, seeds, fingerprints, the command: shown as a table.
    results: sections by name; the absent ones leave no trace.
    curves: run name -> `style` and `metrics` (see `read_metrics`).
    shown_chains: chains with `scores`, `chosen`, `note`; how many there were.
    config: shown as it is, collapsed.
  Raises:
    UserError: a section does not have the documented form.
  """
  threshold = manifest.get('threshold')
  cut = threshold.get('value') if isinstance(threshold, dict) else threshold
  cut = cut if sections.number(cut) else 0.5
  known = ('best_of_n', 'localisation', 'calibration')
  for name in known:
    if not isinstance(results.get(name) or {}, dict):
      raise UserError(f'{name}: expected an object')
  best = results.get('best_of_n')
  best = best and sections.best_of_n(best, manifest.get('aggregate', 'min'))
  found = results.get('localisation')
  found = found and sections.localisation(found)
  calibrated = [
    sections.calibration(name, values)
    for name, values in (results.get('calibration') or {}).items()
  ]
  others = [
    (
      name.replace('_', ' '),
      sections.plain(value if isinstance(value, dict) else {name: value}),
    )
    for name, value in results.items()
    if name not in known and value not in ({}, None)
  ]
  shown, total = shown_chains
  records = [chain_view(chain, extra, cut) for chain, extra in shown]
  problems = [
    (problem, list(group))
    for problem, group in itertools.groupby(records, lambda r: r['problem'])
  ]
  source = importlib.resources.files(__package__) / 'page.html.j2'
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  return environment.from_string(source.read_text(encoding='utf-8')).render(
    title=title,
    figure_css=markupsafe.Markup(figures.STYLE),
    verdict=verdict(best, found, calibrated),
    best=best,
    localisation=found,
    calibrations=calibrated,
    others=others,
    training=training(curves),
    problems=problems,
    shown=len(records),
    total=total,
    cut=f'{cut:.2f}',
    command=manifest.get('command'),
    manifest=sections.plain(
      {k: v for k, v in manifest.items() if k != 'command'}
    ),
    config=config,
  )


def _object(text: bytes, where: object) -> dict[str, Any]:
  try:
    value = json.loads(text)
  except ValueError as error:  # not JSON, or not UTF-8
    raise UserError(f'{where}: not JSON ({error}); write it again') from error
  if not isinstance(value, dict):
    raise UserError(f'{where}: expected a JSON object')
  return value


def _records(path: paths.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  with path.open('rb') as lines:
    for number, line in enumerate(lines, 1):
      if line.strip():
        yield f'{path}:{number}', _object(line, f'{path}:{number}')


def read_metrics(path: paths.Path) -> dict[str, list[tuple[int, float]]]:
  """Metric name -> (step, value) pairs, ascending in step.

  A step that was logged twice (a resumed run) counts as logged last; null is
  NaN.
  """
  logged: dict[str, dict[int, float]] = {}
  for where, record in _records(path):
    step = record.get('step')
    if not isinstance(step, int):
      raise UserError(f'{where}: expected a whole number under step')
    for name, value in record.items():
      if name != 'step' and (value is None or sections.number(value)):
        number = math.nan if value is None else float(value)
        logged.setdefault(name, {})[step] = number
  return {name: sorted(values.items()) for name, values in logged.items()}


def read_chains(path: paths.Path) -> tuple[list, int]:
  """The first MAX_CHAINS (chain, extra fields) of a file, and how many it has.

  Raises:
    UserError: a record is no chain, or has not one score in [0, 1] per step.
  """
  shown, total = [], 0
  for where, record in _records(path):
    total += 1
    if total > MAX_CHAINS:
      continue
    extra = {k: record.pop(k, None) for k in ('scores', 'chosen', 'note')}
    try:
      chain = chains.from_dict(record)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
    known = isinstance(chain.answer, str | None)
    known = known and chain.outcome in (True, False, None)
    if not known or not isinstance(chain.meta, dict):
      raise UserError(
        f'{where}: expected text or null as answer, true, false or null as '
        'outcome, an object as meta'
      )
    scores = extra['scores']
    right = isinstance(scores, list) and len(scores) == len(chain.steps)
    if not right or not all(sections.number(s) and 0 <= s <= 1 for s in scores):
      raise UserError(
        f'{where}: expected {len(chain.steps)} scores in [0, 1], one per step'
      )
    shown.append((chain, extra))
  return shown, total


def chain_view(
  chain: chains.Chain, extra: Mapping[str, Any], cut: float
) -> dict[str, Any]:
  """A chain as the template shows it, steps counted from 1.

  Args:
    chain: with labels or without.
    extra: `scores` in [0, 1], `chosen`, `note`.
    cut: a step that scores below it is flagged; the first flag is shown.
  """
  scores = extra['scores']
  error = chains.first_error(chain.labels)
  flag = next((i for i, score in enumerate(scores) if score < cut), -1)
  if not chain.labels:
    truth = 'steps not labelled'
  elif error >= 0:
    truth = f'first error at step {error + 1}'
  else:
    truth = 'no step labelled wrong'
  steps = []
  for i, (text, score) in enumerate(zip(chain.steps, scores, strict=True)):
    label = chain.labels[i] if chain.labels else None
    rolled = label is not None and label.trials
    steps.append(
      {
        'number': i + 1,
        'text': _cropped(text),
        'score': f'{score:.2f}',
        'share': f'{100 * score:.0f}%',
        'error': i == error,
        'after': 0 <= error < i,
        'flag': i == flag,
        'rollouts': f'{label.successes} of {label.trials}' if rolled else '',
      }
    )
  outcomes = {True: 'right', False: 'wrong', None: 'not checked'}
  return {
    'problem': _cropped(chain.problem),
    'answer': 'none' if chain.answer is None else _cropped(chain.answer),
    'outcome': outcomes[chain.outcome],
    'chosen': bool(extra['chosen']),
    'note': extra['note'] or '',
    'origin': [
      str(chain.meta[name])
      for name in ('dataset', 'generator', 'id')
      if name in chain.meta
    ],
    'truth': truth,
    'flagged': f'flagged at step {flag + 1}' if flag >= 0 else 'none flagged',
    'steps': steps,
  }


def _cropped(text: str) -> str:
  more = len(text) - MAX_CHARACTERS
  if more <= 0:
    return text
  return f'{text[:MAX_CHARACTERS]} … ({more:,} more characters)'


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

"""Runs the PRM job: data, training, evaluation, results, report.

`main.py` runs it for `config.task = 'prm'`, in every process of the job; only
process 0 writes. With `config.orm_baseline` an outcome model with the same
budget is trained on the same chains; it differs only in `targets.supervision`,
and the results show it beside the PRM.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from prm_jax.data.segments import score_pieces, unlike
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals.dev_metrics import dev_metrics
from prm_jax.evals.enough_data import check_data, check_outcomes
from prm_jax.evals.prm import PrmEvaluation, Scoring, headline_aggregate
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs import frozen
from prm_jax.jobs.policy import check_grading
from prm_jax.jobs.settings.training import PrmSettings
from prm_jax.jobs.training import TrainingJob, open_job, train_best
from prm_jax.report import write_report
from prm_jax.runtime import processes
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]


def run(settings: PrmSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  check_votes(settings.evaluation, settings.data.kind)
  opened = open_job(settings, workdir, log)
  orm, of_heads, wanted = None, {}, settings.evaluation
  if not settings.frozen.heads:
    wanted = dataclasses.replace(wanted, max_dev_problems=0)
  check(opened, wanted, log)
  if settings.frozen.heads:
    frozen.check(opened, workdir, log)
  workdir.claim(opened.dataset.fingerprint)
  if settings.frozen.heads:
    dev = prm_evaluation.some_problems(
      opened.dataset.dev, wanted.max_dev_problems
    )
    limited = dataclasses.replace(opened.dataset, dev=dev)
    prm, of_heads = frozen.fit(opened._replace(dataset=limited), workdir, log)
  else:
    name = 'orm' if settings.targets.supervision == 'outcome' else 'prm'
    prm = train_model(name, opened, workdir, log)
  if settings.orm_baseline:
    targets = dataclasses.replace(settings.targets, supervision='outcome')
    # A head that was kept judges steps, which would be a start of its own.
    of_outcomes = dataclasses.replace(
      settings, targets=targets, keep_head=False
    )
    baseline = opened._replace(settings=of_outcomes)
    orm = train_model('orm', baseline, workdir.below('orm'), log)
  found = prm_evaluation.evaluate(
    wanted,
    settings.targets,
    opened.dataset,
    prm,
    orm,
    settings.seed,
    log,
  )
  about = opened.manifest() | {
    'aggregate': headline_aggregate(settings.evaluation, settings.targets),
    'threshold': found.threshold,
    'wall_seconds': round(time.monotonic() - began, 1),
  }
  results = found.results | of_heads
  workdir.write_lines('step_scores.jsonl', found.step_scores)
  workdir.write_lines('chains.jsonl', found.shown)
  # The last one, as it says that the job is done.
  workdir.write_results(about, results)
  processes.first_alone('report', show, results, workdir, log)


def check_votes(wanted: PrmEvaluation, kind: str) -> None:
  """Raises UserError if votes among texts are wanted and cannot be counted.

  Args:
    kind: kind of the data; answers of other kinds need no library.
  """
  if wanted.best_of_n and kind == 'files':
    check_grading(kind)


def check(opened: TrainingJob, wanted: PrmEvaluation, log: Log) -> None:
  """Checks before hours of work that the data allow the job.

  Args:
    wanted: the evaluation at its end.
  """
  settings, dataset = opened.settings, opened.dataset
  for name, chains in dataset.evaluations.items():
    if apart := unlike(dataset.train, chains, settings.data.segments):
      log(f'WARNING: {name} has {apart}; see data.segments')
  check_data(wanted, settings.targets, dataset)
  if settings.orm_baseline:
    check_outcomes(settings.evaluation, dataset, 'orm_baseline=False')
  elif settings.targets.supervision == 'outcome':
    process = "targets.supervision='process'"
    check_outcomes(settings.evaluation, dataset, process)


def train_model(
  name: str, opened: TrainingJob, workdir: Workdir, log: Log
) -> Scoring:
  """Trains, or resumes, and returns the scoring by the best checkpoint."""
  settings, described = opened.settings, opened.model.described
  scorer = Scorer(
    None,  # set when it scores
    described.model,
    described.head,
    described.format,
    opened.mesh,
  )
  dev = prm_evaluation.some_problems(
    opened.dataset.dev, settings.evaluation.max_dev_problems
  )

  score = score_pieces(
    functools.partial(prm_evaluation.score_chains, scorer),
    settings.data.segments,
    last=settings.targets.supervision == 'outcome',
  )

  def evaluate(params: Any) -> dict[str, float]:
    scorer.params = described.attached(params)
    scores = score(dev)
    scorer.params = None
    return dev_metrics(dev, scores, settings.targets)

  scorer.params = train_best(name, opened, workdir, evaluate, log)
  return score


def show(results: Mapping[str, Any], workdir: Workdir, log: Log) -> None:
  """Prints the table and writes the report."""
  print_table(results, log)
  log(f'report: {write_report(workdir.path)}')


def print_table(results: Mapping[str, Any], log: Log) -> None:
  """Prints the main numbers of a run."""
  curve = results.get('best_of_n')
  if curve:
    log('')
    log('best of N       ' + ''.join(f'{n:>8}' for n in curve['n']))
    for name, values in curve.items():
      if name != 'n':
        cells = ''.join(f'{100 * mean:8.1f}' for mean in values['mean'])
        log(f'{name:16}{cells}')
  if 'localisation' in results:
    log('')
    log('first error           F1   error   right   best trivial F1')
  for name, found in results.get('localisation', {}).items():
    trivial, base = max(
      (base['f1'] or 0.0, which) for which, base in found['baselines'].items()
    )
    log(
      f'{name:16}{100 * found["f1"]:8.1f}{100 * found["acc_error"]:8.1f}'
      f'{100 * found["acc_correct"]:8.1f}   {100 * trivial:.1f} ({base})'
    )
  print_heads(results.get('heads', {}), log)
  for name, count in results.get('unread', {}).items():
    log(
      f'{name}: {count["steps"]:,} of {count["of_steps"]:,} steps, in '
      f'{count["chains"]:,} of {count["of_chains"]:,} chains, lie beyond the '
      "PRM's window and have no score"
    )
  log('')


def print_heads(heads: Mapping[str, Any], log: Log) -> None:
  """Prints what heads on a frozen backbone are worth, means over seeds."""
  if heads:
    log('')
    log('head                set          F1    95% interval    step AUC')
  for name, found in heads.items():
    for head, values in found.items():
      low, high = values['ci95']
      auc = values.get('auc', {}).get('value', math.nan)
      log(
        f'{head:20}{name:8}{100 * values["f1"]:7.1f}'
        f'{100 * low:8.1f} to {100 * high:4.1f}{auc:12.3f}'
      )

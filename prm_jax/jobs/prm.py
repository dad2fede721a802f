"""The PRM job, end to end: data, training, evaluation, results, report.

What `main.py` runs for `config.task = 'prm'`, in every process of the job; what
is written process 0 writes alone. With `config.orm_baseline` an
outcome model with the same budget is trained on the same chains, differing in
`targets.supervision` alone, and stands beside the PRM in the results.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prm_jax.evals import prm as prm_evaluation
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs.training import Job, open_job, train_best
from prm_jax.report import write_report
from prm_jax.runtime import manifest, paths, processes

Log = Callable[[str], None]


def train_model(name: str, job: Job, workdir: paths.Path, log: Log) -> Scorer:
  """Trains, or goes on from the last checkpoint, and opens the best one."""
  settings, dataset = job.settings, job.dataset
  described = settings.described
  scorer = Scorer(
    None,  # set when it scores: merged adapters are a backbone of their own
    described.model,
    described.head,
    described.format,
    job.mesh,
  )
  dev = prm_evaluation.some_problems(
    dataset.dev, job.config['evaluation']['max_dev_problems']
  )

  def evaluate(params: Any) -> dict[str, float]:
    scorer.params = described.merged(params)
    scores = prm_evaluation.score_chains(scorer, dev)
    scorer.params = None
    return prm_evaluation.dev_metrics(dev, scores, settings.targets)

  scorer.params = train_best(name, job, workdir, evaluate, log)
  return scorer


def print_table(results: Mapping[str, Any], log: Log) -> None:
  """The numbers that a run is judged by, for the console."""
  curve = results.get('best_of_n')
  if curve:
    log('')
    log('best of N     ' + ''.join(f'{n:>8}' for n in curve['n']))
    for name, values in curve.items():
      if name != 'n':
        cells = ''.join(f'{100 * mean:8.1f}' for mean in values['mean'])
        log(f'{name:14}{cells}')
  if 'localisation' in results:
    log('')
    log('first error         F1   error   right   best trivial F1')
  for name, found in results.get('localisation', {}).items():
    trivial, base = max(
      (base['f1'] or 0.0, which) for which, base in found['baselines'].items()
    )
    log(
      f'{name:14}{100 * found["f1"]:8.1f}{100 * found["acc_error"]:8.1f}'
      f'{100 * found["acc_correct"]:8.1f}   {100 * trivial:.1f} ({base})'
    )
  for name, count in results.get('unread', {}).items():
    log(
      f'{name}: {count["steps"]:,} of {count["of_steps"]:,} steps, in '
      f'{count["chains"]:,} of {count["of_chains"]:,} chains, lie beyond '
      'data.max_length and have no score'
    )
  log('')


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  job = open_job(config, workdir, log)
  targets = job.settings.targets
  name = 'orm' if targets.supervision == 'outcome' else 'prm'
  prm, orm = train_model(name, job, workdir, log), None
  if config['orm_baseline']:
    outcome = dataclasses.replace(targets, supervision='outcome')
    settings = dataclasses.replace(job.settings, targets=outcome)
    orm = train_model(
      'orm', job._replace(settings=settings), workdir / 'orm', log
    )
  results, threshold, shown = prm_evaluation.evaluate(
    config, targets, job.dataset, prm, orm, log
  )
  about = job.manifest() | {
    'aggregate': config['evaluation']['aggregate'],
    'threshold': threshold,
    'wall_seconds': round(time.monotonic() - began, 1),
  }
  processes.first_alone(
    'results',
    lambda: _write_results(
      workdir, {'manifest': about, 'results': results}, shown, log
    ),
  )


def _write_results(
  workdir: paths.Path,
  found: Mapping[str, Any],
  shown: Sequence[Mapping[str, Any]],
  log: Log,
) -> None:
  """results.json, the chains that are shown, the table and the report."""
  manifest.write_json(workdir / 'results.json', found)
  lines = ''.join(
    json.dumps(record, ensure_ascii=False) + '\n' for record in shown
  )
  paths.write_text(workdir / 'chains.jsonl', lines)
  print_table(found['results'], log)
  log(f'report: {write_report(workdir)}')

"""The PRM job, end to end: data, training, evaluation, results, report.

What `main.py` runs for `config.task = 'prm'`, in every process of the job; what
is written process 0 writes alone. With `config.orm_baseline` an
outcome model with the same budget is trained on the same chains, differing in
`targets.supervision` alone, and stands beside the PRM in the results.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from prm_jax import loading, manifest, paths, processes
from prm_jax.checkpoints import Checkpoints
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.pipeline import make_batches, take_census
from prm_jax.data.shards import Share, share_of_process
from prm_jax.errors import UserError
from prm_jax.evals import prm as prm_evaluation
from prm_jax.metrics import MetricWriter
from prm_jax.optim import make_optimizer, make_schedule
from prm_jax.report import write_report
from prm_jax.scorer import Scorer
from prm_jax.settings import Settings, check_mesh, settings_of
from prm_jax.sharding import make_mesh
from prm_jax.train import (
  compile_train_step,
  fit,
  make_train_step,
)
from prm_jax.train_state import abstract_state, init_state, make_init

Log = Callable[[str], None]


def train_model(
  name: str,
  config: Mapping[str, Any],
  settings: Settings,
  dataset: Dataset,
  mesh: Mesh,
  share: Share,
  workdir: paths.Path,
  log: Log,
) -> Scorer:
  """Trains, or goes on from the last checkpoint, and opens the best one."""
  loop, data, described = settings.loop, config['data'], settings.described
  processes.first_alone('model', lambda: _describe(workdir, described))
  log(f'{name}: counting what the {len(dataset.train):,} chains teach')
  census = take_census(dataset.train, described.format, settings.targets)
  log(f'{name}: {census.summary()}')
  batches = iter(
    make_batches(
      dataset.train,
      census,
      described.format,
      settings.targets,
      batch_size=data['batch_size'],
      row_length=data['row_length'],
      max_steps_per_row=data['max_steps_per_row'],
      seed=config['seed'],
      share=share,
    )
  )

  optimizer = make_optimizer(settings.optim, loop.steps)
  init = make_init(
    described.model,
    described.head,
    optimizer,
    described.lora,
    lm_loss=settings.loss.lm_weight > 0,
  )
  checkpoints = Checkpoints(
    workdir / 'checkpoints', loop.keep, loop.best_metric
  )
  processes.check_same(
    'the last checkpoint',
    str(checkpoints.latest),
    'wait until the file system shows the same to all, and start them again',
  )
  if checkpoints.latest is None:
    backbone = None if settings.base is None else settings.base.load(mesh)
    state = init_state(init, mesh, config['seed'], backbone)
  else:
    state = checkpoints.restore(abstract_state(init, mesh), batches)
    log(f'{name}: going on from step {checkpoints.latest:,}')
  step_fn = compile_train_step(
    make_train_step(
      described.model,
      described.head,
      settings.loss,
      optimizer,
      make_schedule(settings.optim, loop.steps),
      loop.microbatches,
      described.lora,
      loop.head_only_steps,
    ),
    state,
    mesh,
  )

  scorer = Scorer(
    None,  # set when it scores: merged adapters are a backbone of their own
    described.model,
    described.head,
    described.format,
    mesh,
  )

  dev = prm_evaluation.some_problems(
    dataset.dev, config['evaluation']['max_dev_problems']
  )

  def evaluate(params: Any) -> dict[str, float]:
    scorer.params = described.scored(params)
    scores, _ = prm_evaluation.score_chains(scorer, dev)
    scorer.params = None
    return prm_evaluation.dev_metrics(dev, scores, settings.targets)

  writer = MetricWriter(
    workdir,
    int(state.step),
    **config['metrics'],
    writes=processes.is_first(),
  )
  with contextlib.closing(writer):
    state = fit(
      name,
      loop,
      step_fn,
      state,
      batches,
      checkpoints,
      writer,
      evaluate,
      mesh,
      workdir,
      settings.profile,
    )
  checkpoints.close()
  log(f'{name}: best checkpoint is step {checkpoints.best:,}')
  best = checkpoints.load_params(
    described.abstract_params(mesh), checkpoints.best
  )
  scorer.params = described.scored(best)
  return scorer


def _describe(workdir: paths.Path, described: loading.ModelDescription) -> None:
  """Writes model.json; UserError when the base's tokenizer is another now."""
  paths.make_folder(workdir)
  if (workdir / 'model.json').exists():
    before = loading.read_description(workdir).format.fingerprint()
    if before != described.format.fingerprint():
      raise UserError(
        f'{workdir} was begun with another tokenizer than the base has now; '
        'bring back that base, or choose another --workdir'
      )
  loading.write_description(workdir, described)


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
  log('')


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  settings = settings_of(config)
  mesh = make_mesh(config['mesh'])
  check_mesh(config, settings.described.model, mesh)
  data = config['data']
  share = share_of_process(mesh, data['batch_size'], data['shards'])
  dataset = load_dataset(data, config['seed'], workdir, log)
  processes.first_alone(
    'claim',
    lambda: manifest.claim_workdir(workdir, config, dataset.fingerprint),
  )
  prm = train_model(
    'orm' if settings.targets.supervision == 'outcome' else 'prm',
    config,
    settings,
    dataset,
    mesh,
    share,
    workdir,
    log,
  )
  orm = None
  if config['orm_baseline']:
    outcome = dataclasses.replace(settings.targets, supervision='outcome')
    orm = train_model(
      'orm',
      config,
      dataclasses.replace(settings, targets=outcome),
      dataset,
      mesh,
      share,
      workdir / 'orm',
      log,
    )
  results, threshold, shown = prm_evaluation.evaluate(
    config, settings.targets, dataset, prm, orm, log
  )
  about = manifest.describe(config) | {
    'name': config['name'],
    'aggregate': config['evaluation']['aggregate'],
    'data_fingerprint': dataset.fingerprint,
    'encoding_fingerprint': settings.described.format.fingerprint(),
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

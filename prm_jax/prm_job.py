"""The PRM job, end to end: data, training, evaluation, results, report.

What `main.py` runs for `config.task = 'prm'`. With `config.orm_baseline` an
outcome model with the same budget is trained on the same chains, differing in
`targets.supervision` alone, and stands beside the PRM in the results.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax import manifest
from prm_jax.chains import Chain, to_dict
from prm_jax.checkpoints import Checkpoints
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.pipeline import make_batches, take_census
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.encoding import DoesNotFit
from prm_jax.evals import calibration, suite
from prm_jax.metrics import MetricWriter
from prm_jax.optim import make_optimizer, make_schedule
from prm_jax.report import write_report
from prm_jax.score import aggregate
from prm_jax.scorer import Scorer, abstract_params
from prm_jax.settings import Settings, check_mesh, settings_of
from prm_jax.sharding import make_mesh
from prm_jax.train import (
  abstract_state,
  compile_train_step,
  fit,
  init_state,
  make_init,
  make_train_step,
)

Log = Callable[[str], None]


def score_chains(
  scorer: Scorer, chains: Sequence[Chain]
) -> tuple[list[np.ndarray], int]:
  """Step scores of chains, and how many steps did not fit the window.

  Samples of one problem are scored together, sharing its prompt. A step that
  does not fit is not judged: it gets the score 1, so that it is never flagged.
  """
  fitting, unread = [], 0
  for chain in chains:
    try:
      fits = len(scorer.format.encode(chain.problem, chain.steps).step_ends)
    except DoesNotFit:
      fits = 0
    fitting.append(fits)
    unread += len(chain.steps) - fits

  groups: dict[str, list[int]] = {}
  for i, chain in enumerate(chains):
    if fitting[i]:
      groups.setdefault(chain.problem, []).append(i)
  scores = [np.ones(len(chain.steps), np.float32) for chain in chains]
  alone = [g[0] for g in groups.values() if len(g) == 1]
  pairs = [(chains[i].problem, chains[i].steps[: fitting[i]]) for i in alone]
  for i, read in zip(alone, scorer.score_many(pairs), strict=True):
    scores[i][: fitting[i]] = read
  for problem, members in groups.items():
    if len(members) == 1:
      continue
    _, _, read = scorer.best_of_n(
      problem, [chains[i].steps[: fitting[i]] for i in members]
    )
    for i, values in zip(members, read, strict=True):
      scores[i][: fitting[i]] = values
  return scores, unread


def dev_metrics(
  chains: Sequence[Chain], scores: Sequence[np.ndarray], targets: TargetConfig
) -> dict[str, float]:
  """How well the scores tell right from wrong, as the loss defines them."""
  flat, right = [], []
  for chain, values in zip(chains, scores, strict=True):
    known = step_targets(chain, len(chain.steps), targets)
    keep = known.weights > 0
    flat.append(values[keep])
    right.append(known.values[keep] > 0.5)
  flat, right = np.concatenate(flat), np.concatenate(right)
  auc = calibration.auroc(flat, right)
  metrics = {'eval/brier': float(((flat - right) ** 2).mean())}
  return metrics if auc is None else metrics | {'eval/auc': auc}


def train_model(
  name: str,
  config: Mapping[str, Any],
  settings: Settings,
  dataset: Dataset,
  mesh: Mesh,
  workdir: pathlib.Path,
  log: Log,
) -> Scorer:
  """Trains, or goes on from the last checkpoint, and opens the best one."""
  workdir.mkdir(parents=True, exist_ok=True)
  loop, data = settings.loop, config['data']
  log(f'{name}: counting what the {len(dataset.train):,} chains teach')
  census = take_census(dataset.train, settings.format, settings.targets)
  log(f'{name}: {census.summary()}')
  batches = iter(
    make_batches(
      dataset.train,
      census,
      settings.format,
      settings.targets,
      batch_size=data['batch_size'],
      row_length=data['row_length'],
      max_steps_per_row=data['max_steps_per_row'],
      seed=config['seed'],
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )
  )

  optimizer = make_optimizer(settings.optim, loop.steps)
  init = make_init(settings.model, settings.head, optimizer)
  checkpoints = Checkpoints(
    workdir / 'checkpoints', loop.keep, loop.best_metric
  )
  if checkpoints.latest is None:
    state = init_state(init, mesh, config['seed'])
  else:
    state = checkpoints.restore(abstract_state(init, mesh), batches)
    log(f'{name}: going on from step {checkpoints.latest:,}')
  step_fn = compile_train_step(
    make_train_step(
      settings.model,
      settings.head,
      settings.loss,
      optimizer,
      make_schedule(settings.optim, loop.steps),
      loop.microbatches,
    ),
    state,
    mesh,
  )

  scorer = Scorer(
    state.params, settings.model, settings.head, settings.format, mesh
  )

  def evaluate(params: Any) -> dict[str, float]:
    scorer.params = params
    scores, _ = score_chains(scorer, dataset.dev)
    return dev_metrics(dataset.dev, scores, settings.targets)

  writer = MetricWriter(workdir, int(state.step), **config['metrics'])
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
  )
  writer.close()
  checkpoints.close()
  log(f'{name}: best checkpoint is step {checkpoints.best:,}')
  scorer.params = checkpoints.load_params(
    abstract_params(settings.model, settings.head, mesh), checkpoints.best
  )
  return scorer


def chain_scores(scores: Sequence[np.ndarray], how: str) -> np.ndarray:
  """[M] chain scores of ragged step scores."""
  width = max(len(values) for values in scores)
  mask = np.arange(width) < np.array([len(v) for v in scores])[:, None]
  padded = np.zeros(mask.shape, np.float32)
  padded[mask] = np.concatenate(scores)
  return np.asarray(aggregate(padded, mask, how))


def evaluate_job(
  config: Mapping[str, Any],
  settings: Settings,
  dataset: Dataset,
  prm: Scorer,
  orm: Scorer | None,
  log: Log,
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
  """All sections of results.json, the threshold, and chains to look at."""
  wanted, seed = config['evaluation'], config['seed']
  process = settings.targets.supervision == 'process'
  results: dict[str, Any] = {}
  threshold, shown = {'value': 0.5, 'source': 'fixed'}, []
  if process:
    scores, _ = score_chains(prm, dataset.dev)
    value, position = suite.choose_on_dev(dataset.dev, scores)
    threshold = {
      'value': value,
      'source': f'best F1 on {len(dataset.dev):,} dev chains',
    }
  for name, chains in dataset.evaluations.items():
    log(f'scoring {len(chains):,} chains of {name}')
    scores, unread = score_chains(prm, chains)
    headline = chain_scores(scores, wanted['aggregate'])
    if unread:
      results.setdefault('unread_steps', {})[name] = unread
    if name == wanted['best_of_n']:
      methods = {
        f'prm_{how}': chain_scores(scores, how) for how in wanted['aggregates']
      }
      vote_by = f'prm_{wanted["aggregate"]}'
      if not process:
        methods, vote_by = {'orm': chain_scores(scores, 'last')}, 'orm'
      if orm is not None:
        of_orm, _ = score_chains(orm, chains)
        methods['orm'] = chain_scores(of_orm, 'last')
      results['best_of_n'] = suite.best_of_n_section(
        chains, methods, vote_by, wanted['ns'], seed, wanted['resamples']
      )
    if process:
      results.setdefault('localisation', {})[name] = suite.localisation_section(
        chains, scores, threshold['value'], position, seed, wanted['resamples']
      )
      results.setdefault('calibration', {})[name] = suite.calibration_section(
        chains, scores
      )
      results.setdefault('diagnostics', {})[name] = suite.diagnostics_section(
        chains, scores, headline, threshold['value']
      )
    shown += chains_to_show(chains, scores, headline, wanted['shown_chains'])
  return results, threshold, shown


def chains_to_show(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  headline: np.ndarray,
  count: int,
) -> list[dict[str, Any]]:
  """The best and the worst scored chain of each of the first problems."""
  groups: dict[str, list[int]] = {}
  for i, chain in enumerate(chains):
    groups.setdefault(chain.problem, []).append(i)
  records = []
  for members in groups.values():
    if len(records) >= count:
      break
    best = max(members, key=lambda i: headline[i])
    worst = min(members, key=lambda i: headline[i])
    for i in dict.fromkeys((best, worst)):
      record = to_dict(chains[i])
      record['scores'] = [round(float(s), 4) for s in scores[i]]
      if len(members) > 1:
        record['chosen'] = i == best
        record['note'] = (
          f'{"highest" if i == best else "lowest"} score of '
          f'{len(members)} samples'
        )
      records.append(record)
  return records


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


def run(config: Mapping[str, Any], workdir: pathlib.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  settings = settings_of(config)
  mesh = make_mesh(config['mesh'])
  check_mesh(config, mesh)
  dataset = load_dataset(config['data'], config['seed'], workdir, log)
  manifest.claim_workdir(workdir, config, dataset.fingerprint)
  prm = train_model(
    'orm' if settings.targets.supervision == 'outcome' else 'prm',
    config,
    settings,
    dataset,
    mesh,
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
      workdir / 'orm',
      log,
    )
  results, threshold, shown = evaluate_job(
    config, settings, dataset, prm, orm, log
  )
  about = manifest.describe(config) | {
    'name': config['name'],
    'aggregate': config['evaluation']['aggregate'],
    'data_fingerprint': dataset.fingerprint,
    'encoding_fingerprint': settings.format.fingerprint(),
    'threshold': threshold,
    'wall_seconds': round(time.monotonic() - began, 1),
  }
  manifest.write_json(
    workdir / 'results.json', {'manifest': about, 'results': results}
  )
  lines = ''.join(
    json.dumps(record, ensure_ascii=False) + '\n' for record in shown
  )
  (workdir / 'chains.jsonl').write_text(lines, encoding='utf-8')
  print_table(results, log)
  log(f'report: {write_report(workdir)}')

"""The RL job: a policy in, a better one out, and whether it cheated.

    policy, PRM, problems -> rl/loop.py -> checkpoints, evaluations.jsonl,
      results, report

What `main.py` runs for `config.task = 'rl'`, in every process of the job.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from prm_jax import (
  loading,
  manifest,
  paths,
  policy_job,
  processes,
  step_scorers,
)
from prm_jax.checkpoints import Checkpoints
from prm_jax.data import problems as problems_lib
from prm_jax.data.problems import Problem
from prm_jax.evals import policy as policy_evaluation
from prm_jax.generator import Generator
from prm_jax.hacking_watch import Watch
from prm_jax.metrics import MetricWriter
from prm_jax.models import HeadConfig
from prm_jax.optim import make_optimizer, make_schedule
from prm_jax.policy import StepScorer
from prm_jax.report import write_report
from prm_jax.rl.loop import Learner, Tools, improve
from prm_jax.rl.objective import make_objective
from prm_jax.rl_settings import (
  BEST_METRIC,
  Settings,
  Start,
  Tasks,
  batches_of,
  open_start,
  read_tasks,
  settings_of,
)
from prm_jax.sharding import make_mesh
from prm_jax.train import compile_train_step, make_step
from prm_jax.train_state import (
  TrainState,
  abstract_state,
  init_state,
  make_init,
  split_params,
)

Log = Callable[[str], None]
VALUE_HEAD = HeadConfig('regression')  # read as it is, not clipped


def train(
  config: Mapping[str, Any],
  settings: Settings,
  start: Start,
  policy: Generator,
  prm: StepScorer | None,
  tasks: Tasks,
  checkpoints: Checkpoints,
  watch: Watch,
  mesh: Mesh,
  workdir: paths.Path,
) -> None:
  """Trains, or goes on from a checkpoint; not after an alarm that ends it."""
  if watch.hacked and config['alarm']['stop']:
    return
  loop, described, seed = settings.loop, start.described, config['seed']
  model, lora = described.model, described.lora
  head = VALUE_HEAD if settings.advantage.estimator == 'gae' else None
  optimizer = make_optimizer(settings.optim, loop.steps)
  init = _expect_nothing(make_init(model, head, optimizer, lora))
  data = batches_of(len(tasks.train), loop.problems, seed)
  if checkpoints.latest is None:
    state = init_state(init, mesh, seed, start.load(mesh))
  else:
    state = checkpoints.restore(abstract_state(init, mesh), data)
  reads_reference = settings.loss.kl_weight or settings.kl_in_reward
  step_fn = compile_train_step(
    make_step(
      make_objective(model, settings.loss, lora),
      lambda params: split_params(params, head, lora, lm_loss=True),
      model,
      optimizer,
      make_schedule(settings.optim, loop.steps),
      loop.microbatches,
    ),
    state,
    mesh,
  )
  learner = Learner(
    loop,
    step_fn,
    model,
    lora,
    settings.reward,
    settings.advantage,
    {'backbone': start.load(mesh)} if reads_reference else None,
    settings.kl_in_reward,
    mesh,
    seed,
  )
  tools = Tools(
    policy, prm, learner, lambda params: described.merged(params)['backbone']
  )
  writer = MetricWriter(
    workdir,
    checkpoints.latest or -1,
    **config['metrics'],
    writes=processes.is_first(),
  )
  with contextlib.closing(writer):
    improve(
      loop,
      tools,
      tasks.train,
      state,
      data,
      checkpoints,
      writer,
      watch.look,
      mesh,
      workdir,
    )


def _expect_nothing(init: Callable) -> Callable:
  """States whose value head says 0: a random one is worse than none."""

  def zeroed(key: jax.Array, backbone: Any = None) -> TrainState:
    state = init(key, backbone)
    if 'head' not in state.params:
      return state
    head = jax.tree.map(jnp.zeros_like, state.params['head'])
    return state._replace(params=state.params | {'head': head})

  return zeroed


def tested(
  config: Mapping[str, Any], policy: Generator, problems: Sequence[Problem]
) -> dict[str, Any]:
  """What the policy's samples of the test problems are worth."""
  wanted = config['evaluation']
  completions = policy_evaluation.complete(
    policy, [p.text for p in problems], config['test']['samples']
  )
  return policy_evaluation.sampling_section(
    [p.text for p in problems],
    [p.truth for p in problems],
    completions,
    wanted['ns'],
    config['seed'],
    wanted['resamples'],
  )


def rl_section(
  config: Mapping[str, Any], watch: Watch, best: int
) -> dict[str, Any]:
  """What the looks at held-out problems told.

  Args:
    best: the update whose checkpoint is tested.
  """
  each = config['train']['problems'] * config['train']['samples']
  return {
    'tested_after': best * each,  # chains
    'looks': [
      {
        'update': line['update'],
        'chains': line['update'] * each,
        'told': line['told'],
        'hacked': line['alarm']['hacked'],
      }
      for line in watch.lines
    ],
    'alarms': [
      line['alarm'] | {'update': line['update']} for line in watch.hacked
    ],
  }


def write_chains(workdir: paths.Path, watch: Watch) -> None:
  """The chains that were kept at each look, problem by problem."""
  records = [
    record | {'note': record['meta']['when']}
    for line in watch.lines
    for record in line['chains']
  ]
  order = list(dict.fromkeys(record['problem'] for record in records))
  records.sort(key=lambda record: order.index(record['problem']))
  lines = (json.dumps(each, ensure_ascii=False) for each in records)
  paths.write_text(workdir / 'chains.jsonl', ''.join(f'{x}\n' for x in lines))


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  settings = settings_of(config)
  policy_job.check_grading(config['problems']['kind'])
  mesh = make_mesh(config['mesh'])
  settings.loop.check_devices(mesh.shape['replica'] * mesh.shape['fsdp'])
  start = open_start(config, settings)
  prm = step_scorers.open_scorer(
    config['prm'], config['problems']['arithmetic'], whole=True
  )
  tasks = read_tasks(config)
  names = {'policy': start.name} | ({'prm': prm.name} if prm else {})
  fingerprint = problems_lib.fingerprint([p for part in tasks for p in part])
  fingerprint = ', '.join([fingerprint, *names.values()])

  def claim() -> None:
    manifest.claim_workdir(workdir, config, fingerprint)
    loading.write_description(workdir, start.described)

  processes.first_alone('claim', claim)
  policy = Generator(
    start.load(mesh),
    start.described.model,
    start.described.format,
    mesh,
    settings.sampling,
    config['seed'],
  )
  checkpoints = Checkpoints(
    workdir / 'checkpoints', settings.loop.keep, BEST_METRIC
  )
  latest = -1 if checkpoints.latest is None else checkpoints.latest
  watch = Watch(config, policy, prm, tasks.held_out, workdir, latest, log)
  train(
    config,
    settings,
    start,
    policy,
    prm,
    tasks,
    checkpoints,
    watch,
    mesh,
    workdir,
  )
  checkpoints.close()
  log(f'rl: best checkpoint is update {checkpoints.best:,}')
  best = checkpoints.load_params(
    start.described.abstract_params(mesh), checkpoints.best
  )
  results: dict[str, Any] = {
    'rl': rl_section(config, watch, checkpoints.best),
    'sampling': {},
  }
  for name, backbone in (
    ('before', start.load(mesh)),
    ('after', start.described.merged(best)['backbone']),
  ):
    log(
      f'{name}: {config["test"]["samples"]} chains of {len(tasks.test):,} '
      'test problems'
    )
    policy.take(backbone)
    results['sampling'][name] = tested(config, policy, tasks.test)
  about = manifest.describe(config) | {
    'name': config['name'],
    'data_fingerprint': fingerprint,
    'encoding_fingerprint': start.described.format.fingerprint(),
    **names,
    'best_update': checkpoints.best,
    'sampled_tokens': policy.stats.tokens,
    'wall_seconds': round(time.monotonic() - began, 1),
  }

  def write() -> None:
    write_chains(workdir, watch)
    manifest.write_json(
      workdir / 'results.json', {'manifest': about, 'results': results}
    )
    for name, found in results['sampling'].items():
      low, high = found['accuracy']['ci95']
      log(f'{name}: {found["accuracy"]["mean"]:.1%} [{low:.1%}, {high:.1%}]')
    log(f'report: {write_report(workdir)}')

  processes.first_alone('results', write)

"""The RL job: a policy in, a better one out, and whether it cheated.

    policy, PRM, problems -> rl/loop.py -> checkpoints, evaluations.jsonl,
      results, report

What `main.py` runs for `config.task = 'rl'`, in every process of the job.
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.data import problems as problems_lib
from prm_jax.data.problems import Problem
from prm_jax.evals import policy as policy_evaluation
from prm_jax.inference import loading
from prm_jax.inference.generator import Generator
from prm_jax.jobs import policy as policy_job
from prm_jax.jobs.rl_meshes import Meshes, check_meshes, make_meshes
from prm_jax.jobs.rl_problems import (
  Tasks,
  batches_of,
  check_unseen,
  read_tasks,
  that_fit,
)
from prm_jax.jobs.rl_rating import make_rater, open_prm
from prm_jax.jobs.settings.rl import (
  BEST_METRIC,
  Settings,
  Start,
  open_start,
  settings_of,
)
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.report import write_report
from prm_jax.rl import credit
from prm_jax.rl.hacking_watch import Watch
from prm_jax.rl.loop import Learner, Tools, improve
from prm_jax.rl.objective import make_objective
from prm_jax.rl.rating import Rater
from prm_jax.runtime import manifest, paths, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.sharding import shardings
from prm_jax.runtime.workdir import write_json
from prm_jax.training.loop import compile_train_step, make_step
from prm_jax.training.optim import make_optimizer, make_schedule
from prm_jax.training.train_state import (
  TrainState,
  abstract_state,
  init_state,
  make_init,
  split_params,
)

Log = Callable[[str], None]
VALUE_HEAD = HeadConfig('regression')  # read as it is, not clipped


def make_learning(
  settings: Settings, model: TransformerConfig
) -> tuple[Callable[..., TrainState], Callable]:
  """How the first state is made, and the train step; neither is jitted."""
  loop, lora = settings.loop, settings.lora
  head = VALUE_HEAD if settings.advantage.estimator == 'gae' else None
  optimizer = make_optimizer(settings.optim, loop.steps)
  step = make_step(
    make_objective(model, settings.loss, lora),
    lambda params: split_params(params, head, lora, lm_loss=True),
    model,
    optimizer,
    make_schedule(settings.optim, loop.steps),
    loop.microbatches,
  )
  return _expect_nothing(make_init(model, head, optimizer, lora)), step


def train(
  config: Mapping[str, Any],
  settings: Settings,
  start: Start,
  policy: Generator,
  rater: Rater,
  tasks: Tasks,
  checkpoints: Checkpoints,
  watch: Watch,
  meshes: Meshes,
  workdir: paths.Path,
) -> None:
  """Trains, or goes on from a checkpoint; not after an alarm that ends it."""
  if watch.hacked and config['alarm']['stop']:
    return
  loop, described, seed = settings.loop, start.described, config['seed']
  mesh, model = meshes.training, described.model
  init, step = make_learning(settings, model)
  data = batches_of(len(tasks.train), loop.problems, seed)
  if checkpoints.latest is None:
    state = init_state(init, mesh, seed, start.load(mesh))
  else:
    state = checkpoints.restore(abstract_state(init, mesh), data)
  learner = Learner(
    loop,
    compile_train_step(step, state, mesh),
    model,
    described.lora,
    settings.reward,
    settings.advantage,
    settings.kl_in_reward,
    mesh,
    seed,
  )

  def backbone(params: Any) -> Any:
    written_with = described.merged(params)['backbone']
    if not loop.staleness and meshes.sampling is mesh:
      return written_with
    # A copy: the next step of training takes the place of what it trains.
    placed = shardings(written_with, meshes.sampling)
    return jax.device_put(written_with, placed, may_alias=False)

  tools = Tools(policy, rater, learner, backbone)
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
  config: Mapping[str, Any], watch: Watch, has_prm: bool, best: int
) -> dict[str, Any]:
  """What the looks at held-out problems told.

  Args:
    best: the update whose checkpoint is tested.
  """
  each = config['train']['problems'] * config['train']['samples']
  return {
    'has_prm': has_prm,
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


def write_chains(
  workdir: paths.Path, looks: Sequence[Mapping[str, Any]]
) -> None:
  """The chains that were kept at each look, problem by problem."""
  records = [
    record | {'note': record['meta']['when']}
    for line in looks
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
  meshes = make_meshes(config)
  start = open_start(config['policy']['workdir'], config, settings)
  check_meshes(settings, start.described.model, meshes)
  prm = open_prm(config, settings, start, meshes.sampling)
  tasks = that_fit(read_tasks(config), start.described.format, log)
  for model in (config['policy']['workdir'], config['prm']['path']):
    check_unseen(tasks, model)
  names = {'policy': start.name} | ({'prm': prm.name} if prm else {})
  fingerprint = problems_lib.fingerprint([p for part in tasks for p in part])
  fingerprint = ', '.join([fingerprint, *names.values()])

  def claim() -> None:
    manifest.claim_workdir(workdir, config, fingerprint)
    loading.write_description(workdir, start.described)

  processes.first_alone('claim', claim)
  policy = Generator(
    start.load(meshes.sampling),
    start.described.model,
    start.described.format,
    meshes.sampling,
    settings.sampling,
    config['seed'],
  )
  checkpoints = Checkpoints(
    workdir / 'checkpoints', settings.loop.keep, BEST_METRIC
  )
  latest = -1 if checkpoints.latest is None else checkpoints.latest
  rater = make_rater(
    settings, start, prm, checkpoints, meshes.sampling, config['seed']
  )
  earned = functools.partial(
    credit.process_returns,
    size=config['held_out']['samples'],
    reward=settings.reward,
    config=settings.advantage,
  )
  watch = Watch(
    config,
    policy,
    rater,
    jax.jit(earned),
    tasks.held_out,
    workdir,
    latest,
    log,
  )
  train(
    config,
    settings,
    start,
    policy,
    rater,
    tasks,
    checkpoints,
    watch,
    meshes,
    workdir,
  )
  checkpoints.close()
  log(f'rl: best checkpoint is update {checkpoints.best:,}')

  def best() -> Any:
    shapes = start.described.abstract_params(meshes.sampling)
    params = checkpoints.load_params(shapes, checkpoints.best)
    return start.described.merged(params, give_away=True)['backbone']

  results: dict[str, Any] = {
    'rl': rl_section(config, watch, prm is not None, checkpoints.best),
    'sampling': {},
  }
  lines = watch.lines
  # Nobody judges or compares from here on: their memory is for the test.
  del watch, rater, prm
  for name, read in (
    ('before', functools.partial(start.load, meshes.sampling)),
    ('after', best),
  ):
    log(
      f'{name}: {config["test"]["samples"]} chains of {len(tasks.test):,} '
      'test problems'
    )
    policy.take(read())
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
    write_chains(workdir, lines)
    write_json(
      workdir / 'results.json', {'manifest': about, 'results': results}
    )
    for name, found in results['sampling'].items():
      low, high = found['accuracy']['ci95']
      log(f'{name}: {found["accuracy"]["mean"]:.1%} [{low:.1%}, {high:.1%}]')
    log(f'report: {write_report(workdir)}')

  processes.first_alone('results', write)

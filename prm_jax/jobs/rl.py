"""Runs the RL job: improves a policy, and tests whether it hacked the reward.

    policy, PRM, problems -> rl/loop.py -> checkpoints, evaluations.jsonl,
      results, report

`main.py` runs it for `config.task = 'rl'`, in every process of the job; only
process 0 writes.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.data import problems as problems_lib
from prm_jax.evals import policy as policy_evaluation
from prm_jax.inference import loading
from prm_jax.inference.generator import Generator
from prm_jax.inference.protocols import StepScorer
from prm_jax.inference.server import usage
from prm_jax.jobs.dtypes import settle_dtype
from prm_jax.jobs.learned import check_unseen
from prm_jax.jobs.policies import PRM_USAGE
from prm_jax.jobs.policy import check_grading
from prm_jax.jobs.rl_meshes import Meshes, check_meshes, make_meshes
from prm_jax.jobs.rl_problems import (
  Tasks,
  drop_too_long,
  iterate_batches,
  read_tasks,
)
from prm_jax.jobs.rl_rating import make_rater, open_prm
from prm_jax.jobs.rl_start import BEST_METRIC, Start, open_start
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.models.decoding_params import take_over
from prm_jax.report import write_report
from prm_jax.rl import credit
from prm_jax.rl.hacking_watch import Watch, WatchPlan
from prm_jax.rl.loop import (
  EvaluateUpdate,
  Learner,
  RlRun,
  Terms,
  Tools,
  improve,
)
from prm_jax.rl.objective import make_objective
from prm_jax.rl.rating import Rater
from prm_jax.rl.trees import layout_for
from prm_jax.rl.views import View
from prm_jax.runtime import manifest, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.seals import go_back_to_whole
from prm_jax.runtime.sharding import shardings
from prm_jax.runtime.workdir import Workdir
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
Look = Mapping[str, Any]  # a line of evaluations.jsonl
VALUE_HEAD = HeadConfig('regression')  # its outputs are not clipped


class RlJob(NamedTuple):
  """Holds the settings of an RL job with its devices, models and problems.

  Attributes:
    names: run and checkpoint of the 'policy' and, if there is one, the 'prm'.
  """

  settings: RlSettings
  meshes: Meshes
  start: Start
  prm: StepScorer | Start | None
  names: Mapping[str, str]
  tasks: Tasks

  @property
  def fingerprint(self) -> str:
    """Returns a hash of the problems and models behind the results."""
    problems = [problem for part in self.tasks for problem in part]
    return ', '.join([problems_lib.fingerprint(problems), *self.names.values()])


def run(settings: RlSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  job = open_job(settings, workdir, log)
  policy = make_policy(job)
  go_back_to_whole(workdir / 'checkpoints', log)
  checkpoints = Checkpoints(
    workdir / 'checkpoints', settings.train.keep, BEST_METRIC
  )
  looks = learn(job, policy, checkpoints, workdir, log)
  log(f'rl: best checkpoint is update {checkpoints.best:,}')
  job = job._replace(prm=None)  # the test needs its memory
  results = {
    'rl': rl_section(job, looks, checkpoints.best),
    'sampling': test(job, policy, checkpoints, log),
  }
  about = manifest.describe(settings.seed) | {
    'name': settings.name,
    'data_fingerprint': job.fingerprint,
    'encoding_fingerprint': job.start.described.format.fingerprint(),
    **job.names,
    'best_update': checkpoints.best,
    'wall_seconds': round(time.monotonic() - began, 1),
  }
  if (workdir / PRM_USAGE).exists():
    asked = usage.read(workdir / PRM_USAGE)
    about['prm_server'] = dataclasses.asdict(asked)
  workdir.write_lines('chains.jsonl', kept_chains(looks))
  workdir.write_results(about, results)
  processes.first_alone('report', show, results, workdir, log)


def open_job(settings: RlSettings, workdir: Workdir, log: Log) -> RlJob:
  """Opens models and problems, checks them, and claims the workdir."""
  check_grading(settings.problems.kind)
  settings = settle_dtype(settings, workdir, log)
  meshes = make_meshes(settings)
  start = open_start(settings.policy.workdir, settings)
  check_meshes(settings, start.described.model, meshes)
  prm = open_prm(settings, start, meshes.sampling, workdir)
  tasks = drop_too_long(
    read_tasks(settings, log),
    start.described.format,
    settings.train.problems,
    log,
  )
  unseen = [problem.text for problem in (*tasks.held_out, *tasks.test)]
  for model in (settings.policy.workdir, *settings.prm.trained):
    check_unseen(unseen, model, settings.problems.kind)
  names = {'policy': start.name} | ({'prm': prm.name} if prm else {})
  job = RlJob(settings, meshes, start, prm, names, tasks)
  processes.check_same(
    'the fingerprint of problems and models',
    job.fingerprint,
    'give all processes the same files',
  )
  workdir.claim(job.fingerprint)
  processes.first_alone(
    'model', loading.write_description, workdir.path, start.described
  )
  return job


def make_policy(job: RlJob) -> Generator:
  """Returns the policy that samples, with its initial parameters."""
  mesh, described = job.meshes.sampling, job.start.described
  sampler = job.settings.sampling.sampler
  return Generator(
    take_over(job.start.load(mesh), described.model, mesh, sampler.spread),
    described.model,
    described.format,
    mesh,
    sampler,
    job.settings.seed,
  )


def learn(
  job: RlJob,
  policy: Generator,
  checkpoints: Checkpoints,
  workdir: Workdir,
  log: Log,
) -> Sequence[Look]:
  """Trains the policy under watch; returns the evaluations.

  A run that an alarm ended stays ended: resuming it trains no further.
  """
  settings, mesh = job.settings, job.meshes.sampling
  latest = -1 if checkpoints.latest is None else checkpoints.latest
  rater = make_rater(settings, job.start, job.prm, checkpoints, mesh)
  process_returns = functools.partial(
    credit.process_returns,
    size=settings.held_out.samples,
    reward=settings.reward,
    config=settings.advantage,
  )
  plan = WatchPlan(
    settings.train.updates,
    settings.train.evaluate_every,
    settings.held_out.samples,
    settings.alarm.stop,
    latest,
  )
  watch = Watch(
    plan,
    policy,
    rater,
    jax.jit(process_returns),
    job.tasks.held_out,
    workdir,
    log,
  )
  if not watch.ended:
    train(job, policy, rater, checkpoints, watch.look, workdir)
  checkpoints.close()
  return watch.lines


def train(
  job: RlJob,
  policy: Generator,
  rater: Rater,
  checkpoints: Checkpoints,
  evaluate: EvaluateUpdate,
  workdir: Workdir,
) -> None:
  """Trains the policy, from the start or from the last checkpoint.

  Args:
    evaluate: returns metrics after some updates, BEST_METRIC among them.
  """
  settings, described = job.settings, job.start.described
  loop, seed = settings.train, settings.seed
  mesh, model = job.meshes.training, described.model
  init, step = make_init_and_step(settings, model)
  data = iterate_batches(len(job.tasks.train), loop.problems, seed)
  if checkpoints.latest is None:
    state = init_state(init, mesh, seed, job.start.load_to_train(mesh))
  else:
    state = checkpoints.restore(abstract_state(init, mesh), data)
  values = None
  if settings.advantage.estimator == 'gae':
    values = View('values', model, mesh, loop.rows, described.lora)
  learner = Learner(
    loop,
    Terms(settings.reward, settings.advantage, settings.loss),
    compile_train_step(step, state, mesh),
    values,
    mesh,
    layout_for(model, mesh),
    seed,
  )
  tools = Tools(policy, rater, learner, make_backbone(job))
  writer = MetricWriter(
    workdir.path,
    checkpoints.latest or -1,
    **dataclasses.asdict(settings.metrics),
    writes=processes.is_first(),
  )
  with contextlib.closing(writer):
    improve(
      RlRun(loop, mesh, workdir, checkpoints, writer, evaluate),
      tools,
      job.tasks.train,
      state,
      data,
    )


def make_backbone(job: RlJob) -> Callable[[Any], Any]:
  """Returns a function: parameters as trained -> parameters for sampling."""
  described, meshes = job.start.described, job.meshes
  shared = (
    not job.settings.train.staleness and meshes.sampling is meshes.training
  )

  def backbone(params: Any) -> Any:
    written_with = described.merged(params)['backbone']
    if shared:
      return written_with
    # A copy, because the next train step donates its parameters' memory.
    placed = shardings(written_with, meshes.sampling)
    return jax.device_put(written_with, placed, may_alias=False)

  return backbone


def make_init_and_step(
  settings: RlSettings, model: TransformerConfig
) -> tuple[Callable[..., TrainState], Callable]:
  """Returns two functions: to build the policy's first state, and to train it.

  Neither is jitted.
  """
  loop, lora = settings.train, settings.lora
  head = VALUE_HEAD if settings.advantage.estimator == 'gae' else None
  optimizer = make_optimizer(settings.optim, loop.steps)
  step = make_step(
    make_objective(model, settings.loss, settings.sampling.max_tokens, lora),
    lambda params: split_params(params, head, lora, lm_loss=True),
    model,
    optimizer,
    make_schedule(settings.optim, loop.steps),
    loop.microbatches,
  )
  return zero_head(make_init(model, head, optimizer, lora)), step


def zero_head(init: Callable[..., TrainState]) -> Callable[..., TrainState]:
  """Makes the value head return 0 at first, better than random values."""

  def zeroed(key: jax.Array, backbone: Any = None) -> TrainState:
    state = init(key, backbone)
    if 'head' not in state.params:
      return state
    head = jax.tree.map(jnp.zeros_like, state.params['head'])
    return state._replace(params=state.params | {'head': head})

  return zeroed


def test(
  job: RlJob, policy: Generator, checkpoints: Checkpoints, log: Log
) -> dict[str, Any]:
  """Samples the test problems with the first and the best policy."""
  settings, mesh = job.settings, job.meshes.sampling
  described = job.start.described
  problems = [problem.text for problem in job.tasks.test]
  truths = [problem.truth for problem in job.tasks.test]

  def load_best() -> Any:
    shapes = described.abstract_params(mesh)
    params = checkpoints.load_params(shapes, checkpoints.best)
    return described.merged(params, give_away=True)['backbone']

  sections = {}
  for name, load in (
    ('before', functools.partial(job.start.load, mesh)),
    ('after', load_best),
  ):
    samples = settings.test.samples
    log(f'{name}: {samples} chains of {len(problems):,} test problems')
    policy.set_params(load())
    completions = policy_evaluation.complete(policy, problems, samples)
    sections[name] = policy_evaluation.sampling_section(
      problems,
      truths,
      completions,
      settings.evaluation.ns,
      settings.seed,
      settings.evaluation.resamples,
    )
  return sections


def rl_section(job: RlJob, looks: Sequence[Look], best: int) -> dict[str, Any]:
  """Returns the results.json section on the held-out evaluations.

  Args:
    best: the update whose checkpoint is tested.
  """
  chains = job.settings.train.chains
  return {
    'has_prm': 'prm' in job.names,
    'tested_after': best * chains,
    'looks': [
      {
        'update': look['update'],
        'chains': look['update'] * chains,
        'told': look['told'],
        'hacked': look['alarm']['hacked'],
      }
      for look in looks
    ],
    'alarms': [
      look['alarm'] | {'update': look['update']}
      for look in looks
      if look['alarm']['hacked']
    ],
  }


def kept_chains(looks: Sequence[Look]) -> list[dict[str, Any]]:
  """Returns the chains that each evaluation kept, problem by problem."""
  records = [
    record | {'note': record['meta']['when']}
    for look in looks
    for record in look['chains']
  ]
  order = list(dict.fromkeys(record['problem'] for record in records))
  return sorted(records, key=lambda record: order.index(record['problem']))


def show(results: Mapping[str, Any], workdir: Workdir, log: Log) -> None:
  """Prints the accuracy before and after training, and writes the report."""
  for name, found in results['sampling'].items():
    low, high = found['accuracy']['ci95']
    log(f'{name}: {found["accuracy"]["mean"]:.1%} [{low:.1%}, {high:.1%}]')
  log(f'report: {write_report(workdir.path)}')

"""One job's setting, and one training run in it, from data to best checkpoint.

    config -> open_job -> Job -> train_best -> parameters

Reward models and policies are trained by the same run; a job passes in what
it asks of the parameters between checkpoints.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.pipeline import make_batches, take_census
from prm_jax.data.shards import Share, share_of_process
from prm_jax.inference import loading
from prm_jax.jobs.settings import Settings, check_mesh, settings_of
from prm_jax.runtime import manifest, paths, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  Evaluate,
  TrainingRun,
  compile_train_step,
  fit,
  make_train_step,
)
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import make_optimizer, make_schedule
from prm_jax.training.train_state import abstract_state, init_state, make_init

Log = Callable[[str], None]


class Job(NamedTuple):
  """What a config says, checked, with its devices and its data.

  Attributes:
    share: what this process reads of the data.
  """

  config: Mapping[str, Any]
  settings: Settings
  mesh: Mesh
  share: Share
  dataset: Dataset

  def manifest(self) -> dict[str, Any]:
    """What its results were made with."""
    fmt = self.settings.described.format
    return manifest.describe(self.config) | {
      'name': self.config['name'],
      'data_fingerprint': self.dataset.fingerprint,
      'encoding_fingerprint': fmt.fingerprint(),
    }


def open_job(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> Job:
  """Checks a config, makes or finds its data and claims the workdir."""
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
  return Job(config, settings, mesh, share, dataset)


def train_best(
  name: str,
  job: Job,
  workdir: paths.Path,
  evaluate: Evaluate,
  log: Log,
) -> Any:
  """Trains, or goes on from the last checkpoint, and loads the best one.

  Args:
    name: shown in the progress line.
    evaluate: parameters as trained -> metrics, before every checkpoint.

  Returns:
    The parameters, adapters merged.
  """
  config, settings, mesh = job.config, job.settings, job.mesh
  loop, data, described = settings.loop, config['data'], settings.described
  chains = job.dataset.train
  processes.first_alone('model', lambda: _describe(workdir, described))
  log(f'{name}: counting what the {len(chains):,} chains teach')
  census = take_census(chains, described.format, settings.targets)
  log(f'{name}: {census.summary()}')
  check_counts(settings.loss, chains)
  batches = iter(
    make_batches(
      chains,
      census,
      described.format,
      settings.targets,
      batch_size=data['batch_size'],
      row_length=data['row_length'],
      max_steps_per_row=data['max_steps_per_row'],
      seed=config['seed'],
      share=job.share,
    )
  )

  optimizer = make_optimizer(settings.optim, loop.steps, loop.head_only_steps)
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
      ObjectiveConfig(
        described.model, described.head, settings.loss, described.lora
      ),
      optimizer,
      make_schedule(settings.optim, loop.steps),
      loop.microbatches,
      loop.head_only_steps,
    ),
    state,
    mesh,
  )
  writer = MetricWriter(
    workdir,
    int(state.step),
    **config['metrics'],
    writes=processes.is_first(),
  )
  with contextlib.closing(writer):
    run = TrainingRun(
      name, loop, mesh, workdir, checkpoints, writer, settings.profile
    )
    fit(run, step_fn, state, batches, evaluate)
  checkpoints.close()
  del state  # before the best is read: there may be no room for both
  log(f'{name}: best checkpoint is step {checkpoints.best:,}')
  return described.merged(
    checkpoints.load_params(described.abstract_params(mesh), checkpoints.best),
    give_away=True,
  )


def check_counts(loss: LossConfig, chains: Sequence[Chain]) -> None:
  """Raises UserError where a loss of rollout counts would find none."""
  counted = (label.trials for chain in chains for label in chain.labels)
  if loss.name == 'beta_binomial' and not any(counted):
    raise UserError(
      f"loss.name='beta_binomial': none of the {len(chains):,} chains has a "
      'label with rollout counts; set data.labels to a labelling job whose '
      "source is 'rollouts', or another loss.name"
    )


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

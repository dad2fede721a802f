"""Trains a reward model or a policy, from the data to the best checkpoint.

    settings -> open_job -> TrainingJob -> train_best -> parameters

A job passes in the evaluation that training calls before every checkpoint.
"""

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from prm_jax.data import census as census_lib
from prm_jax.data.census import BatchConfig, Census
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import make_batches
from prm_jax.data.shards import Share, share_of_process
from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription
from prm_jax.inference.pretrained import Pretrained, open_pretrained
from prm_jax.jobs.dtypes import settle_dtype
from prm_jax.jobs.settings.training import PolicySettings, PrmSettings
from prm_jax.models import TransformerConfig
from prm_jax.runtime import checks, manifest, paths, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.seals import go_back_to_whole
from prm_jax.runtime.sharding import check_heads, make_mesh
from prm_jax.runtime.workdir import Workdir
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


class Model(NamedTuple):
  """Holds the described model and the base that its backbone starts from.

  Attributes:
    base: the pretrained model; None starts at random.
  """

  described: ModelDescription
  base: Pretrained | None


class TrainingJob(NamedTuple):
  """Holds a config's settings with its model, its devices and its data.

  Attributes:
    share: the part of the data that this process reads.
  """

  settings: PrmSettings | PolicySettings
  model: Model
  mesh: Mesh
  share: Share
  dataset: Dataset

  def manifest(self) -> dict[str, Any]:
    """Describes how its results were made."""
    fmt = self.model.described.format
    return manifest.describe(self.settings.seed) | {
      'name': self.settings.name,
      'data_fingerprint': self.dataset.fingerprint,
      'encoding_fingerprint': fmt.fingerprint(),
    }


def open_job(
  settings: PrmSettings | PolicySettings, workdir: Workdir, log: Log
) -> TrainingJob:
  """Opens the model, and makes or finds the data.

  The job claims the workdir once it has checked them, so that a run that is
  refused leaves it to the corrected command.
  """
  settings = settle_dtype(settings, workdir, log)
  model = open_model(settings)
  mesh = make_mesh(settings.mesh.shape)
  check_mesh(settings, model.described.model, mesh)
  data = settings.data
  share = share_of_process(mesh, data.batch_size, data.shards)
  dataset = load_dataset(data, settings.seed, workdir.path, log)
  return TrainingJob(settings, model, mesh, share, dataset)


def check_kept_head(settings: PrmSettings, base: Pretrained | None) -> None:
  """Checks that training can start from the head of its base.

  Raises:
    UserError: there is none, or it was trained with other settings.
  """
  if base is None or base.head is None:
    raise UserError(
      f'config.keep_head=True: config.base={settings.base!r} has no head; name '
      'the workdir of a PRM that was trained here, or set keep_head=False'
    )
  ours, theirs = (dataclasses.asdict(x) for x in (settings.head, base.head))
  wanted = {f'head.{k}': v for k, v in theirs.items() if v != ours[k]}
  if base.separator != settings.data.separator:
    wanted['data.separator'] = base.separator
  if wanted:
    flags = shlex.join(f'--config.{k}={v}' for k, v in wanted.items())
    raise UserError(
      f'config.keep_head=True: the head of {settings.base} was trained with '
      f'other settings; add {flags}, or set keep_head=False'
    )


def open_model(settings: PrmSettings | PolicySettings) -> Model:
  """Describes the settings' model; an architecture may come from its base.

  Raises:
    UserError: the base cannot be read, or does not fit the settings.
  """
  data, base = settings.data, None
  if settings.base:
    base = open_pretrained(settings.base)
    if data.max_length > base.longest:
      raise UserError(
        f'config.data.max_length={data.max_length}: {settings.base} reads at '
        f'most {base.longest} tokens; lower it'
      )
    tokenizer = base.tokenizer
  else:
    tokenizer = data.tokenizer
  fmt = make_format(tokenizer, data.max_length, data.separator, data.end)
  if base is None:
    own = {'vocab_size': fmt.tokenizer.vocab_size}
    model = TransformerConfig(**own | settings.model.given())
    if model.vocab_size < fmt.tokenizer.vocab_size:
      checks.fail(
        'model.vocab_size',
        model.vocab_size,
        f'the tokenizer has {fmt.tokenizer.vocab_size} tokens, each of which '
        'needs a row of the embedding; expected at least as many, or None',
      )
  else:
    given = settings.model.given(base.model.dtype)
    model = dataclasses.replace(base.model, **given)
    if settings.lora.rank:
      # A frozen backbone has no float32 master, so it is never loaded wider.
      load = functools.partial(base.load, dtype=model.param_dtype)
      base = dataclasses.replace(base, load=load)
  if settings.keep_head:
    check_kept_head(settings, base)
  described = ModelDescription(
    model,
    settings.head,
    settings.lora,
    fmt,
    data.separator,
    data.end,
    settings.train.best_metric,
  )
  if described.head is None and described.format.end is None:
    raise UserError(
      "config.data.end='': a policy ends its chains with a token of their own; "
      'set it to one of the tokenizer, best a special one'
    )
  return Model(described, base)


def check_mesh(
  settings: PrmSettings | PolicySettings, model: TransformerConfig, mesh: Mesh
) -> None:
  """Raises UserError unless batch and heads divide over the mesh."""
  check_heads(model.n_heads, mesh)
  rows = mesh.shape['replica'] * mesh.shape['fsdp']
  if settings.sampling:
    settings.sampling.check_devices(rows)
  size, parts = settings.data.batch_size, settings.train.microbatches
  if size % (parts * rows):
    raise UserError(
      f'config.data.batch_size={size} does not divide into {parts} '
      f'microbatches on replica x fsdp = {rows} devices; make it a multiple of '
      f'{parts * rows}'
    )


def train_best(
  name: str,
  job: TrainingJob,
  workdir: Workdir,
  evaluate: Evaluate,
  log: Log,
) -> Any:
  """Trains, or resumes from the last checkpoint, and loads the best one.

  Args:
    name: shown in the progress line.
    evaluate: parameters as trained -> metrics, before every checkpoint.

  Returns:
    The parameters, adapters merged.
  """
  settings, mesh, described = job.settings, job.mesh, job.model.described
  loop = settings.train
  chains = job.dataset.train
  processes.first_alone('model', _describe, workdir.path, described)
  config = batch_config(settings)
  census = open_census(job, config, lambda text: log(f'{name}: {text}'))
  log(f'{name}: {census.summary()}')
  check_counts(settings.loss, chains)
  batches = iter(make_batches(census, config, job.share))

  optimizer = make_optimizer(settings.optim, loop.steps, loop.head_only_steps)
  init = make_init(
    described.model,
    described.head,
    optimizer,
    described.lora,
    lm_loss=settings.loss.lm_weight > 0,
  )
  go_back_to_whole(workdir / 'checkpoints', log)
  checkpoints = Checkpoints(
    workdir / 'checkpoints', loop.keep, loop.best_metric
  )
  if checkpoints.latest is None:
    backbone = None if job.model.base is None else job.model.base.load(mesh)
    state = init_state(init, mesh, settings.seed, backbone)
    if settings.keep_head:
      head = job.model.base.load_head(mesh)
      state = state._replace(params=state.params | {'head': head})
  else:
    state = checkpoints.restore(abstract_state(init, mesh), batches)
    log(f'{name}: resuming from step {checkpoints.latest:,}')
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
    workdir.path,
    int(state.step),
    **dataclasses.asdict(settings.metrics),
    writes=processes.is_first(),
  )
  with contextlib.closing(writer):
    run = TrainingRun(
      name, loop, mesh, workdir.path, checkpoints, writer, settings.profile
    )
    fit(run, step_fn, state, batches, evaluate)
  checkpoints.close()
  del state  # before the best is read: there may be no room for both
  log(f'{name}: best checkpoint is step {checkpoints.best:,}')
  return described.merged(
    checkpoints.load_params(described.abstract_params(mesh), checkpoints.best),
    give_away=True,
  )


def open_census(job: TrainingJob, config: BatchConfig, log: Log) -> Census:
  """Reads the census of the training chains; makes it if it is not there."""
  dataset, targets = job.dataset, job.settings.targets
  fmt = job.model.described.format
  folder = dataset.encoded / census_lib.key(fmt, targets, config)

  def make() -> None:
    if folder.is_dir():
      return
    log(f'encoding {len(dataset.train):,} chains, once for all runs')
    made = census_lib.take_census(dataset.train, fmt, targets, config)
    census_lib.save(made, folder)

  if dataset.everywhere:
    make()
    processes.wait_for_all('census')
  else:
    processes.first_alone('census', make)
  return census_lib.read(folder)


def batch_config(settings: PrmSettings | PolicySettings) -> BatchConfig:
  """Returns what the settings say about training batches."""
  data = settings.data
  return BatchConfig(
    batch_size=data.batch_size,
    row_length=data.row_length,
    max_steps_per_row=data.max_steps_per_row,
    seed=settings.seed,
    trees=data.trees,
    compare_steps=settings.loss.name == 'ranking',
  )


def check_counts(loss: LossConfig, chains: Sequence[Chain]) -> None:
  """Raises UserError if a loss of rollout counts has chains without counts."""
  counted = (label.trials for chain in chains for label in chain.labels)
  if loss.name == 'beta_binomial' and not any(counted):
    raise UserError(
      f"loss.name='beta_binomial': none of the {len(chains):,} chains has a "
      'label with rollout counts; set data.labels to a labelling job whose '
      "source is 'rollouts', or another loss.name"
    )


def _describe(workdir: paths.Path, described: ModelDescription) -> None:
  """Writes model.json; raises UserError if the base's tokenizer has changed."""
  paths.make_folder(workdir)
  if (workdir / 'model.json').exists():
    before = loading.read_description(workdir).format.fingerprint()
    if before != described.format.fingerprint():
      raise UserError(
        f'{workdir} was begun with another tokenizer than the base has now; '
        'bring back that base, or choose another --workdir'
      )
  loading.write_description(workdir, described)

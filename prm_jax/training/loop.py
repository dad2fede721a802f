"""Defines the train step and the training loop of PRMs, ORMs and policies.

    state, batch -> train step -> state, metrics
    fit: batches -> train steps -> metrics.jsonl, checkpoints

The step is one jitted function, sharded by the rules of `runtime/sharding.py`,
and its state is donated. The loop feeds it batches, writes metrics and
checkpoints, and stops cleanly on SIGTERM and Ctrl-C. Callers pass in the
evaluation. RL uses `make_step` with its own objective.
"""

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from prm_jax.models import TransformerConfig
from prm_jax.runtime import checks, paths, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.checks import at_least
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import CONSOLE, Console, MetricWriter, Progress
from prm_jax.runtime.profiling import Profile, ProfileConfig
from prm_jax.runtime.sharding import batch_sharding, shardings
from prm_jax.runtime.stopping import StopSignal
from prm_jax.training.objective import Batch, ObjectiveConfig, batch_loss, norms
from prm_jax.training.train_state import (
  TrainState,
  join_master,
  join_params,
  split_master,
  split_params,
)

Evaluate = Callable[[Any], dict[str, float]]
NO_PROFILE = ProfileConfig()


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Says how long to train, and how often to log, evaluate and save.

  Attributes:
    steps: number of updates.
    microbatches: number of parts into which a batch is cut. They run one after
      another, and their gradients add up to that of the whole batch.
    head_only_steps: number of updates during which only the head learns, so
      that its first random gradients do not harm the backbone. The backbone's
      warmup and schedule begin after them; `lr` in the metrics is the head's.
    log_every: steps between lines of metrics.
    checkpoint_every: steps between evaluations, each with a checkpoint.
    keep: number of latest checkpoints to keep.
    best_metric: evaluation metric whose best checkpoint is also kept; '' for
      none.
    max_skipped_in_a_row: the run ends after so many non-finite steps in a row.
  """

  steps: Annotated[int, at_least(1)] = 1000
  microbatches: Annotated[int, at_least(1)] = 1
  head_only_steps: Annotated[int, at_least(0)] = 0
  log_every: Annotated[int, at_least(1)] = 20
  checkpoint_every: Annotated[int, at_least(1)] = 500
  keep: Annotated[int, at_least(1)] = 2
  best_metric: str = ''
  max_skipped_in_a_row: Annotated[int, at_least(1)] = 10

  def __post_init__(self) -> None:
    checks.check(self)
    if self.head_only_steps >= self.steps:
      checks.fail(
        'head_only_steps',
        self.head_only_steps,
        f'expected less than steps={self.steps}',
      )


class Objective(NamedTuple):
  """Defines the loss of a step, on a batch that may run in microbatches.

  Attributes:
    norms: batch -> the denominators of the loss, from the whole batch.
    loss: (params, microbatch, norms) -> the microbatch's share of the loss, and
      its share of each metric, with the loss as metric `loss`. The shares add
      up to the values of the whole batch.
  """

  norms: Callable[[Any], Any]
  loss: Callable[[Any, Any, Any], tuple[jax.Array, dict[str, jax.Array]]]


def make_train_step(
  config: ObjectiveConfig,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  microbatches: int = 1,
  head_only_steps: int = 0,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
  """Makes the train step of reward models and of supervised policies."""
  loss = config.loss

  def loss_share(
    params: Any, batch: Batch, norms: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    return batch_loss(params, batch, *norms, config)

  def split(params: Any) -> tuple[Any, Any]:
    return split_params(
      params, config.head, config.lora, lm_loss=loss.lm_weight > 0
    )

  return make_step(
    Objective(lambda batch: norms(batch, loss), loss_share),
    split,
    config.model,
    optimizer,
    schedule,
    microbatches,
    head_only_steps,
  )


def make_step(
  objective: Objective,
  split: Callable[[Any], tuple[Any, Any]],
  model: TransformerConfig,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  microbatches: int,
  head_only_steps: int = 0,
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
  """Makes the pure step of an objective; `compile_train_step` jits it.

  A step whose loss or gradient is not finite changes no parameter.

  Args:
    split: parameters -> (those that the optimizer updates, those that stay),
      like `split_params`.
    model: its `param_dtype` says how the backbone is stored.
    optimizer: made for the same `head_only_steps`.
  """

  def loss_share(
    trained: Any, frozen: Any, batch: Any, norms: Any
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    return objective.loss(join_params(trained, frozen), batch, norms)

  grad_fn = jax.value_and_grad(loss_share, has_aux=True)

  def zero_waiting(grads: Any, updates: jax.Array) -> Any:
    """Zeroes the backbone's gradient while it waits, so the norm ignores it."""
    if not head_only_steps:
      return grads
    waits = updates < head_only_steps
    return {
      name: part
      if name == 'head'
      else jax.tree.map(lambda x: jnp.where(waits, 0, x), part)
      for name, part in grads.items()
    }

  def in_float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)

  def train_step(
    state: TrainState, batch: Any
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    trained, frozen = split(state.params)
    norms = objective.norms(batch)

    def metrics_and_grads(part: Any) -> tuple[dict[str, jax.Array], Any]:
      (_, values), grads = grad_fn(trained, frozen, part, norms)
      return values, grads

    if microbatches == 1:
      values, grads = metrics_and_grads(batch)
    else:
      # Strided, so that each part stays spread over all devices.
      parts = jax.tree.map(
        lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1),
        batch,
      )
      # Summed in float32, as gradients of bfloat16 parameters are bfloat16.
      zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.float32),
        jax.eval_shape(metrics_and_grads, jax.tree.map(lambda x: x[0], parts)),
      )

      def add_part(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, metrics_and_grads(part)), None

      (values, grads), _ = jax.lax.scan(add_part, zeros, parts)

    updates_made = state.step - state.skipped  # the optimizer's own count
    grads = zero_waiting(grads, updates_made)
    grad_norm = optax.tree.norm(in_float32(grads))
    finite = jnp.isfinite(values['loss']) & jnp.isfinite(grad_norm)

    exact, opt_state = join_master(trained, state.opt_state)
    updates, opt_state = optimizer.update(in_float32(grads), opt_state, exact)
    exact = optax.apply_updates(exact, updates)
    # Chosen number by number: a `lax.cond` would copy all parameters and
    # moments on a GPU, which takes as much memory again.
    moved, opt_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      split_master(exact, opt_state, model),
      (trained, state.opt_state),
    )
    new_state = TrainState(
      step=state.step + 1,
      params=join_params(moved, frozen),
      opt_state=opt_state,
      key=state.key,
      skipped=state.skipped + ~finite,
      skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
    )
    metrics = values | {
      'grad_norm': grad_norm,
      'lr': schedule(updates_made),
      'skipped': new_state.skipped,
      'skipped_in_a_row': new_state.skipped_in_a_row,
    }
    return new_state, metrics

  return train_step


def compile_train_step(
  train_step: Callable, state: TrainState, mesh: Mesh
) -> Callable:
  """Jits a step with explicit shardings in and out; the state is donated."""
  state_shardings = shardings(state, mesh)
  return jax.jit(
    train_step,
    in_shardings=(state_shardings, batch_sharding(mesh)),
    out_shardings=(state_shardings, None),
    donate_argnums=0,
  )


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> Batch:
  """Makes a global batch from the rows that each process has."""
  placed = batch_sharding(mesh)
  return {
    name: jax.make_array_from_process_local_data(placed, value)
    for name, value in batch.items()
  }


def _check_finite(
  metrics: dict[str, Any],
  batch: Mapping[str, np.ndarray],
  step: int,
  limit: int,
  workdir: paths.Path,
) -> None:
  """Saves the batch and raises UserError after `limit` bad steps in a row."""
  if int(metrics['skipped_in_a_row']) < limit:
    return
  process = f'_process_{processes.index()}' if processes.count() > 1 else ''
  path = workdir / f'not_finite_step_{step}{process}.npz'
  file = io.BytesIO()
  np.savez(file, **batch)
  paths.write_bytes(path, file.getvalue())
  raise UserError(
    f'loss or gradient not finite for {limit} steps in a row, up to step '
    f'{step}; its batch is in {path}; lower optim.lr or optim.clip, or look '
    'at that batch'
  )


@dataclasses.dataclass(frozen=True)
class TrainingRun:
  """Says how long a run trains, on which devices, and where it writes.

  Attributes:
    name: shown in the progress line.
    workdir: gets the profile, and the batch of a run that diverged.
    profile: steps that are recorded, in workdir/profile.
    console: where progress is printed; its clock measures tokens per second.
  """

  name: str
  config: TrainConfig
  mesh: Mesh
  workdir: paths.Path
  checkpoints: Checkpoints
  writer: MetricWriter
  profile: ProfileConfig = NO_PROFILE
  console: Console = CONSOLE


def _rates(tokens: np.ndarray, seconds: float) -> dict[str, float]:
  """Returns the speed over the chains' tokens and over those of their trees."""
  flat, unique = map(float, tokens)
  return {
    'tokens_per_second': flat / seconds,
    'unique_tokens_per_second': unique / seconds,
    'tokens_per_unique_token': flat / unique if unique else 1.0,
  }


def fit(
  run: TrainingRun,
  step_fn: Callable,
  state: TrainState,
  data: Iterator[Mapping[str, np.ndarray]],
  evaluate: Evaluate,
) -> TrainState:
  """Trains from the state's step to `run.config.steps`.

  Args:
    step_fn: from `compile_train_step`.
    data: the iterator whose position is saved with every checkpoint.
    evaluate: params -> metrics, before every checkpoint.

  Returns:
    The last state.

  Raises:
    Stopped: after SIGTERM or Ctrl-C, with everything saved.
    UserError: too many non-finite steps in a row.
  """
  config, mesh, clock = run.config, run.mesh, run.console.clock
  start = int(state.step)
  progress = Progress(
    run.name, start, config.steps, processes.is_first(), console=run.console
  )
  # Flat and unique tokens, and time, since the last report, without evaluations
  # and saving.
  tokens, since, rates = np.zeros(2), clock(), _rates(np.zeros(2), 1.0)
  pending = None  # the previous step; its metrics are ready by now
  recorder = Profile(run.profile, run.workdir / 'profile', progress.break_line)
  with StopSignal(mesh) as stop, recorder, jax.set_mesh(mesh):
    for step in range(start + 1, config.steps + 1):
      batch = next(data)
      placed = put_batch(batch, mesh)
      state, metrics = recorder.run(step, step_fn, state, placed)
      if pending:
        _check_finite(*pending, config.max_skipped_in_a_row, run.workdir)
        if progress.last_step < step - 1 and progress.is_due():
          if tokens.any():
            rates = _rates(tokens, clock() - since)
          progress.print_step(step - 1, pending[0] | rates)
      pending = (metrics, batch, step)
      # An estimate for all processes from the rows of this one.
      share = len(batch['tokens']) / len(placed['tokens'])
      unique = (batch['positions'] >= 0).sum()
      tokens += np.array([batch['flat_tokens'].sum(), unique]) / share

      last = step == config.steps
      if step % config.log_every == 0 or last:
        now = clock()
        rates = _rates(tokens, now - since)
        values = {k: float(v) for k, v in metrics.items()} | rates
        tokens, since = np.zeros(2), now
        run.writer.write(step, values)
        progress.show(step, values)
      due = step % config.checkpoint_every == 0 or last
      asked = stop.agreed()  # called once per step
      if due or asked:
        # Waits for this step, whose time counts as training; the rest does not.
        _check_finite(*pending, config.max_skipped_in_a_row, run.workdir)
        paused = clock()
        rated = {}
        if due:  # also when stopping, as the resumed run begins after it
          rated = evaluate(state.params)
          run.writer.write(step, rated)
        # A run that resumes from this checkpoint needs the metrics up to it.
        run.writer.flush()
        run.checkpoints.save(step, state, data, rated)
        since += clock() - paused
      if asked:
        progress.break_line()
        run.checkpoints.close()
        raise stop.stopped(f'{run.name} stopped at step {step:,}')
    stop.end(f'{run.name} stopped after its last step', run.checkpoints.close)
  return state

"""The loop: sample groups, judge them, learn from them, again.

    problems -> pipeline.py: episodes.py -> rating.py
      -> credit.py -> train steps on minibatches
      -> the policy samples with its new parameters

All of it in one process and, unless sampling has devices of its own, on one
mesh. Evaluations are passed in.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Generator
from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.rl import credit, diagnostics
from prm_jax.rl.credit import AdvantageConfig, Findings
from prm_jax.rl.episodes import Episode
from prm_jax.rl.objective import Experience
from prm_jax.rl.pipeline import Batch, Batches
from prm_jax.rl.rating import Rated, Rater
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.views import View, put_rows
from prm_jax.runtime import paths, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter, Progress
from prm_jax.runtime.stopping import Stopped, StopSignal
from prm_jax.training.train_state import TrainState

# Of an update: its number -> metrics; whether the run is to end there.
Evaluate = Callable[[int], tuple[dict[str, float], bool]]


@dataclasses.dataclass(frozen=True)
class LoopConfig:
  """How long, how much, how often.

  Attributes:
    updates: batches of chains that are sampled and learned from.
    problems: of a batch.
    samples: chains of each problem: a group.
    epochs: how often each chain is learned from.
    minibatches: steps of the optimizer in an epoch.
    microbatches: parts of a minibatch whose gradients add up.
    staleness: updates that the policy which samples a batch may be behind the
      one that learns from it, see `pipeline.sampled_after`.
    kl_stop: the step that finds the policy so far from the one that sampled a
      batch, nats a token, is the last on it; 0: all are taken.
    evaluate_every, checkpoint_every: in updates; a checkpoint is evaluated.
    keep: latest checkpoints that stay.
    max_skipped_in_a_row: non-finite steps, or batches of which the PRM scores
      nothing, in a row that end the run.
  """

  updates: int
  problems: int = 16
  samples: int = 8
  epochs: int = 1
  minibatches: int = 1
  microbatches: int = 1
  staleness: int = 0
  kl_stop: float = 0.0
  log_every: int = 1
  evaluate_every: int = 10
  checkpoint_every: int = 10
  keep: int = 2
  max_skipped_in_a_row: int = 10

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in ('kl_stop', 'staleness'):
        if value < 0:
          raise UserError(f'train.{field.name}={value}: expected >= 0')
      elif value < 1:
        raise UserError(f'train.{field.name}={value}: expected >= 1')
    if self.checkpoint_every % self.evaluate_every:
      raise UserError(
        f'train.checkpoint_every={self.checkpoint_every} is no multiple of '
        f'train.evaluate_every={self.evaluate_every}; make it one'
      )
    if self.chains % self.minibatches:
      raise UserError(
        f'train.problems x train.samples = {self.chains} chains do not divide '
        f'into train.minibatches={self.minibatches}'
      )

  @property
  def chains(self) -> int:
    """Of a batch."""
    return self.problems * self.samples

  @property
  def rows(self) -> int:
    """Chains that are on the devices at a time while they are learned from."""
    return self.chains // self.minibatches // self.microbatches

  @property
  def steps(self) -> int:
    """Of the optimizer, in the whole run."""
    return self.updates * self.epochs * self.minibatches

  def check_devices(self, rows: int) -> None:
    """Raises UserError unless minibatches divide over so many devices."""
    wanted = rows * self.microbatches
    each = self.chains // self.minibatches
    if each % wanted:
      raise UserError(
        f'a minibatch of {each} chains does not divide into '
        f'{self.microbatches} microbatches on replica x fsdp = {rows} devices; '
        f'make it a multiple of {wanted}'
      )


def jit_advantages(
  size: int, reward: RewardConfig, config: AdvantageConfig, mesh: Mesh
) -> Any:
  """`credit.token_advantages` jitted: of findings and values.

  Too little to be split: every device computes all of it.
  """
  return jax.jit(
    functools.partial(
      credit.token_advantages, size=size, reward=reward, config=config
    ),
    out_shardings=NamedSharding(mesh, PartitionSpec()),
  )


class Learner:
  """What turns a batch of episodes into a better policy.

  Args:
    step_fn: from `train.compile_train_step`.
    kl_in_reward: weight of the KL divergence from the reference, taken from the
      rewards.
  """

  def __init__(
    self,
    config: LoopConfig,
    step_fn: Callable,
    model: TransformerConfig,
    lora: LoraConfig,
    reward: RewardConfig,
    advantage: AdvantageConfig,
    kl_in_reward: float,
    mesh: Mesh,
    seed: int,
  ) -> None:
    self._config, self._step, self._seed = config, step_fn, seed
    self._kl_in_reward, self._mesh = kl_in_reward, mesh
    self._reads_scores = reward.form != 'outcome'
    self._reads_values = advantage.estimator == 'gae'
    self._values = View('values', model, mesh, config.rows, lora)
    self._advantages = jit_advantages(config.samples, reward, advantage, mesh)

  def learn(
    self, state: TrainState, rated: Rated, update: int
  ) -> tuple[TrainState, dict[str, float], Experience]:
    """Some steps on a batch; the metrics are means over them."""
    batch = self.experience(state.params, rated)
    told, cut = [], 0
    for number, indices in enumerate(self._minibatches(update)):
      part = jax.tree.map(lambda x, i=indices: x[i], batch)
      part = put_rows(part, self._mesh)
      state, metrics = self._step(state, part)
      told.append(metrics)
      if self._config.kl_stop and (
        float(metrics['kl_to_sampled']) > self._config.kl_stop
      ):
        cut = self._config.epochs * self._config.minibatches - number - 1
        break
    last = jax.tree.map(float, told[-1])
    means = {
      name: float(np.mean([float(each[name]) for each in told]))
      for name in told[0]
    }
    # Counts and what is of a moment: the last.
    for name in ('lr', 'skipped', 'skipped_in_a_row'):
      means[name] = last[name]
    if self._config.kl_stop:
      means['steps_left_out'] = cut
    return state, means, batch

  def experience(self, params: Any, rated: Rated) -> Experience:
    """What is learned from, on the host."""
    rows = rated.rows
    values = penalties = np.zeros(rows.tokens.shape, np.float32)
    if self._reads_values:
      values = self._values(params, rows)
    if self._kl_in_reward:
      gap = rows.sampled_logprobs - rows.reference_logprobs
      penalties = self._kl_in_reward * np.where(rows.written, gap, 0.0)
    # What a form does not read must not keep a group from being learned from.
    scores = rated.rewards if self._reads_scores else 0 * rows.step_mask
    findings = Findings(
      scores,
      rows.step_mask,
      rows.step_ends,
      rows.outcomes,
      rows.written,
      penalties,
    )
    found = jax.device_get(self._advantages(findings, values))
    usable = np.asarray(credit.usable(findings, self._config.samples))
    return Experience(
      rows.tokens,
      rows.segment_ids,
      rows.written & usable[:, None],
      rows.sampled_logprobs,
      rows.reference_logprobs,
      *map(np.asarray, found),
      values,
    )

  def _minibatches(self, update: int) -> Iterator[np.ndarray]:
    """Indices of chains, shuffled anew in every epoch."""
    for epoch in range(self._config.epochs):
      rng = np.random.default_rng([self._seed, update, epoch])
      order = rng.permutation(self._config.chains)
      yield from np.split(order, self._config.minibatches)


class Tools(NamedTuple):
  """What the loop works with.

  Attributes:
    policy: samples, with the parameters that the loop gives it.
    rater: says what its chains are worth; its PRM may learn with the policy.
    backbone: parameters as trained -> those that the policy writes with.
  """

  policy: Generator
  rater: Rater
  learner: Learner
  backbone: Callable[[Any], Any]


def improve(
  config: LoopConfig,
  tools: Tools,
  problems: Sequence[Problem],
  state: TrainState,
  data: Iterator[np.ndarray],
  checkpoints: Checkpoints,
  writer: MetricWriter,
  evaluate: Evaluate,
  mesh: Mesh,
  workdir: paths.Path,
) -> TrainState:
  """Runs from the last checkpoint's update to the last.

  Args:
    data: indices of the problems of each batch; its position is saved.
    evaluate: before the first update and after some; the policy has the
      parameters of that moment.

  Raises:
    Stopped: after SIGTERM, with everything saved; with staleness, unless a
      checkpoint was due, only up to the last one.
    UserError: too many non-finite steps in a row.
  """
  done = saved = checkpoints.latest or 0
  unscored, lent = 0, 0.0
  said = 'accuracy', 'prm_score', 'steps'
  progress = Progress('rl', done, config.updates, processes.is_first(), said)
  batches = Batches(
    tools.policy,
    functools.partial(tools.rater.rate, learn=True),
    tools.backbone,
    problems,
    config.samples,
    data,
    done,
    config.updates,
    config.staleness,
    config.checkpoint_every,
  )
  if not done:
    batches.lend(state.params)
    looked, _ = evaluate(0)
    writer.write(0, looked)
  with (
    StopSignal(mesh) as stop,
    jax.set_mesh(mesh),
    contextlib.closing(batches),
  ):
    for update in range(done + 1, config.updates + 1):
      clock = [time.monotonic()]
      fresh = batches.next(state.params)
      clock.append(time.monotonic())
      state, metrics, batch = tools.learner.learn(state, fresh.rated, update)
      clock.append(time.monotonic())

      last = update == config.updates
      found = fresh.rated.found
      metrics |= fresh.rated.told | {'staleness': fresh.staleness}
      metrics |= diagnostics.of_batch(found, batch, config.samples)
      metrics['chains'] = update * config.chains
      metrics |= _speed(fresh, clock, lent)
      lent = 0.0
      if update % config.log_every == 0 or last:
        writer.write(update, metrics)
        progress.show(update, metrics)
      elif progress.is_due():
        progress.tell(update, metrics)
      _check_finite(metrics, found, update, config, workdir)
      unscored = unscored + 1 if _is_unscored(found) else 0
      if unscored == config.max_skipped_in_a_row:
        raise UserError(
          f'{tools.rater.prm.name} scored none of the chains of the last '
          f'{unscored} updates: it is broken, or does not read what the policy '
          'writes; score a chain with it (prm_jax.load), or name another in prm'
        )
      looked, ends = {}, False
      if update % config.evaluate_every == 0 or last:
        lent = batches.lend(state.params)
        looked, ends = evaluate(update)
        writer.write(update, looked)
      asked = stop.agreed()
      due = update % config.checkpoint_every == 0 or last or ends
      # What is sampled already is in no checkpoint.
      if due or (asked and not batches.ahead):
        writer.flush()
        checkpoints.save(update, state, data, looked, tools.rater.state)
        saved = update
      if asked:
        progress.break_line()
        checkpoints.close()
        raise Stopped(f'rl stopped at update {saved:,}')
      if ends:
        break
  return state


def _is_unscored(found: Sequence[Episode]) -> bool:
  """Whether there are steps, and none has a finite score."""
  scores = np.concatenate([episode.scores for episode in found])
  return bool(len(scores)) and not np.isfinite(scores).any()


def _speed(
  batch: Batch, clock: Sequence[float], lent: float
) -> dict[str, float]:
  """Tokens a second, and where the time went.

  Args:
    clock: when the batch was asked for, was there and was learned from.
    lent: seconds that an evaluation waited for the batch before.
  """
  tokens = sum(len(e.sample.written.tokens) for e in batch.rated.found)
  waiting, training = np.diff(clock).tolist()
  waiting += lent
  return {
    'tokens_per_second': tokens / (waiting + training),
    'seconds_sampling': batch.seconds_sampling,
    'seconds_scoring': batch.seconds_scoring,
    'seconds_waiting': waiting,
    'seconds_training': training,
  }


def _check_finite(
  metrics: Mapping[str, float],
  found: Sequence[Episode],
  update: int,
  config: LoopConfig,
  workdir: paths.Path,
) -> None:
  """Ends the run, with the chains on disk, after too many bad steps."""
  names = ('skipped_in_a_row', 'prm_skipped_in_a_row')
  worst = max(metrics.get(name, 0) for name in names)
  if worst < config.max_skipped_in_a_row:
    return
  path = workdir / f'not_finite_update_{update}.jsonl'
  diagnostics.write_episodes(path, found, f'update {update}')
  raise UserError(
    f'loss or gradient not finite for {config.max_skipped_in_a_row} steps in a '
    f'row, up to update {update}; its chains are in {path}; lower optim.lr, '
    "optim.clip or a PRM's prm.online.lr, or look at these chains"
  )

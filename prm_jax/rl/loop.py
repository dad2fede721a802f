"""The loop: sample groups, judge them, learn from them, again.

    problems -> episodes.py -> credit.py -> train steps on minibatches
      -> the policy samples with its new parameters

All of it in one process and on one mesh. Evaluations are passed in.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax import paths, processes
from prm_jax.checkpoints import Checkpoints
from prm_jax.data.problems import Problem
from prm_jax.errors import UserError
from prm_jax.generator import Generator
from prm_jax.metrics import MetricWriter, Progress
from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.policy import StepScorer
from prm_jax.rl import credit, diagnostics, episodes, losses
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.episodes import Episode, Rows
from prm_jax.rl.objective import Experience, view_tokens
from prm_jax.rl.rewards import RewardConfig
from prm_jax.sharding import batch_sharding
from prm_jax.stopping import Stopped, StopSignal
from prm_jax.train_state import TrainState

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
    kl_stop: what is left of a batch is not learned from once the policy is so
      far from the one that sampled it, nats a token; 0: never.
    evaluate_every, checkpoint_every: in updates; a checkpoint is evaluated.
    keep: latest checkpoints that stay.
    max_skipped_in_a_row: non-finite steps in a row that end the run.
  """

  updates: int
  problems: int = 16
  samples: int = 8
  epochs: int = 1
  minibatches: int = 1
  microbatches: int = 1
  kl_stop: float = 0.0
  log_every: int = 1
  evaluate_every: int = 10
  checkpoint_every: int = 10
  keep: int = 2
  max_skipped_in_a_row: int = 10

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name == 'kl_stop':
        if value < 0:
          raise UserError(f'train.kl_stop={value}: expected >= 0 (0: never)')
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


class Learner:
  """What turns a batch of episodes into a better policy.

  Args:
    step_fn: from `train.compile_train_step`.
    reference: parameters that the policy is to stay near; None: none is read.
    kl_in_reward: weight of the KL divergence from it, taken from the rewards.
  """

  def __init__(
    self,
    config: LoopConfig,
    step_fn: Callable,
    model: TransformerConfig,
    lora: LoraConfig,
    reward: RewardConfig,
    advantage: AdvantageConfig,
    reference: Any,
    kl_in_reward: float,
    mesh: Mesh,
    seed: int,
  ):
    self._config, self._step, self._seed = config, step_fn, seed
    self._reference, self._kl_in_reward = reference, kl_in_reward
    self._reads_values = advantage.estimator == 'gae'
    self._mesh, self._placed = mesh, batch_sharding(mesh)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    self._view = jax.jit(
      functools.partial(view_tokens, model=model, lora=lora),
      out_shardings=whole,
    )
    self._view_reference = jax.jit(
      functools.partial(view_tokens, model=model), out_shardings=whole
    )
    self._advantages = jax.jit(
      functools.partial(
        credit.token_advantages,
        size=config.samples,
        reward=reward,
        config=advantage,
      )
    )

  def learn(
    self, state: TrainState, rows: Rows, update: int
  ) -> tuple[TrainState, dict[str, float], Experience]:
    """Some steps on a batch; the metrics are means over them."""
    batch = self.experience(state.params, rows)
    told, cut = [], 0
    for number, indices in enumerate(self._minibatches(update)):
      part = jax.tree.map(lambda x, i=indices: self._put(x[i]), batch)
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
    if self._reference is not None:
      means['kl_to_reference'] = divergence(batch)
    return state, means, batch

  def experience(self, params: Any, rows: Rows) -> Experience:
    """What is learned from, on the host."""
    zeros = np.zeros(rows.tokens.shape, np.float32)
    reference, values = zeros, zeros
    if self._reference is not None:
      reference = self._viewed(self._view_reference, self._reference, rows)
      reference = reference.logprobs
    if self._reads_values:
      values = self._viewed(self._view, params, rows).values
    findings = rows.findings
    if self._kl_in_reward:
      gap = np.where(rows.written, rows.sampled_logprobs - reference, 0.0)
      findings = findings._replace(penalties=self._kl_in_reward * gap)
    found = jax.device_get(self._advantages(findings, values))
    usable = np.asarray(credit.usable(findings, self._config.samples))
    return Experience(
      rows.tokens,
      rows.segment_ids,
      rows.written & usable[:, None],
      rows.sampled_logprobs,
      np.asarray(reference),
      *map(np.asarray, found),
      np.asarray(values),
    )

  def _viewed(self, view: Callable, params: Any, rows: Rows) -> Any:
    """A model's view of all rows, as many at a time as are learned from."""
    config = self._config
    each = config.chains // config.minibatches // config.microbatches
    parts = []
    for first in range(0, config.chains, each):
      tokens = self._put(rows.tokens[first : first + each])
      segments = self._put(rows.segment_ids[first : first + each])
      parts.append(jax.device_get(view(params, tokens, segments)))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)

  def _minibatches(self, update: int) -> Iterator[np.ndarray]:
    """Indices of chains, shuffled anew in every epoch."""
    for epoch in range(self._config.epochs):
      rng = np.random.default_rng([self._seed, update, epoch])
      order = rng.permutation(self._config.chains)
      yield from np.split(order, self._config.minibatches)

  def _put(self, x: np.ndarray) -> jax.Array:
    """Every process has all rows."""
    return jax.make_array_from_callback(x.shape, self._placed, x.__getitem__)


def divergence(batch: Experience) -> float:
  """KL from the reference, nats a token (k3), of the policy that sampled."""
  estimate = losses.kl(batch.sampled_logprobs, batch.reference_logprobs)
  written = batch.written
  return float(np.where(written, estimate, 0.0).sum() / max(written.sum(), 1))


class Tools(NamedTuple):
  """What the loop works with.

  Attributes:
    policy: samples, with the parameters that the loop gives it.
    prm: scores; None: no process reward.
    backbone: parameters as trained -> those that the policy writes with.
  """

  policy: Generator
  prm: StepScorer | None
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
    Stopped: after SIGTERM, with everything saved.
    UserError: too many non-finite steps in a row.
  """
  done = checkpoints.latest or 0
  said = 'accuracy', 'prm_score', 'steps'
  progress = Progress('rl', done, config.updates, processes.is_first(), said)
  policy = tools.policy
  policy.take(tools.backbone(state.params))
  if not done:
    rated, _ = evaluate(0)
    writer.write(0, rated)
  with StopSignal(mesh) as stop, jax.set_mesh(mesh):
    for update in range(done + 1, config.updates + 1):
      indices = next(data)
      chosen = [problems[i] for i in indices]
      clock = [time.monotonic()]
      groups = episodes.sample(
        policy, chosen, config.samples, f'update {update}'
      )
      clock.append(time.monotonic())
      found = episodes.judge(tools.prm, chosen, groups)
      clock.append(time.monotonic())
      rows = episodes.to_rows(found, policy.format)
      state, metrics, batch = tools.learner.learn(state, rows, update)
      policy.take(tools.backbone(state.params))
      clock.append(time.monotonic())

      last = update == config.updates
      metrics |= diagnostics.of_batch(found, batch, config.samples)
      metrics['chains'] = update * config.chains
      metrics |= _speed(found, clock)
      if update % config.log_every == 0 or last:
        writer.write(update, metrics)
        progress.show(update, metrics)
      _check_finite(metrics, found, update, config, workdir)
      rated, ends = {}, False
      if update % config.evaluate_every == 0 or last:
        rated, ends = evaluate(update)
        writer.write(update, rated)
      asked = stop.agreed()
      if update % config.checkpoint_every == 0 or last or asked or ends:
        writer.flush()
        checkpoints.save(update, state, data, rated)
      if asked:
        progress.break_line()
        checkpoints.close()
        raise Stopped(f'rl stopped at update {update:,}')
      if ends:
        break
  return state


def _speed(found: Sequence[Episode], clock: Sequence[float]) -> dict[str, Any]:
  """Tokens a second, and where the time went."""
  tokens = sum(len(e.sample.written.tokens) for e in found)
  seconds = np.diff(clock)
  shares = dict(zip(('sampling', 'scoring', 'training'), seconds, strict=True))
  return {'tokens_per_second': tokens / seconds.sum()} | {
    f'seconds_{name}': float(value) for name, value in shares.items()
  }


def _check_finite(
  metrics: Mapping[str, float],
  found: Sequence[Episode],
  update: int,
  config: LoopConfig,
  workdir: paths.Path,
) -> None:
  """Ends the run, with the chains on disk, after too many bad steps."""
  if metrics['skipped_in_a_row'] < config.max_skipped_in_a_row:
    return
  path = workdir / f'not_finite_update_{update}.jsonl'
  diagnostics.write_episodes(path, found, f'update {update}')
  raise UserError(
    f'loss or gradient not finite for {config.max_skipped_in_a_row} steps in a '
    f'row, up to update {update}; its chains are in {path}; lower optim.lr or '
    'optim.clip, or look at these chains'
  )

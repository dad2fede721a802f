"""Improves a policy: samples groups of chains, rates them, learns from them.

    problems -> pipeline.py: sampled and rated chains
      -> credit.py: advantages -> train steps on minibatches
      -> the policy samples with its new parameters

Everything runs in the same processes and on one mesh, unless sampling has its
own devices. The caller passes in the evaluation.
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
from prm_jax.rl import credit, diagnostics
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.episodes import Episode
from prm_jax.rl.findings import Findings, learned_from
from prm_jax.rl.objective import (
  Experience,
  Minibatch,
  PolicyLossConfig,
  count_read,
  find_needed,
  mean_metrics,
)
from prm_jax.rl.pipeline import Batches, RatedBatch
from prm_jax.rl.rating import Rated, Rater
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.schedule import RlLoopConfig
from prm_jax.rl.trees import Layout, interleaved, lay_out
from prm_jax.rl.views import View, put_rows
from prm_jax.runtime import processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter, Progress
from prm_jax.runtime.stopping import StopSignal
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.train_state import TrainState

# Number of an update -> metrics, and whether the run is to end there.
EvaluateUpdate = Callable[[int], tuple[dict[str, float], bool]]
SHOWN_METRICS = 'accuracy', 'prm_score', 'steps'


def jit_advantages(
  size: int, reward: RewardConfig, config: AdvantageConfig, mesh: Mesh
) -> Any:
  """Returns `credit.token_advantages` jitted: of findings, values and share.

  The work is too little to split: every device computes all of it.
  """
  return jax.jit(
    functools.partial(
      credit.token_advantages, size=size, reward=reward, config=config
    ),
    out_shardings=NamedSharding(mesh, PartitionSpec()),
  )


class Terms(NamedTuple):
  """Holds what an update makes of rated chains: rewards, advantages, losses."""

  reward: RewardConfig
  advantage: AdvantageConfig
  loss: PolicyLossConfig


class Learner:
  """Takes train steps on a batch of rated chains.

  Args:
    step_fn: from `training.loop.compile_train_step`.
    values: reads the value head; None for estimators without one.
    mesh: mesh of the policy that is trained.
    layout: of the rows that it reads there.
    seed: seed of the order of the chains.
  """

  def __init__(
    self,
    config: RlLoopConfig,
    terms: Terms,
    step_fn: Callable,
    values: View | None,
    mesh: Mesh,
    layout: Layout,
    seed: int,
  ) -> None:
    self._config, self._terms, self._step = config, terms, step_fn
    self._values, self._mesh, self._seed = values, mesh, seed
    self._layout = layout
    self._advantages = jit_advantages(
      config.samples, terms.reward, terms.advantage, mesh
    )

  def learn(
    self, state: TrainState, rated: Rated, update: int
  ) -> tuple[TrainState, dict[str, float], Experience]:
    """Takes the steps of one update.

    Returns:
      The new state, the mean metrics, and the Experience that it learned from.
    """
    config = self._config
    batch = self.experience(state.params, rated, update)
    per_step, read, left_out, flat, unique = [], [], 0, 0, 0
    for number, indices in enumerate(self._minibatches(update)):
      part = self._lay_out(rated, batch, indices)
      flat += int(rated.rows.lengths[indices].sum())
      unique += part.trees.count()
      state, metrics = self._step(state, put_rows(part, self._mesh))
      per_step.append(metrics)
      read.append(count_read(part))
      if config.kl_stop and float(metrics['kl_to_sampled']) > config.kl_stop:
        left_out = config.epochs * config.minibatches - number - 1
        break
    # All in one transfer, for which the host waits once.
    steps = [jax.tree.map(float, it) for it in jax.device_get(per_step)]
    means, last = mean_metrics(steps, read), steps[-1]
    # Of counts and of the learning rate the last value is meant, not the mean.
    for name in ('lr', 'skipped'):
      means[name] = last[name]
    # A streak that is too long may end before the last step.
    means['skipped_in_a_row'] = max(it['skipped_in_a_row'] for it in steps)
    means['flat_tokens'], means['unique_tokens'] = flat, unique
    if config.kl_stop:
      means['steps_left_out'] = left_out
    return state, means, batch

  def experience(self, params: Any, rated: Rated, update: int) -> Experience:
    """Computes the arrays that the policy learns from, on the host."""
    rows, reward = rated.rows, self._terms.reward
    values = penalties = np.zeros(rows.tokens.shape, np.float32)
    if self._values is not None:
      values = self._values(params, rows)
    if reward.kl_weight:
      gap = rows.sampled_logprobs - rows.reference_logprobs
      penalties = reward.kl_weight * np.where(rows.written, gap, 0.0)
    # What reads no scores learns from groups with broken ones, too.
    pays_steps = reward.form != 'outcome' and reward.weight > 0
    reads_scores = pays_steps or self._terms.advantage.keep < 1
    scores = rated.rewards if reads_scores else 0 * rows.step_mask
    findings = Findings(
      scores,
      rows.step_mask,
      rows.step_ends,
      rows.outcomes,
      rows.written,
      penalties,
    )
    config, size = self._config, self._config.samples
    share = np.float32(reward.weight_share(update, config.updates))
    advantages = jax.device_get(self._advantages(findings, values, share))
    kept = self._terms.advantage.kept_of(size)
    learned = learned_from(findings, size, kept)
    return Experience(
      rows.written & np.asarray(learned)[:, None],
      rows.sampled_logprobs,
      rows.reference_logprobs,
      *map(np.asarray, advantages),
      values,
    )

  def _lay_out(
    self, rated: Rated, batch: Experience, indices: np.ndarray
  ) -> Minibatch:
    """Lays some chains out in trees, those without a gradient excepted."""
    rows = rated.rows
    chains = jax.tree.map(lambda x: x[indices], batch)
    has_values = self._values is not None
    trees = lay_out(
      rows.tokens[indices],
      rows.lengths[indices],
      self._config.microbatches,
      self._layout,
      find_needed(chains, self._terms.loss, has_values),
    )
    return Minibatch(trees, chains)

  def _minibatches(self, update: int) -> Iterator[np.ndarray]:
    """Yields indices of chains, shuffled anew in every epoch.

    Minibatches consist of whole groups where these divide evenly, because the
    chains of a group share tokens; otherwise of any chains. Neighbours come
    into the same microbatch.
    """
    config = self._config
    whole = config.problems % config.minibatches == 0
    size = config.samples if whole else 1
    for epoch in range(config.epochs):
      rng = np.random.default_rng([self._seed, update, epoch])
      order = rng.permutation(config.chains // size)
      for some in np.split(order, config.minibatches):
        chains = (np.sort(some)[:, None] * size + np.arange(size)).ravel()
        yield chains[interleaved(len(chains), config.microbatches)]


class Tools(NamedTuple):
  """Holds the models that the loop works with.

  Attributes:
    policy: samples, with the parameters that the loop gives it.
    rater: rates the chains; its PRM may learn beside the policy.
    backbone: parameters as trained -> parameters for sampling.
  """

  policy: Generator
  rater: Rater
  learner: Learner
  backbone: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class RlRun:
  """Says how a run goes, and where its metrics and checkpoints are written.

  Attributes:
    mesh: mesh of the policy that is trained.
    evaluate: called before the first update and after some others; the policy
      then has the parameters of that update.
  """

  config: RlLoopConfig
  mesh: Mesh
  workdir: Workdir
  checkpoints: Checkpoints
  writer: MetricWriter
  evaluate: EvaluateUpdate


def improve(
  run: RlRun,
  tools: Tools,
  problems: Sequence[Problem],
  state: TrainState,
  data: Iterator[np.ndarray],
) -> TrainState:
  """Runs from the update of the last checkpoint to the last update.

  Args:
    data: iterates over the indices of each batch's problems; checkpoints keep
      its position.

  Returns:
    The last state.

  Raises:
    Stopped: after SIGTERM or Ctrl-C, with everything saved. With staleness the
      last regular checkpoint counts if batches are in progress, because no
      checkpoint can hold them.
    UserError: too many steps in a row were not finite, or the PRM scored none
      of the chains of too many updates.
  """
  config, checkpoints, writer = run.config, run.checkpoints, run.writer
  done = saved = checkpoints.latest or 0
  unscored, lent = 0, 0.0
  progress = Progress(
    'rl', done, config.updates, processes.is_first(), SHOWN_METRICS
  )
  rate = functools.partial(tools.rater.rate, learn=True)
  batches = Batches(
    config, tools.policy, rate, tools.backbone, problems, data, done
  )
  if not done:
    batches.lend(state.params)
    evaluation, _ = run.evaluate(0)
    writer.write(0, evaluation)
  with (
    StopSignal(run.mesh) as stop,
    jax.set_mesh(run.mesh),
    contextlib.closing(batches),
  ):
    for update in range(done + 1, config.updates + 1):
      clock = [time.monotonic()]
      fresh = batches.next(state.params)
      clock.append(time.monotonic())
      state, metrics, batch = tools.learner.learn(state, fresh.rated, update)
      clock.append(time.monotonic())

      last = update == config.updates
      episodes = fresh.rated.episodes
      metrics |= fresh.rated.metrics | {'staleness': fresh.staleness}
      metrics |= diagnostics.batch_metrics(
        episodes, batch, config.samples, tools.rater.prm is not None
      )
      metrics['chains'] = update * config.chains
      metrics |= _speed(fresh, clock, lent)
      lent = 0.0
      if update % config.log_every == 0 or last:
        writer.write(update, metrics)
        progress.show(update, metrics)
      elif progress.is_due():
        progress.print_step(update, metrics)
      _check_finite(metrics, episodes, update, tools.rater, run)
      unscored = unscored + 1 if _is_unscored(episodes) else 0
      _check_scored(unscored, tools.rater, config)
      evaluation, ends = {}, False
      if update % config.evaluate_every == 0 or last:
        lent = batches.lend(state.params)
        evaluation, ends = run.evaluate(update)
        writer.write(update, evaluation)
      asked = stop.agreed()
      due = update % config.checkpoint_every == 0 or last or ends
      # Batches in progress are in no checkpoint.
      if due or (asked and not batches.ahead):
        writer.flush()
        checkpoints.save(
          update,
          state,
          data,
          # One that a signal asked for is not compared with others.
          evaluation if due else {},
          tools.rater.state,
        )
        saved = update
      if asked:
        progress.break_line()
        checkpoints.close()
        raise stop.stopped(f'rl stopped at update {saved:,}')
      if ends:
        break
    stop.end('rl stopped after its last update', checkpoints.close)
  return state


def _is_unscored(episodes: Sequence[Episode]) -> bool:
  """Says whether there are steps but none has a finite score."""
  scores = np.concatenate([episode.scores for episode in episodes])
  return bool(len(scores)) and not np.isfinite(scores).any()


def _check_scored(unscored: int, rater: Rater, config: RlLoopConfig) -> None:
  """Raises UserError after too many updates in which the PRM scored nothing."""
  if unscored == config.max_skipped_in_a_row:
    raise UserError(
      f'{rater.prm.name} scored none of the chains of the last {unscored} '
      'updates: it is broken, or does not read what the policy writes; score a '
      'chain with it (prm_jax.load, or a request to its server), or name '
      'another in config.prm'
    )


def _speed(
  batch: RatedBatch, clock: Sequence[float], lent: float
) -> dict[str, float]:
  """Returns tokens per second, and how the time was spent.

  Args:
    clock: times at which the batch was requested, ready and learned from.
    lent: seconds that the last evaluation waited for this batch.
  """
  tokens = sum(len(e.sample.written.tokens) for e in batch.rated.episodes)
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
  episodes: Sequence[Episode],
  update: int,
  rater: Rater,
  run: RlRun,
) -> None:
  """Raises UserError after too many bad steps, with the chains on disk."""
  names = ('skipped_in_a_row', 'prm_skipped_in_a_row')
  worst = max(metrics.get(name, 0) for name in names)
  if worst < run.config.max_skipped_in_a_row:
    return
  name = f'not_finite_update_{update}.jsonl'
  records = diagnostics.to_records(
    episodes, f'update {update}', rater.prm is not None
  )
  run.workdir.write_lines(name, records)
  raise UserError(
    f'loss or gradient not finite for {run.config.max_skipped_in_a_row} steps '
    f'in a row, up to update {update}; its chains are in {run.workdir / name}; '
    "lower optim.lr, optim.clip or a PRM's prm.online.lr, or look at these "
    'chains'
  )

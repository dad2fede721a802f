"""Sets how long RL runs, how much it samples and how often it evaluates.

This is the `train` section of an RL config. `loop.py` follows it, and
`pipeline.py` derives from it which parameters sample which batch.
"""

import dataclasses
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class RlLoopConfig:
  """Sets how long RL runs, how much it samples and how often it evaluates.

  Attributes:
    updates: number of batches that are sampled and learned from.
    problems: number of problems in a batch.
    samples: chains of each problem; together they are a group.
    epochs: how often each chain is learned from.
    minibatches: optimizer steps in an epoch.
    microbatches: parts of a minibatch whose gradients add up.
    staleness: how many updates the sampling policy may be behind the learning
      one, see `sampled_after`.
    kl_stop: largest KL divergence from the sampling policy, in nats per token.
      The first step that exceeds it is the last on its batch; 0 takes all
      steps.
    log_every: updates between two lines of metrics.
    evaluate_every: updates between two evaluations on the held-out problems.
    checkpoint_every: updates between two checkpoints; each is evaluated.
    keep: number of latest checkpoints that are kept.
    max_skipped_in_a_row: the run ends after so many consecutive steps that are
      not finite, or consecutive batches without any PRM score.
  """

  updates: Annotated[int, at_least(1)] = 400
  problems: Annotated[int, at_least(1)] = 16
  samples: Annotated[int, at_least(1)] = 8
  epochs: Annotated[int, at_least(1)] = 1
  minibatches: Annotated[int, at_least(1)] = 1
  microbatches: Annotated[int, at_least(1)] = 1
  staleness: Annotated[int, at_least(0)] = 0
  kl_stop: Annotated[float, at_least(0)] = 0.0
  log_every: Annotated[int, at_least(1)] = 1
  evaluate_every: Annotated[int, at_least(1)] = 10
  checkpoint_every: Annotated[int, at_least(1)] = 10
  keep: Annotated[int, at_least(1)] = 2
  max_skipped_in_a_row: Annotated[int, at_least(1)] = 10

  def __post_init__(self) -> None:
    checks.check(self)
    faults = []
    if self.checkpoint_every % self.evaluate_every:
      faults.append(
        checks.Fault(
          'checkpoint_every',
          self.checkpoint_every,
          f'expected a multiple of evaluate_every={self.evaluate_every}',
        )
      )
    if self.chains % self.minibatches:
      faults.append(
        checks.Fault(
          'minibatches',
          self.minibatches,
          f'expected a divisor of problems x samples = {self.chains} chains',
        )
      )
    if self.kl_stop and self.epochs * self.minibatches == 1:
      faults.append(
        checks.Fault(
          'kl_stop',
          self.kl_stop,
          'with one step on each batch there is none to leave out; expected 0, '
          'or more epochs or minibatches',
        )
      )
    if faults:
      raise checks.Faults(faults)

  @property
  def chains(self) -> int:
    """Returns the number of chains in a batch."""
    return self.problems * self.samples

  @property
  def rows(self) -> int:
    """Returns the number of chains on the devices at a time in training."""
    return self.chains // self.minibatches // self.microbatches

  @property
  def steps(self) -> int:
    """Returns the number of optimizer steps in the whole run."""
    return self.updates * self.epochs * self.minibatches

  def check_devices(self, rows: int) -> None:
    """Raises UserError unless minibatches divide over the devices."""
    wanted = rows * self.microbatches
    size = self.chains // self.minibatches
    if size % wanted:
      raise UserError(
        f'config.train.microbatches={self.microbatches}: a minibatch of {size} '
        f'chains does not divide into {self.microbatches} microbatches on '
        f'replica x fsdp = {rows} devices; make it a multiple of {wanted}'
      )


def sampled_after(update: int, staleness: int, checkpoint_every: int) -> int:
  """Returns the update whose parameters sample the batch of `update`.

  It is `staleness` updates before the preceding one, but never before the last
  checkpoint: a resumed run has no older parameters. So no batch is sampled
  before a checkpoint and learned from after it.
  """
  checkpoint = (update - 1) // checkpoint_every * checkpoint_every
  return max(update - 1 - staleness, checkpoint)

"""Defines which PRM rewards the steps of an RL job."""

import dataclasses
from typing import Annotated

from prm_jax.inference.exact_scorer import KINDS as EXACT_KINDS
from prm_jax.jobs.settings.prms import AskedPrmConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, one_of

# Sources of step scores; `RlPrmConfig` explains each.
PRM_KINDS = ('workdir', 'endpoint', 'generative', 'exact', 'implicit', 'none')


@dataclasses.dataclass(frozen=True)
class OnlineConfig:
  """Says how an implicit PRM learns; other optimizer settings are the policy's.

  Attributes:
    on: whether it learns from each batch's outcomes before it scores the batch.
    lr: its peak learning rate.
  """

  on: bool = True
  lr: Annotated[float, above(0)] = 1e-4

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class RlPrmConfig(AskedPrmConfig):
  """Says where step scores come from.

  Attributes:
    kind: also 'exact', labels of the arithmetic domain; 'implicit', a policy's
      log-ratio to the first policy; or 'none', which gives no scores.
    path: for 'implicit' the workdir of the policy from which it starts; '' is
      the one to improve.
    dtype: for 'implicit', '' is as the config's `model` says, or else as that
      policy was trained.
    also: for 'workdir': further PRMs like it; a step gets the lowest of all
      their scores.
    exact: 'steps' is whether a step is right, 'value' the probability that the
      domain's solver ends right from there.
    beta: for 'implicit': the reward is beta * log(PRM / first policy).
  """

  kind: Annotated[str, one_of(*PRM_KINDS)] = 'workdir'
  also: tuple[str, ...] = ()
  exact: Annotated[str, one_of(*EXACT_KINDS)] = 'steps'
  beta: Annotated[float, above(0)] = 0.05
  online: OnlineConfig = OnlineConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.also and self.kind != 'workdir':
      checks.fail('also', self.also, f'expected () with kind={self.kind!r}')
    if self.kind == 'generative':
      with checks.below('generative'):
        self.generative.check_use()

  @property
  def trained(self) -> tuple[str, ...]:
    if self.kind == 'implicit':
      return (self.path,)
    return (*super().trained, *self.also)

"""Defines the settings of the RL job: policy training with per-step rewards.

Everything here is checked before anything is read, sampled or written. The
sections `reward`, `advantage`, `loss` and `train` are dataclasses of
prm_jax/rl/.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from prm_jax.data.config import ProblemsConfig
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs.settings.rl_prms import RlPrmConfig
from prm_jax.jobs.settings.shared import (
  ComputeConfig,
  JobSettings,
  MeshConfig,
  MetricsConfig,
  OpenedAotConfig,
  check_arithmetic,
)
from prm_jax.models import LoraConfig
from prm_jax.models.config import DTYPES
from prm_jax.rl.credit import AdvantageConfig, credited
from prm_jax.rl.implicit import REWARD_FORMS as IMPLICIT_FORMS
from prm_jax.rl.objective import PolicyLossConfig
from prm_jax.rl.rewards import SUMMED, TELESCOPING, RewardConfig
from prm_jax.rl.schedule import RlLoopConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import Fault, at_least, each, one_of
from prm_jax.training.optim import OptimConfig

SUM_ALONE = 'only the sum of such rewards means something; expected'


@dataclasses.dataclass(frozen=True)
class PolicyStartConfig:
  """Says which policy to improve.

  Attributes:
    workdir: workdir of configs/policy_math.py, or of an earlier RL job.
  """

  workdir: str = ''

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class RlSamplingConfig:
  """Says how chains are sampled.

  There are no filters such as top_p, because the loss assumes samples from the
  unchanged policy.

  Attributes:
    slots: number of chains that are written at the same time.
    max_tokens: longest completion in tokens.
    spread: splits the sampling policy's parameters over `mesh.fsdp`, too; see
      `SamplingConfig`.
    devices: number of devices set apart for sampling and scoring beside
      training; 0 does everything on the same devices.
  """

  slots: Annotated[int, at_least(1)] = 64
  max_tokens: Annotated[int, at_least(1)] = 256
  spread: bool = False
  devices: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def sampler(self) -> SamplingConfig:
    """Returns the config of the sampler itself."""
    return SamplingConfig(
      slots=self.slots, max_tokens=self.max_tokens, spread=self.spread
    )


@dataclasses.dataclass(frozen=True)
class ReferenceConfig:
  """Says how the first policy is kept as a reference.

  Attributes:
    param_dtype: dtype of its parameters; '' is as they were trained.
    offload: keeps them in the host's memory, see `views.Reference`.
  """

  param_dtype: Annotated[str, one_of('', *DTYPES)] = ''
  offload: bool = False

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class HeldOutConfig:
  """Says on which problems the policy is watched while it learns.

  Attributes:
    path: a file below problems.root; '' takes the end of the training file.
      A domain has dev problems of its own.
    samples: chains per problem in each evaluation.
  """

  path: str = ''
  problems: Annotated[int, at_least(2)] = 64
  samples: Annotated[int, at_least(1)] = 4

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class FinalTestConfig:
  """Says on which problems the policy is tested before and after.

  Attributes:
    path: a file below problems.root; a domain has test problems of its own.
    problems: number of problems; 0 takes all.
    samples: chains per problem.
  """

  path: str = 'gsm8k/test.jsonl'
  problems: Annotated[int, at_least(0)] = 0
  samples: Annotated[int, at_least(1)] = 16

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class RlEvaluation:
  """Says how the test is evaluated.

  Attributes:
    ns: numbers of samples, ascending, at which pass and majority are shown.
    resamples: number of bootstrap samples for every interval.
  """

  ns: Annotated[tuple[int, ...], each(at_least(1))] = (1, 2, 4, 8, 16)
  resamples: Annotated[int, at_least(1)] = 2000

  def __post_init__(self) -> None:
    checks.check(self)
    checks.check_ascending('ns', self.ns)


@dataclasses.dataclass(frozen=True)
class AlarmConfig:
  """Says what happens when the reward is hacked.

  Attributes:
    stop: whether an alarm ends the run.
  """

  stop: bool = False

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class RlSettings(JobSettings):
  """Holds the settings of configs/rl_math.py.

  Attributes:
    model: how the policy is computed.
  """

  mesh: MeshConfig = MeshConfig()
  policy: PolicyStartConfig = PolicyStartConfig()
  aot: OpenedAotConfig = OpenedAotConfig()
  model: ComputeConfig = ComputeConfig()
  lora: LoraConfig = LoraConfig()
  sampling: RlSamplingConfig = RlSamplingConfig()
  prm: RlPrmConfig = RlPrmConfig()
  reference: ReferenceConfig = ReferenceConfig()
  reward: RewardConfig = RewardConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  loss: PolicyLossConfig = PolicyLossConfig()
  optim: OptimConfig = OptimConfig()
  train: RlLoopConfig = RlLoopConfig()
  problems: ProblemsConfig = ProblemsConfig()
  held_out: HeldOutConfig = HeldOutConfig()
  test: FinalTestConfig = FinalTestConfig()
  evaluation: RlEvaluation = RlEvaluation()
  alarm: AlarmConfig = AlarmConfig()
  metrics: MetricsConfig = MetricsConfig()

  @property
  def has_implicit_prm(self) -> bool:
    """Says whether the PRM is implicit."""
    return self.prm.kind == 'implicit'

  @property
  def reads_reference(self) -> bool:
    """Says whether anything is compared with the first policy."""
    kl_weight = self.loss.kl_weight or self.reward.kl_weight
    return bool(kl_weight or self.has_implicit_prm)

  def check_together(self) -> None:
    if self.prm.kind == 'exact':
      check_arithmetic('prm.kind', 'exact', self.problems)
    faults = [*self._reward_faults(), *self._credit_faults()]
    faults += self._unread_faults()
    if self.has_implicit_prm:
      faults += self._implicit_faults()
    if self.evaluation.ns[-1] > self.test.samples:
      faults.append(
        Fault(
          'evaluation.ns',
          self.evaluation.ns,
          f'expected at most test.samples={self.test.samples}',
        )
      )
    if faults:
      raise checks.Faults(faults)

  def _reward_faults(self) -> Iterator[Fault]:
    """Yields faults of the reward section alone."""
    form, normalise = self.reward.form, self.reward.normalise
    outcome_weight = self.reward.outcome_weight
    if form != 'outcome' and self.prm.kind == 'none':
      yield Fault(
        'reward.form',
        form,
        "needs step scores, and prm.kind='none' gives none; take the variant "
        'outcome, or a PRM',
      )
    if not outcome_weight and (form == 'outcome' or not self.reward.weight):
      yield Fault(
        'reward.outcome_weight',
        outcome_weight,
        'then nothing is rewarded; expected > 0, or another reward.form with a '
        'reward.weight',
      )
    elif not outcome_weight and form == 'potential':
      yield Fault(
        'reward.outcome_weight',
        outcome_weight,
        "then nothing is rewarded: with reward.form='potential' the rewards of "
        'every chain of a problem have the same sum; expected > 0, or another '
        'reward.form',
      )
    if self.reward.chains != 'all' and self.reward.is_summed:
      yield Fault(
        'reward.chains',
        self.reward.chains,
        f"with {self._summed_by} {SUM_ALONE} 'all'",
      )
    if form in TELESCOPING and normalise != 'none':
      yield Fault(
        'reward.normalise',
        normalise,
        f"with reward.form={form!r} {SUM_ALONE} 'none'",
      )

  @property
  def _summed_by(self) -> str:
    """Returns the setting that makes rewards comparable by their sums alone."""
    name = 'form' if self.reward.form in SUMMED else 'normalise'
    return f'reward.{name}={getattr(self.reward, name)!r}'

  def _credit_faults(self) -> Iterator[Fault]:
    """Yields faults of rewards and estimators that do not go together."""
    reward, advantage = self.reward, self.advantage
    form, summed = reward.form, reward.is_summed
    in_wrong_alone = reward.chains != 'all' and form != 'outcome' and not summed
    with_form = f'with {self._summed_by} {SUM_ALONE}'
    if advantage.keep < 1:
      yield from self._keep_faults()
    if advantage.estimator == 'gae':
      if form in TELESCOPING and advantage.discount != 1:
        yield Fault('advantage.discount', advantage.discount, f'{with_form} 1')
      if in_wrong_alone and form != 'clip':
        yield Fault(
          'reward.chains',
          reward.chains,
          "with advantage.estimator='gae' a wrong chain could be paid more "
          "than a right one; expected 'all', or reward.form='clip'",
        )
      return
    process = credited(reward, advantage)
    if (summed and process == 'step') or (
      form in TELESCOPING and process not in ('return', 'to_go')
    ):
      yield Fault(
        'advantage.process',
        process,
        f"{with_form} 'return', or advantage.estimator='gae'",
      )
    elif in_wrong_alone and process != 'step':
      yield Fault(
        'advantage.process',
        process,
        "with reward.chains='wrong' steps are paid or not by the outcome, "
        "which no step knows; expected 'step'",
      )
    if self.train.samples < 2:
      yield Fault(
        'train.samples',
        self.train.samples,
        f'advantage.estimator={advantage.estimator!r} compares a chain with '
        "others of its problem; expected >= 2, or advantage.estimator='gae'",
      )

  def _unread_faults(self) -> Iterator[Fault]:
    """Yields settings that would change nothing."""
    estimator, kind = self.advantage.estimator, self.problems.kind
    of_gae, of_groups = ('discount', 'trace'), ('process', 'baseline')
    for name in of_groups if estimator == 'gae' else of_gae:
      value = getattr(self.advantage, name)
      default = getattr(AdvantageConfig, name)
      if value != default:
        yield Fault(
          f'advantage.{name}',
          value,
          f'advantage.estimator={estimator!r} does not read it; expected '
          f'{default!r}',
        )
    if self.alarm.stop and self.prm.kind == 'none':
      yield Fault(
        'alarm.stop',
        True,
        "prm.kind='none' raises no alarm; expected False, or a PRM",
      )
    for name, path, default in (
      ('held_out.path', self.held_out.path, HeldOutConfig.path),
      ('test.path', self.test.path, FinalTestConfig.path),
    ):
      if kind != 'file' and path != default:
        yield Fault(
          name,
          path,
          f'problems.kind={kind!r} has held-out problems and test problems of '
          f'its own; expected {default!r}',
        )

  def _keep_faults(self) -> Iterator[Fault]:
    """Yields faults of a filter of chains."""
    keep, samples = self.advantage.keep, self.train.samples
    if self.prm.kind == 'none':
      yield Fault(
        'advantage.keep', keep, "needs step scores, and prm.kind='none'"
      )
    if self.advantage.kept_of(samples) < 2:
      yield Fault(
        'advantage.keep',
        keep,
        f'leaves 1 of train.samples={samples}; expected 2 or more',
      )
    elif self.advantage.kept_of(samples) == samples:
      yield Fault(
        'advantage.keep',
        keep,
        f'drops none of train.samples={samples} chains; lower it, or set it to '
        '1.0',
      )

  def _implicit_faults(self) -> Iterator[Fault]:
    """Yields settings that do not go with an implicit PRM."""
    reward, prm = self.reward, self.prm
    if reward.form not in IMPLICIT_FORMS:
      yield Fault(
        'reward.form',
        reward.form,
        "takes probabilities, and prm.kind='implicit' gives rewards; expected "
        f'one of {", ".join(IMPLICIT_FORMS)}',
      )
    if reward.centre:
      yield Fault(
        'reward.centre',
        reward.centre,
        "with prm.kind='implicit' a step that is worth nothing has the "
        'log-ratio 0; expected 0.0, as in the variant prime',
      )
    if not prm.online.on and not prm.path:
      yield Fault(
        'prm.online.on',
        False,
        'a PRM that stays the first policy rewards nothing; expected True, or '
        'the workdir of another policy in prm.path',
      )

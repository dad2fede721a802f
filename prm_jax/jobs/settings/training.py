"""Defines the settings of the training jobs: reward model, supervised policy.

They are checked before anything is read, drawn or written, so an error in a
config costs a second and not a training run.
"""

import dataclasses
from typing import Annotated, ClassVar, NamedTuple

from prm_jax.data.config import DataConfig
from prm_jax.data.targets import TargetConfig
from prm_jax.evals.policy import PolicyEvaluation
from prm_jax.evals.prm import PrmEvaluation
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs.settings.shared import (
  AotConfig,
  JobSettings,
  MeshConfig,
  MetricsConfig,
  ModelConfig,
  check_supervision,
)
from prm_jax.models import HeadConfig, LoraConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, between, each, one_of
from prm_jax.runtime.profiling import ProfileConfig
from prm_jax.training import losses
from prm_jax.training.loop import TrainConfig
from prm_jax.training.objective import POLICY_LOSS, LossConfig
from prm_jax.training.optim import OptimConfig


class FrozenHead(NamedTuple):
  """Says what a head on a frozen backbone reads of a step.

  Attributes:
    hidden: width of a layer before the outputs; 0 is a linear head.
  """

  state: bool
  likelihood: bool
  hidden: int = 0


FROZEN_HEADS = {
  'likelihood': FrozenHead(state=False, likelihood=True),
  'state': FrozenHead(state=True, likelihood=False),
  'both': FrozenHead(state=True, likelihood=True),
  'mlp': FrozenHead(state=True, likelihood=True, hidden=64),
}
# What a config may say of a model that a pretrained base describes.
COMPUTED = {'dtype', 'param_dtype', 'remat', 'scan_unroll'}


@dataclasses.dataclass(frozen=True)
class TrainingSettings(JobSettings):
  """Holds the settings that training reward models and policies share.

  Attributes:
    base: what the backbone starts from: a folder, hf://owner/name, a .gguf
      file, 'smollm2', or the workdir of a run; '' starts from scratch.
    model: the architecture, or with a base how it is computed.
    profile: training steps to record for XProf.
  """

  mesh: MeshConfig = MeshConfig()
  data: DataConfig = DataConfig()
  aot: AotConfig = AotConfig()
  base: str = ''
  model: ModelConfig = ModelConfig()
  lora: LoraConfig = LoraConfig()
  optim: OptimConfig = OptimConfig()
  train: TrainConfig = TrainConfig()
  profile: ProfileConfig = ProfileConfig()
  metrics: MetricsConfig = MetricsConfig()
  # The evaluation metrics that may choose the best checkpoint.
  best_metrics: ClassVar[tuple[str, ...]] = ('',)

  def check_together(self) -> None:
    self.profile.check(self.train.steps)
    if self.train.best_metric not in self.best_metrics:
      shown = ', '.join(name or "''" for name in self.best_metrics)
      checks.fail(
        'train.best_metric', self.train.best_metric, f'expected one of {shown}'
      )
    if self.base:
      self._check_base()
    else:
      self._check_scratch()

  def _check_base(self) -> None:
    if extra := sorted(set(self.model.given()) - COMPUTED):
      checks.fail(
        f'model.{extra[0]}',
        self.model.given()[extra[0]],
        f'base={self.base!r} brings its own; start from a variant with a base, '
        'such as :smollm2, and set --config.base there',
      )
    if self.data.tokenizer:
      checks.fail(
        'data.tokenizer',
        self.data.tokenizer,
        f"{self.base} brings its own; set it to ''",
      )

  def _check_scratch(self) -> None:
    if self.lora.rank:
      checks.fail(
        'lora.rank',
        self.lora.rank,
        'adapters need a trained backbone; set base, or lora.rank=0',
      )
    given = self.model.given()
    for name in ('d_model', 'n_layers', 'n_heads', 'n_kv_heads', 'd_ff'):
      if name not in given:
        checks.fail(
          f'model.{name}',
          None,
          "base='' leaves it open; set --config.base, or take a variant from "
          'scratch',
        )


@dataclasses.dataclass(frozen=True)
class FrozenConfig:
  """Says which heads are fitted on a backbone that stays as it is.

  Attributes:
    heads: names of FROZEN_HEADS; the first becomes the run's model. () trains
      the whole model.
    seeds: how often each head is fitted for the comparison, each time on
      another draw of `share` of the training problems; 1 fits once, on all. The
      run's model is always fitted on all.
    share: share of the problems that a seed draws.
    chains: training chains that are read, evenly spaced; 0 reads all.
    decay: adds decay / 2 times the squared weights of the features, in units of
      their standard deviation, to the loss.
    features: folder that keeps what the backbone made of the steps, which
      several workdirs with one backbone may share; '' is features in the
      workdir.
  """

  heads: Annotated[tuple[str, ...], each(one_of(*FROZEN_HEADS))] = ()
  seeds: Annotated[int, at_least(1)] = 5
  share: Annotated[float, between(0, 1)] = 0.8
  chains: Annotated[int, at_least(0)] = 0
  decay: Annotated[float, at_least(0)] = 0.1
  features: str = ''

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class PrmSettings(TrainingSettings):
  """Holds the settings of configs/prm_math.py.

  Attributes:
    orm_baseline: also train an outcome model on the same chains, to compare.
    frozen: trains heads alone.
    keep_head: whether training starts from the base's head instead of a random
      one; the base must be a PRM that was trained here.
  """

  orm_baseline: bool = True
  frozen: FrozenConfig = FrozenConfig()
  keep_head: bool = False
  targets: TargetConfig = TargetConfig()
  head: HeadConfig = HeadConfig()
  loss: LossConfig = LossConfig()
  evaluation: PrmEvaluation = PrmEvaluation()
  sampling: ClassVar[None] = None
  best_metrics: ClassVar[tuple[str, ...]] = ('eval/auc', '')

  def check_together(self) -> None:
    super().check_together()
    losses.check_loss(self.loss.name, self.head)
    check_supervision(self.targets.supervision)
    self._check_counts()
    self._check_outcome()
    if self.frozen.heads:
      self._check_frozen()
    names = (*self.data.evaluation_names, '')
    if self.evaluation.best_of_n not in names:
      shown = ', '.join(name or "''" for name in names)
      checks.fail(
        'evaluation.best_of_n',
        self.evaluation.best_of_n,
        f'expected one of {shown}',
      )

  def _check_frozen(self) -> None:
    with_heads = 'with frozen.heads'
    wrong = {
      'head.kind': (
        self.head.kind,
        self.head.kind == 'regression',
        'expected logit, two_class or three_class',
      ),
      'head.hidden': (
        self.head.hidden,
        self.head.hidden > 0,
        "expected 0; the head 'mlp' has a hidden layer",
      ),
      'keep_head': (
        self.keep_head,
        self.keep_head,
        'expected False: they are fitted anew; leave out the variant frozen',
      ),
      'lora.rank': (self.lora.rank, self.lora.rank > 0, 'expected 0'),
      'loss.lm_weight': (
        self.loss.lm_weight,
        self.loss.lm_weight > 0,
        'expected 0: the backbone is not trained',
      ),
      'loss.name': (
        self.loss.name,
        self.loss.name == 'ranking',
        'it compares steps of a chain; choose another loss',
      ),
      'orm_baseline': (self.orm_baseline, self.orm_baseline, 'expected False'),
    }
    for name, (value, is_wrong, cure) in wrong.items():
      if is_wrong:
        checks.fail(name, value, f'{with_heads}: {cure}')

  def _check_outcome(self) -> None:
    """Raises Faults for settings with which an outcome model has no use."""
    of_outcome = self.targets.supervision == 'outcome'
    if self.loss.name == 'ranking' and (of_outcome or self.orm_baseline):
      checks.fail(
        'loss.name',
        'ranking',
        'compares the steps of a chain, and an outcome model learns from one '
        'alone; choose another loss.name, or orm_baseline=False and '
        "targets.supervision='process'",
      )
    if of_outcome and self.orm_baseline:
      checks.fail(
        'orm_baseline',
        True,
        "with targets.supervision='outcome' the model itself is an outcome "
        'model; expected False',
      )

  def _check_counts(self) -> None:
    """Raises Faults if a loss of rollout counts has data without counts."""
    if self.loss.name != 'beta_binomial':
      return
    with_loss = "with loss.name='beta_binomial'"
    if self.targets.hard_above is not None:
      checks.fail(
        'targets.hard_above',
        self.targets.hard_above,
        f'{with_loss} it would make 8 successes, or none, of 4 in 8 rollouts; '
        'unset it, or choose another loss.name',
      )
    if self.targets.after_first_error == 'bad':
      checks.fail(
        'targets.after_first_error',
        'bad',
        f'{with_loss} it would make no success of 4 in 8 rollouts; expected '
        "'keep' or 'mask', or another loss.name",
      )
    if self.targets.supervision == 'outcome':
      checks.fail(
        'targets.supervision',
        'outcome',
        f"{with_loss} an outcome has no rollouts to count; expected 'process', "
        'or another loss.name',
      )
    if self.orm_baseline:
      checks.fail(
        'orm_baseline',
        True,
        f'{with_loss} the outcome model has no rollouts to count; expected '
        'False, or another loss.name',
      )


@dataclasses.dataclass(frozen=True)
class PolicySettings(TrainingSettings):
  """Holds the settings of configs/policy_math.py.

  Attributes:
    sampling: how the evaluation samples the policy.
  """

  sampling: SamplingConfig = SamplingConfig()
  evaluation: PolicyEvaluation = PolicyEvaluation()
  # Sections of a reward model's config; the same for every policy.
  head: ClassVar[None] = None
  keep_head: ClassVar[bool] = False
  loss: ClassVar[LossConfig] = POLICY_LOSS
  targets: ClassVar[TargetConfig] = TargetConfig(supervision='completion')
  best_metrics: ClassVar[tuple[str, ...]] = ('eval/log_likelihood', '')

  def check_together(self) -> None:
    super().check_together()
    if self.data.kind != 'files' and not self.data.test_problems:
      checks.fail(
        'data.test_problems',
        0,
        'the policy is evaluated on test problems: expected >= 1',
      )
    if self.train.head_only_steps:
      checks.fail(
        'train.head_only_steps',
        self.train.head_only_steps,
        'a policy has no head: expected 0',
      )

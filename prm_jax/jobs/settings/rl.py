"""From an RL job's config to frozen values, its problems and its first policy.

What stands here runs before anything is trained or written.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from prm_jax.data import problems as problems_lib
from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs import step_scorers
from prm_jax.models import LoraConfig
from prm_jax.models.config import DTYPES
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.implicit import FORMS as FORMS_OF_IMPLICIT
from prm_jax.rl.implicit import ImplicitConfig
from prm_jax.rl.loop import LoopConfig
from prm_jax.rl.objective import PolicyLossConfig
from prm_jax.rl.rewards import TELESCOPING, RewardConfig
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.training.optim import OptimConfig

BEST_METRIC = 'eval/accuracy'
IMPLICIT = 'implicit'  # a kind of PRM that only this job has
SECTIONS = (
  'policy',
  'model',
  'lora',
  'sampling',
  'prm',
  'reference',
  'reward',
  'advantage',
  'loss',
  'optim',
  'train',
  'problems',
  'held_out',
  'test',
  'evaluation',
  'alarm',
)


@dataclasses.dataclass(frozen=True)
class ReferenceConfig:
  """How the first policy is kept, where the job compares with it.

  Attributes:
    param_dtype: of its parameters; '': as they were trained.
    offload: whether they wait in the host's memory, see `views.Reference`.
  """

  param_dtype: str = ''
  offload: bool = False

  def __post_init__(self) -> None:
    check_dtype('reference.param_dtype', self.param_dtype)


class Settings(NamedTuple):
  """The frozen values that a ConfigDict describes.

  Attributes:
    implicit: None where the PRM is of another kind.
  """

  loop: LoopConfig
  reward: RewardConfig
  kl_in_reward: float
  advantage: AdvantageConfig
  loss: PolicyLossConfig
  optim: OptimConfig
  sampling: SamplingConfig
  lora: LoraConfig
  reference: ReferenceConfig
  implicit: ImplicitConfig | None

  @property
  def reads_reference(self) -> bool:
    """Whether something is compared with the first policy."""
    kl_weight = self.loss.kl_weight or self.kl_in_reward
    return bool(kl_weight or self.implicit)


def check_dtype(name: str, dtype: str) -> None:
  """Raises UserError unless it is empty or a dtype of models."""
  if dtype not in ('', *DTYPES):
    raise UserError(f'{name}={dtype!r}: expected one of {DTYPES}')


def settings_of(config: Mapping[str, Any]) -> Settings:
  """Checks a config: every fault that can be seen without data is seen here."""
  for name in SECTIONS:
    if name not in config:
      raise UserError(
        f"config.task='rl' reads config.{name}, which this file does not have: "
        'configs/rl_math.py trains policies with rewards'
      )
  reward = dict(config['reward'])
  kl_in_reward = reward.pop('kl_weight')
  sampling = dict(config['sampling'])
  apart = sampling.pop('devices')
  settings = Settings(
    loop=LoopConfig(**config['train']),
    reward=RewardConfig(**reward),
    kl_in_reward=kl_in_reward,
    advantage=AdvantageConfig(**config['advantage']),
    loss=PolicyLossConfig(
      **config['loss'], max_tokens=config['sampling']['max_tokens']
    ),
    optim=OptimConfig(**config['optim']),
    # As the policy is: a filter would hide what the loss is about.
    sampling=SamplingConfig(**sampling),
    lora=LoraConfig(**config['lora']),
    reference=ReferenceConfig(**config['reference']),
    implicit=_implicit_of(config),
  )
  problems_lib.check(config['problems'] | {'split': 'train'})
  step_scorers.check(config['prm'], IMPLICIT)
  check_dtype('prm.dtype', config['prm']['dtype'])
  _check_credit(settings)
  if apart < 0:
    raise UserError(f'sampling.devices={apart}: expected >= 0 (0: none apart)')
  if kl_in_reward < 0:
    raise UserError(f'reward.kl_weight={kl_in_reward}: expected >= 0')
  if settings.reward.form != 'outcome' and config['prm']['kind'] == 'none':
    raise UserError(
      f'reward.form={settings.reward.form!r} wants step scores, and '
      "prm.kind='none' gives none; take the variant outcome, or a PRM"
    )
  for name, least in (('held_out', 2), ('test', 0)):
    if config[name]['problems'] < least or config[name]['samples'] < 1:
      raise UserError(f'{name}: expected problems >= {least} and samples >= 1')
  ns = tuple(config['evaluation']['ns'])
  ascending = all(a < b for a, b in itertools.pairwise((0, *ns)))
  if not ns or not ascending or ns[-1] > config['test']['samples']:
    raise UserError(
      f'evaluation.ns={ns}: expected ascending numbers from 1 up to '
      f'test.samples={config["test"]["samples"]}'
    )
  return settings


def _check_credit(settings: Settings) -> None:
  """Raises UserError for rewards and estimators that do not go together."""
  form, config = settings.reward.form, settings.advantage
  if form in TELESCOPING and settings.reward.normalise != 'none':
    raise UserError(
      f'reward.form={form!r} with reward.normalise='
      f'{settings.reward.normalise!r}: what such a reward means is its sum; '
      'set reward.normalise to none'
    )
  if config.estimator == 'gae':
    if form in TELESCOPING and config.discount != 1:
      raise UserError(
        f'reward.form={form!r} with advantage.discount={config.discount}: what '
        'such a reward means is its sum; set advantage.discount to 1'
      )
    return
  if form in TELESCOPING and config.process != 'to_go':
    raise UserError(
      f'reward.form={form!r} with advantage.process={config.process!r}: what '
      'such a reward means is its sum from a step on; set advantage.process to '
      'to_go, or advantage.estimator to gae'
    )
  if settings.loop.samples < 2:
    raise UserError(
      f'train.samples=1 with advantage.estimator={config.estimator!r}: a chain '
      'is compared with others of its problem; sample 2 or more, or set '
      'advantage.estimator to gae'
    )


def _implicit_of(config: Mapping[str, Any]) -> ImplicitConfig | None:
  prm = config['prm']
  if prm['kind'] != IMPLICIT:
    return None
  form = config['reward']['form']
  if form not in FORMS_OF_IMPLICIT:
    raise UserError(
      f'reward.form={form!r} is made of probabilities, and what '
      f'prm.kind={IMPLICIT!r} gives are rewards; expected one of '
      f'{", ".join(FORMS_OF_IMPLICIT)}'
    )
  if centre := config['reward']['centre']:
    raise UserError(
      f'reward.centre={centre} with prm.kind={IMPLICIT!r}: a log-ratio that is '
      'worth nothing is 0; set it to 0.0, as the variant prime does'
    )
  online = prm['online']
  if not online['on'] and not prm['path']:
    raise UserError(
      'prm.online.on=False and no prm.path: a PRM that stays the first policy '
      'rewards nothing; let it learn, or name the --workdir of another policy'
    )
  return ImplicitConfig(prm['beta'], online['on'], online['lr'])


class Start(NamedTuple):
  """A policy that there is: the one to be improved, or an implicit PRM's first.

  Attributes:
    folder: of its run.
    was, described: how it was trained, and how it is from now on.
    step: of its checkpoint.
  """

  folder: paths.Path
  was: ModelDescription
  described: ModelDescription
  step: int

  @property
  def name(self) -> str:
    return loading.run_name(self.folder, self.step)

  def load(self, mesh: Mesh, param_dtype: str = '') -> Any:
    """Its backbone, adapters merged, on the mesh.

    Args:
      param_dtype: that it is read in; '': as it was trained.
    """
    was = self.was
    if param_dtype:
      was = was.with_model(param_dtype=param_dtype)
    params, _, _ = loading.open_checkpoint(
      self.folder, was, self.step, mesh=mesh
    )
    return params['backbone']


def computed(config: Mapping[str, Any]) -> dict[str, Any]:
  """What a config says of how a policy is computed, beside how it was."""
  said = config['model'].items()
  return {name: value for name, value in said if value not in ('', -1)}


def open_start(
  name: str, config: Mapping[str, Any], settings: Settings
) -> Start:
  """Reads what kind of policy it is; its parameters are read by `load`.

  Args:
    name: its workdir.

  Raises:
    UserError: it is none.
  """
  if not name:
    raise UserError(
      'policy.workdir is empty; name the --workdir of a trained policy '
      '(configs/policy_math.py)'
    )
  folder = paths.open_path(name).expanduser()
  if not (folder / 'model.json').is_file():
    raise UserError(
      f'{folder} holds no model.json of a training run; name the workdir of a '
      'policy, as configs/policy_math.py trains one'
    )
  was = loading.read_description(folder)
  if was.head is not None or was.format.end is None:
    raise UserError(
      f'{folder} holds a reward model, which writes nothing; name the workdir '
      'of a policy'
    )
  described = dataclasses.replace(
    was.with_model(**computed(config)),
    lora=settings.lora,
    best_metric=BEST_METRIC,
  )
  return Start(folder, was, described, loading.best_step(folder, was))

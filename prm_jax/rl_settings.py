"""From an RL job's config to frozen values, its problems and its first policy.

What stands here runs before anything is trained or written.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grain
import numpy as np
from jax.sharding import Mesh

from prm_jax import loading, manifest, paths, step_scorers
from prm_jax.data import problems as problems_lib
from prm_jax.data.problems import Problem
from prm_jax.encoding import StepFormat
from prm_jax.errors import UserError
from prm_jax.generate import SamplingConfig
from prm_jax.loading import ModelDescription
from prm_jax.models import LoraConfig
from prm_jax.models.config import DTYPES
from prm_jax.models.safetensors_files import HUB
from prm_jax.optim import OptimConfig
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.implicit import FORMS as FORMS_OF_IMPLICIT
from prm_jax.rl.implicit import ImplicitConfig
from prm_jax.rl.loop import LoopConfig
from prm_jax.rl.objective import PolicyLossConfig
from prm_jax.rl.rewards import TELESCOPING, RewardConfig

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


class Tasks(NamedTuple):
  """Problems to learn from, and others."""

  train: list[Problem]
  held_out: list[Problem]
  test: list[Problem]


def read_tasks(config: Mapping[str, Any]) -> Tasks:
  """All problems of the job.

  Of arithmetic problems those of the three splits. Of files, what is held out
  has a file of its own, or is the end of the training file.
  """
  section, seed = config['problems'], config['seed']

  def read(split: str, path: str = '') -> list[Problem]:
    given = section | {'split': split} | ({'path': path} if path else {})
    return problems_lib.read_problems(given, seed)

  count = config['held_out']['problems']
  train = read('train')
  if section['kind'] == 'arithmetic' or config['held_out']['path']:
    held_out = read('dev', config['held_out']['path'])[:count]
  else:
    train, held_out = train[:-count], train[-count:]
  test = read('test', config['test']['path'])
  tasks = Tasks(train, held_out, test[: config['test']['problems'] or None])
  for name, found in tasks._asdict().items():
    if len(found) < (config['train']['problems'] if name == 'train' else 2):
      raise UserError(
        f'{len(found)} problems to {name.replace("_", " ")}: too few; see '
        'problems, held_out and test in the config'
      )
  known = {problem.text for problem in train}
  if met := [p.id for p in (*tasks.held_out, *tasks.test) if p.text in known]:
    raise UserError(
      f'{len(met)} problems of held_out or test are trained on, such as '
      f'{met[0][:60]!r}; name other files'
    )
  return tasks


def that_fit(
  tasks: Tasks, fmt: StepFormat, log: Callable[[str], None]
) -> Tasks:
  """Without the problems that leave the policy no room to write.

  Those of the test stay: they are answered wrongly.

  Raises:
    UserError: too few are left.
  """

  def fitting(name: str, problems: list[Problem]) -> list[Problem]:
    kept = [p for p in problems if fmt.has_room(p.text)]
    if left_out := len(problems) - len(kept):
      log(
        f'rl: {left_out:,} of {len(problems):,} problems ({name}) left out: no '
        f"room for a chain in the policy's window of {fmt.max_length} tokens"
      )
    return kept

  fit = tasks._replace(
    train=fitting('train', tasks.train),
    held_out=fitting('held out', tasks.held_out),
  )
  if not fit.train or len(fit.held_out) < 2:
    raise UserError(
      f"the policy's window of {fmt.max_length} tokens is too short for these "
      'problems; train one with a longer data.max_length'
    )
  return fit


def check_unseen(tasks: Tasks, model: str | os.PathLike) -> None:
  """Problems that tell what is learned are none that a model has learned from.

  Seen for runs on the arithmetic domain, whose splits are drawn again.

  Args:
    model: the workdir of its run; of a published one nothing is known, and ''
      is none.

  Raises:
    UserError: some are.
  """
  if not model or str(model).startswith(HUB):
    return
  path = paths.open_path(model).expanduser() / 'config.json'
  if not path.is_file():
    return
  trained = paths.read_json(path, manifest.DELETE)
  section = trained.get('data') or trained.get('problems') or {}
  if section.get('kind') != 'arithmetic' or section.get('labels'):
    return
  known = problems_lib.read_problems(
    section | {'split': 'train'}, trained['seed']
  )
  texts = {problem.text for problem in known}
  told = [*tasks.held_out, *tasks.test]
  if met := [problem for problem in told if problem.text in texts]:
    raise UserError(
      f'{model} was trained on {len(met):,} of the {len(told):,} problems of '
      f'held_out and test, such as {met[0].text!r}; set seed, '
      'problems.train_problems, dev_problems and test_problems as they are in '
      f'{path}'
    )


def batches_of(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Indices of the problems of each batch, shuffled anew in every epoch."""
  data = grain.MapDataset.range(count).shuffle(seed=seed).repeat().batch(size)
  return iter(data.to_iter_dataset(grain.ReadOptions(1, 2)))


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

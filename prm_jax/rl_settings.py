"""From an RL job's config to frozen values, its problems and its first policy.

What stands here runs before anything is trained or written.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grain
import numpy as np
from jax.sharding import Mesh

from prm_jax import loading, paths, step_scorers
from prm_jax.data import problems as problems_lib
from prm_jax.data.problems import Problem
from prm_jax.errors import UserError
from prm_jax.generate import SamplingConfig
from prm_jax.loading import ModelDescription
from prm_jax.models import LoraConfig
from prm_jax.optim import OptimConfig
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.loop import LoopConfig
from prm_jax.rl.objective import PolicyLossConfig
from prm_jax.rl.rewards import RewardConfig

BEST_METRIC = 'eval/accuracy'
SECTIONS = (
  'policy',
  'model',
  'lora',
  'sampling',
  'prm',
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


class Settings(NamedTuple):
  """The frozen values that a ConfigDict describes."""

  loop: LoopConfig
  reward: RewardConfig
  kl_in_reward: float
  advantage: AdvantageConfig
  loss: PolicyLossConfig
  optim: OptimConfig
  sampling: SamplingConfig
  lora: LoraConfig


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
  settings = Settings(
    loop=LoopConfig(**config['train']),
    reward=RewardConfig(**reward),
    kl_in_reward=kl_in_reward,
    advantage=AdvantageConfig(**config['advantage']),
    loss=PolicyLossConfig(**config['loss']),
    optim=OptimConfig(**config['optim']),
    # As the policy is: a filter would hide what the loss is about.
    sampling=SamplingConfig(**config['sampling']),
    lora=LoraConfig(**config['lora']),
  )
  problems_lib.check(config['problems'] | {'split': 'train'})
  step_scorers.check(config['prm'])
  if not config['policy']['workdir']:
    raise UserError(
      'policy.workdir is empty; name the --workdir of a trained policy '
      '(configs/policy_math.py)'
    )
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
  if not ns or ns[-1] > config['test']['samples']:
    raise UserError(
      f'evaluation.ns={ns}: expected numbers up to test.samples='
      f'{config["test"]["samples"]}'
    )
  return settings


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


def batches_of(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Indices of the problems of each batch, shuffled anew in every epoch."""
  data = grain.MapDataset.range(count).shuffle(seed=seed).repeat().batch(size)
  return iter(data.to_iter_dataset(grain.ReadOptions(1, 2)))


class Start(NamedTuple):
  """The policy that is to be improved.

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

  def load(self, mesh: Mesh) -> Any:
    """Its backbone, adapters merged, on the mesh."""
    params, _, _ = loading.open_checkpoint(
      self.folder, self.was, self.step, mesh=mesh
    )
    return params['backbone']


def open_start(config: Mapping[str, Any], settings: Settings) -> Start:
  """Reads what kind of policy it is; its parameters are read by `load`.

  Raises:
    UserError: it is none.
  """
  folder = paths.open_path(config['policy']['workdir']).expanduser()
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
  changes = {
    name: value
    for name, value in config['model'].items()
    if value not in ('', -1)
  }
  described = dataclasses.replace(
    was,
    model=dataclasses.replace(was.model, **changes),
    lora=settings.lora,
    best_metric=BEST_METRIC,
  )
  step = loading.best_step(folder, was)
  return Start(folder, was, described, step)

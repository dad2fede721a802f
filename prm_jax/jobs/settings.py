"""From a training job's config to frozen values, checked as far as data allow.

What stands here runs before anything is read, drawn or written: a fault in a
config costs a second and not the training run before it is met.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from prm_jax.data.encoding import make_format
from prm_jax.data.targets import TargetConfig
from prm_jax.inference.loading import ModelDescription
from prm_jax.inference.pretrained import Pretrained, open_pretrained
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.score import AGGREGATES
from prm_jax.models import HeadConfig, LoraConfig, TransformerConfig
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.profiling import ProfileConfig
from prm_jax.training import losses
from prm_jax.training.loop import LoopConfig
from prm_jax.training.objective import POLICY_LOSS, LossConfig
from prm_jax.training.optim import OptimConfig

# What the evaluation during training gives, higher is better.
BEST_METRICS = {'prm': ('eval/auc', ''), 'policy': ('eval/log_likelihood', '')}
# What only the configs of a task have.
SECTIONS = {'prm': ('head', 'loss', 'targets'), 'policy': ('sampling',)}
# All that a config says of a model that is a pretrained one.
COMPUTED = {'dtype', 'param_dtype', 'remat', 'scan_unroll'}
POSITIVE = {
  'data': ('batch_size', 'max_length', 'row_length', 'max_steps_per_row'),
  'train': (
    'steps',
    'microbatches',
    'log_every',
    'checkpoint_every',
    'keep',
    'max_skipped_in_a_row',
  ),
  'evaluation': ('resamples',),
}


@dataclasses.dataclass(frozen=True)
class Settings:
  """The frozen values that a ConfigDict describes.

  Attributes:
    base: what the backbone starts from; None: random.
    sampling: how a policy is sampled; None of a reward model.
  """

  described: ModelDescription
  base: Pretrained | None
  loss: LossConfig
  optim: OptimConfig
  loop: LoopConfig
  targets: TargetConfig
  profile: ProfileConfig
  sampling: SamplingConfig | None


def settings_of(config: Mapping[str, Any]) -> Settings:
  """Checks a config: every fault that can be seen without data is seen here."""
  _check_task(config)
  base = open_pretrained(config['base']) if config['base'] else None
  described = _describe(config, base, head_of(config))
  if described.head is None and described.format.end is None:
    raise UserError(
      "data.end='': a policy ends its chains with a token of their own; set it "
      'to one of the tokenizer, best a special one'
    )
  if base is not None and described.lora.rank:
    # No master is made of what stays, so float32 is never needed.
    load = functools.partial(base.load, dtype=described.model.param_dtype)
    base = dataclasses.replace(base, load=load)
  settings = Settings(
    described=described,
    base=base,
    loss=loss_of(config),
    optim=OptimConfig(**config['optim']),
    loop=LoopConfig(**config['train']),
    targets=targets_of(config),
    profile=ProfileConfig(**config['profile']),
    sampling=sampling_of(config),
  )
  check_values(config)
  return settings


def head_of(config: Mapping[str, Any]) -> HeadConfig | None:
  """The head of a reward model; a policy has none."""
  return None if config['task'] == 'policy' else HeadConfig(**config['head'])


def loss_of(config: Mapping[str, Any]) -> LossConfig:
  """What is minimised."""
  if config['task'] == 'policy':
    return POLICY_LOSS
  return LossConfig(**config['loss'])


def targets_of(config: Mapping[str, Any]) -> TargetConfig:
  """What is learned of a chain: its labels, or the chain itself."""
  if config['task'] == 'policy':
    return TargetConfig(supervision='completion')
  targets = TargetConfig(**config['targets'])
  if targets.supervision == 'completion':
    raise UserError(
      "targets.supervision='completion' is for policies: expected process or "
      'outcome; configs/policy_math.py trains a policy'
    )
  return targets


def sampling_of(config: Mapping[str, Any]) -> SamplingConfig | None:
  """How a policy is sampled; None of a reward model."""
  if config['task'] != 'policy':
    return None
  return SamplingConfig(**config['sampling'])


def _check_task(config: Mapping[str, Any]) -> None:
  """Raises UserError where a config is made for another task than its own."""
  task = config['task']
  _check_choice('config.task', task, tuple(SECTIONS))
  for name in SECTIONS[task]:
    if name not in config:
      raise UserError(
        f'config.task={task!r} reads config.{name}, which this file does not '
        'have: configs/prm_math.py trains reward models, '
        'configs/policy_math.py policies'
      )


def check_values(config: Mapping[str, Any]) -> None:
  """Checks what can be seen in a config alone, without its base."""
  _check_task(config)
  task, head = config['task'], head_of(config)
  if head is not None:
    losses.check_loss(config['loss']['name'], head)
    _check_counts(config)
  for section, names in POSITIVE.items():
    for name in names:
      if config[section][name] < 1:
        raise UserError(
          f'{section}.{name}={config[section][name]}: expected >= 1'
        )
  train = config['train']
  waiting = train.get('head_only_steps', 0)
  if not 0 <= waiting < train['steps']:
    raise UserError(
      f'train.head_only_steps={waiting}: expected 0 to below '
      f'train.steps={train["steps"]}'
    )
  ProfileConfig(**config['profile']).check(train['steps'])
  _check_choice('train.best_metric', train['best_metric'], BEST_METRICS[task])
  _check_data(config['data'])
  _check_evaluation(config)


def _describe(
  config: Mapping[str, Any], base: Pretrained | None, head: HeadConfig | None
) -> ModelDescription:
  """The model of a config: its own, or that of its base."""
  data, lora = config['data'], LoraConfig(**config['lora'])
  best_metric, end = config['train']['best_metric'], data.get('end', '')
  if base is None:
    if lora.rank:
      raise UserError(
        f'lora.rank={lora.rank} needs a backbone that was trained: set base, '
        'or lora.rank=0'
      )
    if missing := sorted({'d_model', 'n_layers'} - set(config['model'])):
      raise UserError(
        f"base='' leaves model.{missing[0]} open; set --config.base, or take a "
        'variant from scratch'
      )
    fmt = make_format(
      data['tokenizer'], data['max_length'], data['separator'], end
    )
    model = TransformerConfig(
      vocab_size=fmt.tokenizer.vocab_size, **config['model']
    )
    return ModelDescription(
      model, head, lora, fmt, data['separator'], end, best_metric
    )
  if extra := sorted(set(config['model']) - COMPUTED):
    raise UserError(
      f'base={config["base"]!r} brings its own model.{extra[0]}; start from a '
      'variant with a base, such as :smollm2, and set --config.base there'
    )
  if data['tokenizer']:
    raise UserError(
      f'data.tokenizer={data["tokenizer"]!r}: {config["base"]} brings its own; '
      "set it to ''"
    )
  if data['max_length'] > base.longest:
    raise UserError(
      f'data.max_length={data["max_length"]} is beyond the {base.longest} '
      f'tokens of {config["base"]}; lower it'
    )
  return ModelDescription(
    dataclasses.replace(base.model, **config['model']),
    head,
    lora,
    make_format(base.tokenizer, data['max_length'], data['separator'], end),
    data['separator'],
    end,
    best_metric,
  )


def check_heads(model: TransformerConfig, mesh: Mesh) -> None:
  """Raises UserError unless a model's heads divide over the mesh."""
  wide = mesh.shape['model']
  if model.n_heads % wide:
    fits = [
      n
      for n in range(1, model.n_heads + 1)
      if not model.n_heads % n and not mesh.size % n
    ]
    raise UserError(
      f'model.n_heads={model.n_heads} does not divide over mesh.model={wide} '
      f'devices; set it to one of {", ".join(map(str, fits))}'
    )


def check_mesh(
  config: Mapping[str, Any], model: TransformerConfig, mesh: Mesh
) -> None:
  """Raises UserError unless batch and heads divide over the mesh."""
  check_heads(model, mesh)
  rows = mesh.shape['replica'] * mesh.shape['fsdp']
  sampling = sampling_of(config)
  if sampling:
    sampling.check_devices(rows)
  size = config['data']['batch_size']
  parts = config['train']['microbatches']
  if size % (parts * rows):
    raise UserError(
      f'data.batch_size={size} does not divide into {parts} microbatches on '
      f'replica x fsdp = {rows} devices; make it a multiple of {parts * rows}'
    )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
  if value not in choices:
    shown = ', '.join(choice or "''" for choice in choices)
    raise UserError(f'{name}={value!r}: expected one of {shown}')


def _check_counts(config: Mapping[str, Any]) -> None:
  """Raises UserError where a loss of counts would read ones nobody counted."""
  targets, name = config['targets'], config['loss']['name']
  if name != 'beta_binomial':
    return
  wrong = ''
  if targets['hard_above'] is not None:
    wrong = (
      f'targets.hard_above={targets["hard_above"]}: of 4 successes in 8 '
      'rollouts it would make 8, or none; unset targets.hard_above'
    )
  elif targets['after_first_error'] == 'bad':
    wrong = (
      "targets.after_first_error='bad': of 4 successes in 8 rollouts it would "
      "make none; set targets.after_first_error to 'keep' or 'mask'"
    )
  elif targets['supervision'] == 'outcome':
    wrong = (
      "targets.supervision='outcome': an outcome has no rollouts to count; set "
      "targets.supervision to 'process'"
    )
  elif config['orm_baseline']:
    wrong = (
      'orm_baseline=True: the outcome model would have no rollouts to count; '
      'set orm_baseline to False'
    )
  if wrong:
    raise UserError(f"loss.name='beta_binomial' with {wrong}, or loss.name")


def _check_data(data: Mapping[str, Any]) -> None:
  _check_choice('data.kind', data['kind'], ('arithmetic', 'words', 'files'))
  if data['row_length'] < data['max_length']:
    raise UserError(
      f'data.row_length={data["row_length"]} is shorter than '
      f'data.max_length={data["max_length"]}; raise it'
    )
  first = data.get('first_labels', 0)  # a policy learns from no labels
  if first < 0 or (first and not data['labels']):
    raise UserError(
      f'data.first_labels={first} with data.labels={data["labels"]!r}: set '
      'data.labels to the job whose first so many chains are meant'
    )


def _check_evaluation(config: Mapping[str, Any]) -> None:
  wanted = config['evaluation']
  for name in ('max_problems', 'max_dev_problems'):
    if wanted[name] < 0:
      raise UserError(
        f'evaluation.{name}={wanted[name]}: expected >= 0 (0: all)'
      )
  ns = tuple(wanted['ns'])
  whole = all(type(n) is int and n > 0 for n in ns)
  if not ns or not whole or any(a >= b for a, b in itertools.pairwise(ns)):
    raise UserError(
      f'evaluation.ns={ns}: expected ascending whole numbers from 1 up'
    )
  if config['task'] == 'policy':
    if wanted['samples'] < ns[-1]:
      raise UserError(
        f'evaluation.samples={wanted["samples"]}: expected at least the '
        f'{ns[-1]} of evaluation.ns'
      )
    return
  for how in wanted['aggregates']:
    _check_choice('evaluation.aggregates', how, AGGREGATES)
  # The headline is one of the curves, so that the vote can be weighted by it.
  _check_choice(
    'evaluation.aggregate', wanted['aggregate'], tuple(wanted['aggregates'])
  )
  data = config['data']
  names = tuple(data.get('evaluations', (data['kind'],)))
  _check_choice('evaluation.best_of_n', wanted['best_of_n'], (*names, ''))

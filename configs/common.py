"""Defines the defaults and variants that several config files use.

    python -m prm_jax.main --config configs/NAME.py:VARIANTS --workdir DIR

A config file names what differs from the defaults of its task's settings:
dataclasses, which prm_jax/jobs/settings/ puts together. Any of them can be set
from the command line.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from prm_jax.jobs import settings

Variant = Callable[[ml_collections.ConfigDict], Any]

QWEN2_5 = dict(qkv_bias=True, head_dim=128, n_layers=28)
QWEN2_5_1_5B = QWEN2_5 | dict(
  vocab_size=151_936, d_model=1536, n_heads=12, n_kv_heads=2, d_ff=8960
)
QWEN2_5_7B = QWEN2_5 | dict(
  vocab_size=152_064,
  d_model=3584,
  n_heads=28,
  n_kv_heads=4,
  d_ff=18_944,
  tie_embeddings=False,
)
QWEN2_5_72B = QWEN2_5 | dict(
  vocab_size=152_064,
  d_model=8192,
  n_layers=80,
  n_heads=64,
  n_kv_heads=8,
  d_ff=29_568,
  tie_embeddings=False,
)
LLAMA3_8B = dict(
  vocab_size=128_256,
  d_model=4096,
  n_layers=32,
  n_heads=32,
  n_kv_heads=8,
  d_ff=14_336,
  tie_embeddings=False,
)

# Parts of a model of our own that every config from scratch has alike.
SCRATCH = dict(
  n_heads=4,
  n_kv_heads=4,
  head_dim=0,
  rope_theta=10_000.0,
  norm_eps=1e-6,
  qkv_bias=False,
  tie_embeddings=True,
  dtype='float32',
  param_dtype='float32',  # 'bfloat16': a float32 master where it is trained
  remat='none',
  scan_unroll=3,
)
COMPUTED = ('dtype', 'param_dtype', 'remat', 'scan_unroll')
WORDS_TOKENS = 200  # of a solution of the words domain, in a base's tokens
# Problems of the words domain: one draw for all jobs, so that no model is
# tested on what another has learned.
WORDS_DRAW = dict(train_problems=2048, dev_problems=64, test_problems=100)
# Domain -> tokens of its longest chains, and their steps.
LENGTHS = {'logic': (160, 8), 'code': (112, 6)}
SIZES = ('small', 'tiny')  # variants that make a run shorter; one comes last
LINE_END = 'Ċ'  # how byte-level BPE spells the end of a line


def base(task: str, **values: Any) -> ml_collections.ConfigDict:
  """Returns the defaults of a task's settings, with some values changed.

  Args:
    values: a value, or a section as a dict of the values that differ.
  """
  config = settings.default_config(task)
  change(config, **values)
  return config


def change(config: ml_collections.ConfigDict, **values: Any) -> None:
  """Sets values, and in sections those that a dict names."""
  for name, value in values.items():
    if isinstance(config.get(name), ml_collections.ConfigDict):
      change(config[name], **value)
    else:
      config[name] = value


def keep_computed(config: ml_collections.ConfigDict) -> None:
  """Leaves of the model how it is computed: a base brings the rest."""
  computed = {name: config.model[name] for name in COMPUTED}
  config.model = settings.default_config(config.task).model
  config.model.update(computed)


def pretrained(config: ml_collections.ConfigDict, name: str) -> None:
  """Starts from a pretrained backbone, with the settings that suit most.

  Raises:
    ValueError: adapters were chosen before, whose settings would be lost.
  """
  if config.lora.rank:
    raise ValueError('a base comes before adapters, as in :smollm2,lora')
  config.base = name
  config.model.update(
    dtype='auto', param_dtype='float32', remat='full', scan_unroll=1
  )
  keep_computed(config)
  config.data.tokenizer = ''  # that of the base
  config.optim.update(lr=1e-5, warmup=20)
  config.train.update(steps=300, checkpoint_every=100)


def on_domain(config: ml_collections.ConfigDict, kind: str) -> None:
  """Works on the problems of a domain in place of arithmetic.

  Args:
    kind: a key of LENGTHS.
  """
  name, comma, more = config.name.partition(',')
  config.name = f'{name.partition(" on ")[0]} on {kind}{comma}{more}'
  if 'problems' in config:
    config.problems.kind = kind
    return
  leave_files(config)
  # A row holds as many chains as of arithmetic.
  chains = config.data.row_length // config.data.max_length
  tokens, steps = LENGTHS[kind]
  config.data.update(kind=kind, max_length=tokens, row_length=chains * tokens)
  config.data.max_steps_per_row = chains * steps
  if config.data.tokenizer:
    config.data.tokenizer = kind
  if config.get('sampling'):
    config.sampling.max_tokens = tokens - 16
  if 'best_of_n' in config.evaluation:
    config.evaluation.best_of_n = kind


def leave_files(config: ml_collections.ConfigDict) -> None:
  """Takes the files of a variant before out of a config on a domain."""
  config.data.evaluations = ml_collections.ConfigDict()
  config.data.update(train=(), worked_answers='', decontaminate=())


def on_words(config: ml_collections.ConfigDict) -> None:
  """Trains a pretrained model on the words domain in place of files."""
  leave_files(config)
  config.data.update(
    WORDS_DRAW,
    kind='words',
    test_samples=8,
    max_length=512,
    row_length=1024,
  )


def learn_words_by_rl(config: ml_collections.ConfigDict) -> None:
  """Trains adapters of a pretrained model by RL on the words domain."""
  config.problems.update(WORDS_DRAW, kind='words')
  config.model.update(dtype='auto', param_dtype='float32', scan_unroll=1)
  lora(config)
  config.optim.lr = 1e-4


def compile_for(
  config: ml_collections.ConfigDict, topology: str, model: Mapping[str, Any]
) -> None:
  """Says what prm_jax.aot compiles for, without the weights of the base."""
  config.aot.topology = topology
  config.aot.model.update(model)


def opened(name: str) -> Variant:
  """Returns a variant that opens a policy, and a PRM, of a published size.

  A model has to fit the chips of one host: both are split over four.
  """
  topology, model = {
    'qwen2_5_math_7b': ('v5e:2x2', QWEN2_5_7B),
    'qwen2_5_72b': ('v5p:2x2x1', QWEN2_5_72B),
  }[name]

  def change(config: ml_collections.ConfigDict) -> None:
    compile_for(config, topology, model)
    config.aot.max_length = 2048
    config.mesh.model = 4
    config.policy.update(kind='workdir', dtype='bfloat16')
    config.policy.sampling.update(slots=64, max_tokens=1024)
    if 'prm' in config and config.task == 'search':
      config.prm.update(kind='workdir', dtype='bfloat16', rows=16)
      config.policy.sampling.update(slots=32, kept=16)

  return change


def tiny_aot(config: ml_collections.ConfigDict) -> None:
  """Compiles for a small model, where a config names what it compiles for."""
  if config.aot.topology:
    config.aot.model.update(
      vocab_size=512, d_model=32, n_layers=2, n_heads=2, n_kv_heads=1
    )
    config.aot.model.update(head_dim=0, d_ff=64)
    config.mesh.model = 1


def lora(config: ml_collections.ConfigDict) -> None:
  """Trains adapters of rank 16; the backbone stays as it is."""
  config.lora.update(rank=16, alpha=32.0)
  # What is frozen needs no more digits than what computes with it.
  config.model.param_dtype = config.model.dtype
  config.optim.lr = 2e-4


def qlora(config: ml_collections.ConfigDict) -> None:
  """Trains adapters as `lora` does, beside kernels stored in 4 bits."""
  lora(config)
  config.lora.quantized = 'nf4'


def check_drawn(config: ml_collections.ConfigDict, cure: str) -> None:
  """Raises ValueError where the variant `small` would not shorten the job.

  It says how many problems of a domain are drawn, and suits small models.

  Args:
    cure: what to do without `small`, for the error.
  """
  names = ('problems', 'chains', 'data')
  kind = next(config[name].kind for name in names if name in config)
  pretrained = config.get('base') or config.aot.topology
  if config.task == 'rl' and kind == 'words':
    pretrained = True  # only such policies write solutions of word problems
  if pretrained or kind in ('file', 'files', 'workdir'):
    raise ValueError(
      'small is for problems drawn from a domain, without a pretrained model; '
      + cure
    )


def tiny_model(
  config: ml_collections.ConfigDict, scratch: ml_collections.ConfigDict
) -> None:
  """Trains a small random model for a few steps, in place of any base.

  Args:
    scratch: the model section of the config without a base.
  """
  if config.base:
    config.base = ''
    config.model = scratch
    config.lora.update(rank=0, quantized='')
    config.mesh.update(fsdp=-1, model=1)
    config.data.update(tokenizer='bytes', separator='', end='')
  if config.model.d_model is not None:  # else the run brings them
    config.model.update(
      d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=64
    )
  config.model.scan_unroll = 1
  config.data.shards = 0
  config.optim.warmup = 2
  config.train.update(steps=6, log_every=2, checkpoint_every=3)


def apply(
  file: str,
  config: ml_collections.ConfigDict,
  variants: Mapping[str, Variant],
  arg: str,
) -> ml_collections.ConfigDict:
  """Applies the variants that follow the colon, in order, and locks the config.

  Args:
    file: the config file's name, for the error.
    arg: names of variants, comma separated.

  Raises:
    ValueError: a variant is unknown, or follows one of SIZES.
  """
  applied = ''
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of {file}: expected {", ".join(variants)}'
      )
    if applied in SIZES:
      raise ValueError(f'{applied} comes last, and {name} follows it: {arg}')
    variants[name](config)
    applied = name
  return config.lock()

"""Settles in which dtype a job that trains computes."""

import dataclasses
from typing import TypeVar

import jax

from prm_jax.data.datasets import Log
from prm_jax.inference import loading
from prm_jax.jobs.settings.shared import ComputeConfig, ModelConfig
from prm_jax.models.dtypes import AUTO, FAST, multiplies_bfloat16
from prm_jax.runtime.workdir import Workdir

Settings = TypeVar('Settings')  # those of a job, with a `model`


def settle_dtype(settings: Settings, workdir: Workdir, log: Log) -> Settings:
  """Replaces dtypes that are 'auto' by those of this run.

  A run that is resumed keeps the one it began with, on any machine. Another
  computes in bfloat16, but in float32 on a CPU that does not multiply bfloat16.
  """
  model: ModelConfig | ComputeConfig = settings.model
  if AUTO not in (model.dtype, model.param_dtype):
    return settings
  if (workdir / 'model.json').exists():
    dtype = loading.read_description(workdir.path).model.dtype
  elif jax.default_backend() != 'cpu' or multiplies_bfloat16():
    dtype = FAST
  else:
    dtype = 'float32'
    log(
      'model.dtype=float32, as products of bfloat16 are slow on this CPU; '
      '--config.model.dtype=bfloat16 takes it all the same'
    )
  settled = {
    name: dtype
    for name in ('dtype', 'param_dtype')
    if getattr(model, name) == AUTO
  }
  return dataclasses.replace(
    settings, model=dataclasses.replace(model, **settled)
  )

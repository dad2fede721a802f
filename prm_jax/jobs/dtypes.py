"""Settles in which dtype a job that trains computes."""

import dataclasses
from typing import TypeVar

import jax

from prm_jax.data.datasets import Log
from prm_jax.inference import loading
from prm_jax.jobs.settings.shared import ComputeConfig, ModelConfig
from prm_jax.models.dtypes import AUTO, FAST, multiplies_bfloat16
from prm_jax.runtime import processes
from prm_jax.runtime.workdir import Workdir

Settings = TypeVar('Settings')  # those of a job, with a `model`


def settle_dtype(settings: Settings, workdir: Workdir, log: Log) -> Settings:
  """Replaces dtypes that are 'auto' by those of this run.

  A run that is resumed keeps those it began with, on any machine. Another
  computes in bfloat16, but in float32 on a CPU that does not multiply bfloat16.
  Parameters follow what it computes in, if that is given.
  """
  model: ModelConfig | ComputeConfig = settings.model
  if AUTO not in (model.dtype, model.param_dtype):
    return settings
  names = 'dtype', 'param_dtype'
  if (workdir / 'model.json').exists():
    began = loading.read_description(workdir.path).model
    known = {name: getattr(began, name) for name in names}
  else:
    dtype = model.dtype
    if dtype in (None, '', AUTO):
      dtype = _fast_dtype(log)
    known = dict.fromkeys(names, dtype)
  settled = {n: known[n] for n in names if getattr(model, n) == AUTO}
  return dataclasses.replace(
    settings, model=dataclasses.replace(model, **settled)
  )


def _fast_dtype(log: Log) -> str:
  """Returns the dtype in which the machine of process 0 multiplies fast."""
  fast = jax.default_backend() != 'cpu' or multiplies_bfloat16()
  if processes.broadcast('dtype', FAST if fast else 'float32') == FAST:
    return FAST
  log(
    'model.dtype=float32, as products of bfloat16 are slow on this CPU; '
    '--config.model.dtype=bfloat16 takes it all the same'
  )
  return 'float32'

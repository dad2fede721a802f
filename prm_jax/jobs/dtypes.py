"""Settles in which dtype a job that trains computes."""

import dataclasses
import json
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

  A resumed run keeps those it began with, on any machine. A new one computes in
  bfloat16, or in float32 on a CPU that does not multiply bfloat16. Its
  parameters get the dtype in which it computes; where that is the model's own,
  they stay 'auto' until the model is open. Process 0 decides for all.
  """
  model: ModelConfig | ComputeConfig = settings.model
  names = [n for n in ('dtype', 'param_dtype') if getattr(model, n) == AUTO]
  if not names:
    return settings
  # Processes may run on unlike machines, and one may see what another wrote.
  first = processes.is_first()
  chosen = json.dumps(_choose(model, workdir, log)) if first else ''
  known = json.loads(processes.broadcast('dtypes', chosen))
  settled = {name: known[name] for name in names if name in known}
  return dataclasses.replace(
    settings, model=dataclasses.replace(model, **settled)
  )


def _choose(
  model: ModelConfig | ComputeConfig, workdir: Workdir, log: Log
) -> dict[str, str]:
  """Returns the dtype to compute in, and that of parameters, where known."""
  if (workdir / 'model.json').exists():
    began = loading.read_description(workdir.path).model
    return {'dtype': began.dtype, 'param_dtype': began.param_dtype}
  if not model.dtype:
    return {}
  dtype = _fast_dtype(log) if model.dtype == AUTO else model.dtype
  return {'dtype': dtype, 'param_dtype': dtype}


def _fast_dtype(log: Log) -> str:
  """Returns the dtype in which this machine multiplies fast."""
  if jax.default_backend() != 'cpu' or multiplies_bfloat16():
    return FAST
  log(
    'model.dtype=float32, as products of bfloat16 are slow on this CPU; '
    '--config.model.dtype=bfloat16 computes in bfloat16'
  )
  return 'float32'

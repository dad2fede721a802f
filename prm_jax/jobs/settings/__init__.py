"""Defines all settings: a dataclass for every job and every section.

A config file gives a raw config; `read_settings` builds the settings of its
task and reports all errors at once. All other code takes settings, never the
raw config.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from prm_jax.jobs.settings.evaluate import EvaluateSettings
from prm_jax.jobs.settings.items import LabelSettings, SampleSettings
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.jobs.settings.search import SearchSettings
from prm_jax.jobs.settings.shared import JobSettings
from prm_jax.jobs.settings.training import PolicySettings, PrmSettings
from prm_jax.runtime import checks

TASKS: dict[str, type[JobSettings]] = {
  'prm': PrmSettings,
  'policy': PolicySettings,
  'rl': RlSettings,
  'label': LabelSettings,
  'sample': SampleSettings,
  'search': SearchSettings,
  'evaluate': EvaluateSettings,
}


def read_settings(config: Mapping[str, Any]) -> JobSettings:
  """Returns the settings of a raw config.

  Raises:
    UserError: a line for every unknown key and every wrong value.
  """
  task = config.get('task')
  if not isinstance(task, str) or task not in TASKS:
    checks.fail('config.task', task, f'expected one of {", ".join(TASKS)}')
  foreign = sorted(set(config) - set(checks.field_types(TASKS[task])))
  others = [set(checks.field_types(other)) for other in TASKS.values()]
  if foreign and set(foreign) <= set().union(*others):
    checks.fail(
      'config.task',
      task,
      f'a config of this task has no {", ".join(foreign)}; take '
      f'configs/{task}_math.py, or set task back',
    )
  read = checks.read(TASKS[task], config)
  with checks.below('config'):
    read.check_together()
  return read


def default_config(task: str) -> ml_collections.ConfigDict:
  """Returns the default config of a task.

  Where the default is None, the config takes only values of the field's type.
  """
  return _to_config(TASKS[task](task=task))


def _to_config(section: Any) -> ml_collections.ConfigDict:
  """Converts settings to a ConfigDict with nested sections."""
  config = ml_collections.ConfigDict()
  for name, hint in checks.field_types(type(section)).items():
    value = getattr(section, name)
    if dataclasses.is_dataclass(value):
      value = _to_config(value)
    elif isinstance(value, Mapping):
      value = ml_collections.ConfigDict(value)
    elif value is None:
      value = ml_collections.config_dict.placeholder(checks.plain_type(hint))
    config[name] = value
  return config

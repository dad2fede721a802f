"""Settings of the config files, with some values changed."""

import importlib
from typing import Any

from prm_jax.jobs.settings import read_settings


def raw(file: str, variants: str = '', **values: Any) -> dict[str, Any]:
  """The config of configs/FILE.py, with values by their dotted names."""
  config = importlib.import_module(f'configs.{file}').get_config(variants)
  config.update_from_flattened_dict(values)
  return config.to_dict()


def settings(file: str, variants: str = '', **values: Any) -> Any:
  """The same as checked settings; a wrong value raises UserError."""
  return read_settings(raw(file, variants, **values))

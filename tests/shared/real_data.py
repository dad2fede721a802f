"""Where the real data is; tests that need it skip where it is absent."""

import os
import pathlib

import pytest

_BESIDE = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'


def shared(name: str) -> pathlib.Path:
  """A file or folder of the real data."""
  path = pathlib.Path(os.environ.get('PRM_JAX_DATA') or _BESIDE) / name
  if not path.exists():
    pytest.skip(f'no real data: {name} is not in PRM_JAX_DATA')
  return path

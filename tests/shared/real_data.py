"""Where the real data is; tests that need it skip where it is absent."""

import itertools
import os
import pathlib

import pytest

_BESIDE = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'
_ROOT = pathlib.Path(os.environ.get('PRM_JAX_DATA') or _BESIDE)
REAL_DATA = _ROOT.is_dir()


def shared(name: str) -> pathlib.Path:
  """A file or folder of the real data."""
  path = _ROOT / name
  if not path.exists():
    pytest.skip(f'no real data: {name} is not in PRM_JAX_DATA')
  return path


def few(folder: pathlib.Path, lines: int = 300) -> pathlib.Path:
  """A folder of all files of the real data; of lines it has the first."""
  root = shared('gsm8k').parent
  for path in sorted(root.rglob('*.*')):
    to = folder / path.relative_to(root)
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != '.jsonl':
      to.symlink_to(path)
      continue
    with path.open() as file:
      to.write_text(''.join(itertools.islice(file, lines)))
  return folder

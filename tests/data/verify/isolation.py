"""Says whether this machine isolates programs, and starts `outside.py`."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator

import pytest

from prm_jax.data.verify import sandbox
from prm_jax.runtime.errors import UserError
from tests.data.verify.outside import SECRET, VARIABLE

ROOT = pathlib.Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def outside(user: str, *names: str) -> Iterator[subprocess.Popen]:
  """Starts `outside.py` on some programs, or on all if there are no names."""
  # With a Python of its own, in whose folder it makes files and sockets.
  folder = pathlib.Path(tempfile.mkdtemp(prefix='prm_jax_python_'))
  try:
    venv.create(folder, symlinks=True)
    folder.chmod(0o777)
    packages = sysconfig.get_path('purelib')
    yield subprocess.Popen(
      [folder / 'bin/python', '-m', 'tests.data.verify.outside', user, *names],
      cwd=ROOT,
      env=os.environ | {VARIABLE: SECRET, 'PYTHONPATH': f'{ROOT}:{packages}'},
      stdout=subprocess.PIPE,
    )
  finally:
    shutil.rmtree(folder)


def why_not_isolated() -> str:
  """Returns why this machine cannot isolate a program, or ''."""
  try:
    sandbox.run('')
  except UserError as error:
    return str(error)
  return ''


REFUSED = why_not_isolated()
needs_sandbox = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)

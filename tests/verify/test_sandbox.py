"""The sandbox: real hostile programs, as root and as an ordinary user."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv

import pytest

from prm_jax.errors import UserError
from prm_jax.verify import sandbox
from tests.verify.hostile_programs import PROGRAMS
from tests.verify.outside import SECRET, VARIABLE

ROOT = pathlib.Path(__file__).resolve().parents[2]


def isolates() -> str:
  """Why this machine cannot isolate a program, or ''."""
  try:
    sandbox.run('')
  except UserError as error:
    return str(error)
  return ''


REFUSED = isolates()
needs_sandbox = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)


@pytest.fixture(scope='module', params=['root', 'ordinary'])
def results(request):
  """All programs' results, run by one kind of user."""
  if request.param == 'root' and os.getuid() != 0:
    pytest.skip('not root')
  # A Python of its own: files, sockets and FIFOs may be put beside it.
  folder = pathlib.Path(tempfile.mkdtemp(prefix='prm_jax_python_'))
  try:
    venv.create(folder, symlinks=True)
    folder.chmod(0o777)
    done = subprocess.run(
      [folder / 'bin/python', '-m', 'tests.verify.outside', request.param],
      cwd=ROOT,
      env=os.environ
      | {
        VARIABLE: SECRET,
        'PYTHONPATH': f'{ROOT}:{sysconfig.get_path("purelib")}',
      },
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )
  finally:
    shutil.rmtree(folder)
  assert done.returncode == 0, done.stderr
  told = json.loads(done.stdout)
  assert (told['user'] == 0) == (request.param == 'root')
  return told['results']


@needs_sandbox
@pytest.mark.parametrize('name', PROGRAMS)
def test_what_becomes_of_a_program(results, name):
  _, _, outcome, code, words = PROGRAMS[name]
  result = results[name]
  assert (result['outcome'], result['exit_code']) == (outcome, code), result
  assert words in result['output']
  assert result['seen'] == []
  assert SECRET not in result['output']

"""Says whether this machine isolates programs, and starts `outside.py`."""

import contextlib
import ctypes
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator

import pytest

from prm_jax.data.verify import sandbox
from prm_jax.runtime.errors import UserError
from tests.data.verify.outside import SECRET, VARIABLE

ROOT = pathlib.Path(__file__).resolve().parents[3]
# In new namespaces: shows folders through an overlay, beside another /proc.
SHOW = """
mount -t tmpfs none "$0"; cd "$0"; mkdir empty shown proc
mount -t proc none proc
for folder; do
  cd "$folder"; mount -t overlay none "$0/shown" -o "lowerdir=.:$0/empty"
done
"""


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


def allows_isolation() -> bool:
  """Says, without the sandbox's own code, whether this machine allows it."""
  release = [int(n) for n in re.findall(r'\d+', platform.release())[:2]]
  if (
    sys.platform != 'linux'
    or platform.machine() not in ('x86_64', 'aarch64')
    or release < [5, 12]
    or not shutil.which('unshare')
  ):
    return False
  try:
    seccomp = ctypes.CDLL('libseccomp.so.2')
  except OSError:
    return False
  keyctl = seccomp.seccomp_syscall_resolve_name(b'keyctl')
  if ctypes.CDLL(None).syscall(keyctl, 0, -3, 1) < 0:  # the session's keyring
    return False
  # Programs of root run as nobody, in a user namespace inside the others.
  nobody = 'setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Ur true'
  options, last = ('-mpinf', nobody) if os.getuid() == 0 else ('-Urmpinf', '')
  with tempfile.TemporaryDirectory() as folder:
    show = [folder, '/usr', sys.prefix, sys.base_prefix]
    command = ['unshare', options, 'sh', '-ec', SHOW + last, *show]
    return subprocess.call(command) == 0


REFUSED = why_not_isolated()
needs_sandbox = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)

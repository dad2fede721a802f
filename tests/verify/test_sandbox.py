"""The sandbox: real hostile programs, as root and as an ordinary user."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from prm_jax.errors import UserError
from prm_jax.verify import sandbox
from tests.verify import hostile_programs
from tests.verify.hostile_programs import ESCAPED, PROGRAMS, SECRET

ROOT = pathlib.Path(__file__).resolve().parents[2]


def isolates() -> str:
  """Why this machine cannot isolate a program, or ''."""
  try:
    sandbox.run('')
  except UserError as error:
    return str(error)
  return ''


REFUSED = isolates()
pytestmark = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)


@pytest.fixture(scope='module', params=['root', 'ordinary user'])
def results(request):
  """All programs' results, run by one kind of user."""
  if request.param == 'root':
    if os.getuid() != 0:
      pytest.skip('not root')
    os.environ[SECRET] = 'a secret'
    try:
      yield hostile_programs.run_all()
    finally:
      del os.environ[SECRET]
    return
  done = subprocess.run(
    [sys.executable, '-m', 'tests.verify.hostile_programs'],
    cwd=ROOT,
    env=os.environ | {SECRET: 'a secret', 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  told = json.loads(done.stdout)
  assert told['user'] != 0
  yield told['results']


@pytest.mark.parametrize('name', PROGRAMS)
def test_what_becomes_of_a_program(results, name):
  _, _, outcome, code, words = PROGRAMS[name]
  result = results[name]
  assert (result['outcome'], result['exit_code']) == (outcome, code), result
  assert words in result['output']
  assert result['left'] == []


def test_nothing_got_out(results):
  assert not os.path.exists(ESCAPED)
  assert results['network']['reached'] is False
  environment = results['parents environment']['output']
  assert SECRET not in environment and 'a secret' not in environment
  assert os.listdir('/dev/shm') == [] or not any(
    name in ('program.py', 'big') for name in os.listdir('/dev/shm')
  )


def test_limits_hold_in_time_and_size(results):
  assert results['infinite loop']['seconds'] < 6
  assert results['fork bomb']['seconds'] < 6
  longest = sandbox.Limits().output_bytes
  assert len(results['1 GB of output']['output']) == longest


def test_tests_share_the_programs_module():
  program = 'from __future__ import annotations\ndef double(x): return 2 * x'
  assert sandbox.run(program, 'assert double(3) == 6').passed
  assert not sandbox.run(program, 'assert double(3) == 7').passed
  assert sandbox.run('print("Grüße")').output == 'Grüße\n'


def test_no_descriptor_is_left_open():
  before = len(os.listdir('/proc/self/fd'))
  for source in ('1', 'while True: print("x" * 9999)'):
    sandbox.run(source)
  assert len(os.listdir('/proc/self/fd')) == before

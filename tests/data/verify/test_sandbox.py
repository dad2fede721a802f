"""The sandbox holds real hostile programs, of root and of ordinary users."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from concurrent import futures

import pytest

from prm_jax.data.verify import sandbox, sandbox_cgroup
from prm_jax.runtime.errors import UserError
from tests.data.verify.isolation import (
  REFUSED,
  ROOT,
  allows_isolation,
  needs_sandbox,
  outside,
)
from tests.data.verify.outside import PROGRAMS, SECRET, descendants


def read_results(process: subprocess.Popen) -> dict:
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0
  return json.loads(output)


@pytest.fixture(scope='module', params=['root', 'ordinary'])
def results(request):
  """Results of all programs, run by one kind of user."""
  if request.param == 'root' and os.getuid() != 0:
    pytest.skip('not root')
  with outside(request.param) as process:
    found = read_results(process)
  assert (found['user'] == 0) == (request.param == 'root')
  return found['results']


@pytest.mark.slow  # waits for dozens of programs, many until their deadline
@needs_sandbox
@pytest.mark.parametrize('name', PROGRAMS)
def test_a_program_ends_as_expected_and_reaches_nothing(results, name):
  program, result = PROGRAMS[name], results[name]
  ended = result['outcome'], result['exit_code']
  assert ended == (program.outcome, program.code), result
  assert program.words in result['output']
  assert result['seen'] == []
  assert SECRET not in result['output']


@pytest.mark.slow
@needs_sandbox
def test_limits_hold_for_time_output_and_memory(results):
  assert results['infinite loop']['seconds'] < 6
  assert results['fork bomb']['seconds'] < 6
  longest = sandbox.Limits().output_bytes
  assert len(results['1 GB of output']['output']) == longest
  # Eight processes try to use 150 MB each, and 256 MB are allowed.
  for name in ('memory of many processes', 'memory of a dead thread'):
    assert results[name]['peak'] < 512 << 20


@pytest.mark.slow
@needs_sandbox
def test_two_sandboxes_may_run_at_once():
  names = ('locks files outside', 'child of an infinite loop', 'FIFOs', 'right')
  with outside('ordinary', *names) as one, outside('ordinary', *names) as other:
    for found in (read_results(one)['results'], read_results(other)['results']):
      assert [found[name]['seen'] for name in names] == [[]] * 4


def test_only_a_machine_that_cannot_isolate_skips_these_tests():
  """Otherwise a sandbox that refuses every program would pass them."""
  assert not REFUSED or not allows_isolation(), REFUSED


USUAL = """
import asyncio, fcntl, multiprocessing, os, shutil, signal, socket, sqlite3
import subprocess, sys, tempfile, threading, time, zoneinfo
from concurrent import futures

async def shout():
  echo = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)
  return (await echo.communicate())[0]

assert asyncio.run(shout()) == b'hi\\n'
shell = subprocess.run('printf $HOME', shell=True, capture_output=True)
assert shell.stdout.decode() == os.getcwd() == os.environ['HOME']
nested = [sys.executable, '-c', 'import numpy; print(numpy.ones(3).sum())']
assert subprocess.check_output(nested, stdin=subprocess.DEVNULL) == b'3.0\\n'
with multiprocessing.Pool(2) as pool:
  assert pool.map(abs, [-1, 2]) == [1, 2]
queue = multiprocessing.Queue()
queue.put('word')
assert queue.get() == 'word'
with futures.ThreadPoolExecutor(4) as pool:
  assert list(pool.map(abs, [-1, 2])) == [1, 2]
with sqlite3.connect('words.db') as base:
  base.execute('create table words (word)')
  base.execute('insert into words values ("one")')
assert list(base.execute('select * from words')) == [('one',)]
with tempfile.NamedTemporaryFile('w') as file:
  fcntl.flock(file, fcntl.LOCK_EX)
  file.write('text')
  file.flush()
  assert open(shutil.copy2(file.name, 'copy')).read() == 'text'
os.mkdir('folder')
shutil.rmtree('folder')
end, other = socket.socketpair()
end.sendall(b'x')
assert other.recv(9) == b'x'
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
assert zoneinfo.ZoneInfo('Europe/Berlin') and os.cpu_count()
assert open(os.devnull, 'w').write('x') == 1 and len(os.urandom(3)) == 3
"""


@needs_sandbox
def test_usual_programs_work():
  result = sandbox.run(USUAL)
  assert result.passed, result.output


@needs_sandbox
def test_tests_share_the_programs_module():
  program = 'from __future__ import annotations\ndef double(x): return 2 * x'
  assert sandbox.run(program, 'assert double(3) == 6').passed
  assert not sandbox.run(program, 'assert double(3) == 7').passed
  assert sandbox.run('print("Grüße")').output == 'Grüße\n'


@needs_sandbox
def test_no_descriptor_is_left_open():
  before = len(os.listdir('/proc/self/fd'))
  for source in ('1', 'while True: print("x" * 9999)'):
    sandbox.run(source)
  assert len(os.listdir('/proc/self/fd')) == before


@pytest.mark.parametrize(
  ('name', 'value'),
  [('cpu_seconds', 10**30), ('wall_seconds', float('inf')), ('files', 0)],
)
def test_limits_that_no_kernel_takes_are_refused(name, value):
  with pytest.raises(UserError, match=rf'^{name}=.*: expected a number in'):
    sandbox.Limits(**{name: value})


@needs_sandbox
def test_a_control_group_limits_memory_and_is_removed():
  with sandbox_cgroup.new_cgroup(64 << 20) as group:
    if group is None:
      pytest.skip('this user can make no control group')
    join = f'open({str(group / "cgroup.procs")!r}, "w").write("0")\n'
    command = [sys.executable, '-S', '-c', join + 'bytearray(b"x") * (1 << 28)']
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert sandbox_cgroup.ran_out_of_memory(group)
  assert not group.exists()
  with sandbox_cgroup.new_cgroup(1 << 30) as group:
    assert not sandbox_cgroup.ran_out_of_memory(group)
  seen = ''
  with futures.ThreadPoolExecutor() as pool:
    running = pool.submit(sandbox.run, 'import time\ntime.sleep(1)')
    while not running.done():
      for process in descendants():
        with contextlib.suppress(OSError):  # it has ended
          seen += pathlib.Path(f'/proc/{process}/cgroup').read_text()
  name = re.search('prm_jax_[0-9a-f]+', seen)[0]
  assert running.result().passed
  assert not (group.parent / name).exists()


# What a machine may lack: options of `unshare`, a command that takes it away in
# the new namespace, and the expected message.
WITHOUT = {
  'libseccomp': (
    ('--mount',),
    'for file in $(ldconfig -p | sed -n "s/.*libseccomp.so.2.*=> //p"); do '
    'mount --bind /dev/null "$(readlink -f "$file")"; done',
    r'no sandbox .*libseccomp.so.2 is missing.*apt-get install libseccomp2',
  ),
  'namespaces': (
    ('--user', '--map-root-user'),
    'echo 0 > /proc/sys/user/max_user_namespaces',
    r'no sandbox on this machine \(.*\): code tests need Linux .*sysctl',
  ),
}


@pytest.mark.parametrize('missing', WITHOUT)
def test_a_machine_that_cannot_isolate_is_refused(missing):
  namespaces, spoil, message = WITHOUT[missing]
  if os.getuid() != 0:
    pytest.skip('not root')
  source = (
    'from prm_jax.runtime.errors import UserError\n'
    'from prm_jax.data.verify import sandbox\n'
    'try: print(sandbox.run("print(1)"))\n'
    'except UserError as error: print("refused:", error)\n'
  )
  command = ['unshare', *namespaces, 'sh', '-c', f'{spoil}\nexec "$@"', 'sh']
  done = subprocess.run(
    [*command, sys.executable, '-c', source],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert re.fullmatch(f'refused: {message}.*\n', done.stdout), done

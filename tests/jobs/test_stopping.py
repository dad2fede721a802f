"""SIGTERM ends a job wherever the program is."""

import signal
import subprocess
import sys

import pytest
from jax._src.distributed import global_state

from prm_jax.runtime import processes, stopping
from prm_jax.runtime.sharding import make_mesh
from tests.shared.command_line import ROOT

SCRIPT = """
import os, signal, sys, time
from prm_jax import main
from prm_jax.runtime.stopping import catch_signal
sys.unraisablehook = main.mind_unraisable
signal.signal(signal.SIGTERM, main.stop_at_once)
class Dropped:
  def __del__(self):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
"""
# What catches the signal then -> the lines of a program.
AFTER = {
  'nothing': """
try:
  Dropped()
  time.sleep(20)
except main.Stopped:
  print('stopped')
""",
  'a loop that saves first': """
# Sent again in a moment, which a busy machine may have before the loop begins.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
Dropped()
with catch_signal(signal.SIGTERM) as arrived:
  signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
  time.sleep(0.5)
  print('stopped' if arrived() else 'lost')
""",
}


@pytest.mark.slow
@pytest.mark.parametrize('name', AFTER)
def test_sigterm_in_a_destructor_is_not_lost(name):
  """Python drops what a destructor raises; the process ends all the same."""
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT + AFTER[name]],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert (done.stdout, done.stderr) == ('stopped\n', '')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('signal', 'code'),
  [('main.Stopped("stopped")', 0), ('KeyboardInterrupt', 130)],
)
def test_a_signal_that_a_library_wraps_is_no_fault(signal, code):
  """Orbax raises a ValueError from what interrupts it."""
  script = f"""
from prm_jax import main
def restore(argv):
  try:
    raise {signal}
  except BaseException as error:
    raise ValueError('loading failed') from error
main.main = restore
main.command_line.parse_flags = lambda argv: argv
main.run(['prm_jax/main.py'])
"""
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == code, done.stderr
  assert 'the same command resumes' in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr


def test_a_process_that_ends_before_it_has_joined(monkeypatch):
  """It has nobody to tell: SIGTERM came while it was joining the others."""
  monkeypatch.setattr(global_state, 'num_processes', 2)
  assert global_state.client is None
  processes.leave('stopped')


def test_a_signal_after_the_last_step_is_heard():
  """Else a job that was told to end begins its next training."""
  ended = []
  with stopping.StopSignal(
    make_mesh({'replica': 1, 'fsdp': 1, 'model': 1})
  ) as stop:
    assert not stop.agreed()
    signal.raise_signal(signal.SIGTERM)  # in the last evaluation
    signal.raise_signal(signal.SIGTERM)  # while it may be saving
    assert stop.agreed()
    with pytest.raises(stopping.Stopped, match='after its last step'):
      stop.end('stopped after its last step', lambda: ended.append(True))
  assert ended
  with stopping.StopSignal(
    make_mesh({'replica': 1, 'fsdp': 1, 'model': 1})
  ) as stop:
    stop.end('it was not asked to', ended.clear)
  assert ended

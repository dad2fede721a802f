"""SIGTERM and Ctrl-C end a job wherever the program is."""

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


def test_ctrl_c_saves_first_and_stops_at_once_the_second_time(capfd):
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1})
  # Tests may run where it is ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with stopping.StopSignal(mesh) as stop:
      signal.raise_signal(signal.SIGINT)
      assert stop.agreed()
      assert stop.stopped('at step 3').code == stopping.INTERRUPTED
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert 'Ctrl-C once more stops at once' in capfd.readouterr().err
    with stopping.StopSignal(mesh) as stop:
      signal.raise_signal(signal.SIGTERM)
      assert stop.stopped('at step 3').code == 0
    # A job behind a shell ignores it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping.StopSignal(mesh) as stop:
      signal.raise_signal(signal.SIGINT)
      assert not stop.agreed()
  finally:
    signal.signal(signal.SIGINT, before)


CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from prm_jax import main
main.run(sys.argv)
"""


@pytest.mark.slow
def test_a_training_job_resumes_after_ctrl_c(tmp_path):
  """Without a checkpoint before its last step it would begin anew."""
  arguments = [
    *('-c', CTRL_C, '--config=configs/prm_math.py:tiny'),
    f'--workdir={tmp_path / "run"}',
    '--config.train.steps=2000',
    '--config.train.checkpoint_every=2000',
    '--config.train.log_every=5',
    '--config.orm_baseline=False',
  ]
  with subprocess.Popen(
    [sys.executable, *arguments],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as process:
    said, asked = [], False
    for line in process.stdout:
      said.append(line)
      if 'prm step ' in line and not asked:
        process.send_signal(signal.SIGINT)
        asked = True
  said = ''.join(said)
  assert process.returncode == stopping.INTERRUPTED, said
  assert 'saving and stopping' in said
  assert 'the same command resumes from there' in said
  steps = [
    int(path.name) for path in (tmp_path / 'run/checkpoints').glob('[0-9]*')
  ]
  assert len(steps) == 1
  assert 0 < steps[0] < 2000

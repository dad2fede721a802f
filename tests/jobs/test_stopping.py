"""SIGTERM ends a job wherever the program is."""

import subprocess
import sys
import time

from jax._src.distributed import global_state

from prm_jax.runtime import processes
from tests.shared.command_line import ROOT


def test_sigterm_in_a_destructor_is_not_lost():
  """Python drops what a destructor raises; the process ends all the same."""
  script = '\n'.join(
    [
      'import os, signal, sys, time',
      'from prm_jax import main',
      'sys.unraisablehook = main.mind_unraisable',
      'signal.signal(signal.SIGTERM, main.stop_at_once)',
      'class Dropped:',
      '  def __del__(self):',
      '    os.kill(os.getpid(), signal.SIGTERM)',
      '    time.sleep(0)',
      'try:',
      '  Dropped()',
      '  time.sleep(20)',
      'except main.Stopped:',
      '  print("stopped")',
    ]
  )
  began = time.monotonic()
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert (done.stdout, done.stderr) == ('stopped\n', '')
  assert time.monotonic() - began < 20


def test_a_process_that_ends_before_it_has_joined(monkeypatch):
  """It has nobody to tell: SIGTERM came while it was joining the others."""
  monkeypatch.setattr(global_state, 'num_processes', 2)
  assert global_state.client is None
  processes.leave('stopped')

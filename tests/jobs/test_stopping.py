"""SIGTERM ends a job wherever the program is."""

import subprocess
import sys
import time

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

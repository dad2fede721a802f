"""SIGTERM ends a job wherever the program is."""

import subprocess
import sys
import time

import pytest
from jax._src.distributed import global_state

from prm_jax.runtime import processes
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
Dropped()
with catch_signal(signal.SIGTERM) as arrived:
  time.sleep(0.5)
  print('stopped' if arrived() else 'lost')
""",
}


@pytest.mark.parametrize('name', AFTER)
def test_sigterm_in_a_destructor_is_not_lost(name):
  """Python drops what a destructor raises; the process ends all the same."""
  began = time.monotonic()
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT + AFTER[name]],
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

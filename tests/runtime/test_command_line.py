"""What a command prints, where nobody reads it."""

import subprocess
import sys

from tests.shared.command_line import ROOT

PRINTING = """
from prm_jax.runtime.command_line import log
from prm_jax.runtime.errors import exit_on_user_error

with exit_on_user_error():
  while True:
    log('a line')
"""


def test_a_command_whose_output_nobody_reads_ends_with_one_line():
  with subprocess.Popen(
    [sys.executable, '-c', PRINTING],
    cwd=ROOT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    assert process.stdout.readline() == 'a line\n'
    process.stdout.close()
    (line,) = process.stderr.read().splitlines()
  assert process.returncode == 2
  assert line.startswith(
    'error: nobody reads what this command prints any more'
  )

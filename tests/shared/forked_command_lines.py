"""Reads command lines from stdin, runs each in a fork, reports what they did.

Importing JAX takes seconds and a fault that is found at once milliseconds. The
import is shared, nothing else: flags, devices and exit code are the fork's own.

Each line of stdin is JSON, `command_line.Asked`, and gets a line on stdout:
JSON, [code, stdout, stderr] of each command line. It ends with its stdin.
"""

import gc
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from typing import BinaryIO

from prm_jax import main
from tests.shared.command_line import Asked


def run_as_process(args: list[str], out: BinaryIO, err: BinaryIO) -> None:
  """`python -m prm_jax.main ARGS` in this process, which ends here."""
  os.dup2(out.fileno(), 1)
  os.dup2(err.fileno(), 2)
  sys.argv = ['prm_jax/main.py', *args]
  try:
    main.run(sys.argv)
    code = 0
  except SystemExit as end:
    code = end.code
  except BaseException:
    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def fork(args: list[str]) -> tuple[int, str, str]:
  """Runs one command line; its exit code, stdout and stderr."""
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
    process = os.fork()
    if not process:
      run_as_process(args, out, err)
    _, status = os.waitpid(process, 0)
    texts = []
    for file in (out, err):
      file.seek(0)
      texts.append(file.read().decode())
  return os.waitstatus_to_exitcode(status), *texts


def answer_stdin() -> None:
  """Runs the command lines of stdin and writes what they did to stdout."""
  gc.freeze()  # forks need not look for garbage in what is imported
  for line in sys.stdin:
    asked = Asked(*json.loads(line))
    # Forks of forks, so that the threads that wait are not copied into them.
    with multiprocessing.get_context('fork').Pool(
      asked.at_a_time or os.cpu_count()
    ) as pool:
      answer = pool.map(fork, asked.command_lines, chunksize=1)
    print(json.dumps(answer), flush=True)


if __name__ == '__main__':
  answer_stdin()

"""Starts the processes of one job on loopback, and waits for all of them."""

import socket
import subprocess
import time


def free_port() -> int:
  """Returns a port of 127.0.0.1 that nobody listens on."""
  with socket.socket() as listening:
    listening.bind(('127.0.0.1', 0))
    return listening.getsockname()[1]


def process_flags(count: int) -> list[list[str]]:
  """Returns the flags with which each process of a job is started."""
  port = free_port()
  return [
    [
      f'--coordinator=127.0.0.1:{port}',
      f'--processes={count}',
      f'--process={i}',
    ]
    for i in range(count)
  ]


def wait_for_all(
  processes: list[subprocess.Popen], timeout: float = 240
) -> list[subprocess.CompletedProcess]:
  """Waits until all have ended; kills those that have not at the timeout."""
  end = time.monotonic() + timeout
  try:
    outputs = [
      process.communicate(timeout=max(1, end - time.monotonic()))
      for process in processes
    ]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  return [
    subprocess.CompletedProcess(process.args, process.returncode, *texts)
    for process, texts in zip(processes, outputs, strict=True)
  ]

"""A real server of PRMs in a process of its own, on loopback."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from tests.shared.command_line import ROOT
from tests.shared.several_processes import free_port


class LiveServer:
  """Is `python -m prm_jax.serve`.

  Args:
    flags: its further flags.
    port: a free one by default.
    environment: further variables.
  """

  def __init__(self, prm, *flags, port=None, environment=None):
    self.port = port or free_port()
    # Not a pipe, which would fill up and stop the server.
    self._said = tempfile.TemporaryFile('w+')  # noqa: SIM115
    self.process = subprocess.Popen(
      [
        *(sys.executable, '-m', 'prm_jax.serve', '--prm', f'prm={prm}'),
        *('--port', str(self.port), '--rows', '32', *flags),
      ],
      cwd=ROOT,
      env=os.environ | (environment or {}),
      stdout=self._said,
      stderr=subprocess.STDOUT,
    )

  def wait(self, path='/ready', seconds=120):
    """Waits until a path answers with 200."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      assert self.process.poll() is None, self.said()
      try:
        if self.get(path)[0] == 200:
          return self
      except OSError:
        pass
      time.sleep(0.1)
    raise AssertionError(f'{path} does not answer')

  def request(self, method, path, body=None, headers=None):
    """Returns status, headers and body of an answer."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
    try:
      connection.request(method, path, body, headers or {})
      reply = connection.getresponse()
      return reply.status, dict(reply.getheaders()), reply.read()
    finally:
      connection.close()

  def at_once(self, bodies, **headers):
    """Asks for scores, so that the server finds all requests at once.

    Returns:
      Status, headers and JSON of each answer.
    """
    clients = []
    self.process.send_signal(signal.SIGSTOP)  # until all of them are sent
    try:
      for body in bodies:
        client = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
        client.request('POST', '/v1/steps', json.dumps(body), headers)
        clients.append(client)
    finally:
      self.process.send_signal(signal.SIGCONT)
    found = []
    for client in clients:
      with contextlib.closing(client):
        reply = client.getresponse()
        text = json.loads(reply.read())
        found.append((reply.status, dict(reply.getheaders()), text))
    return found

  def get(self, path, **headers):
    status, _, body = self.request('GET', path, headers=headers)
    return status, body

  def post(self, path, body, **headers):
    """Returns status and JSON of an answer."""
    if not isinstance(body, bytes):
      body = json.dumps(body).encode()
    status, _, text = self.request('POST', path, body, headers)
    return status, json.loads(text)

  def score(self, *chains, **more):
    """Returns status and JSON of /v1/steps."""
    asked = [{'problem': p, 'steps': list(steps)} for p, steps in chains]
    return self.post('/v1/steps', {'chains': asked, **more})

  def memory(self):
    """Bytes that the process holds."""
    with open(f'/proc/{self.process.pid}/statm') as file:
      return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')

  def files(self):
    """Number of files and sockets that the process has open."""
    return len(os.listdir(f'/proc/{self.process.pid}/fd'))

  def stop(self, how=signal.SIGTERM):
    """Sends a signal; returns exit code and all that was printed."""
    if self.process.poll() is None:
      self.process.send_signal(how)
    try:
      self.process.wait(timeout=60)
    finally:
      self.process.kill()
    return self.process.returncode, self.said()

  def said(self):
    """Returns all that was printed."""
    self._said.seek(0)
    return self._said.read()

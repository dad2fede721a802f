"""A download of a model from a server that breaks off ends in one line."""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from tests.shared.command_line import ROOT

OPENING = """
from prm_jax.models.hub.safetensors_files import resolve
from prm_jax.runtime.errors import exit_on_user_error

with exit_on_user_error():
  resolve('hf://owner/name')
"""


class BreaksOff(http.server.BaseHTTPRequestHandler):
  """Serves a repository of one file, of which it sends a tenth."""

  protocol_version = 'HTTP/1.1'

  def log_message(self, *args):
    pass

  def do_HEAD(self):
    self.reply(b'', 1000)

  def do_GET(self):
    file = {
      'type': 'file',
      'path': 'config.json',
      'size': 1000,
      'oid': 'b' * 40,
    }
    if '/tree/' in self.path:
      return self.reply(json.dumps([file]).encode())
    if '/api/' in self.path:
      siblings = [{'rfilename': 'config.json'}]
      about = {'_id': '1', 'id': 'owner/name', 'sha': 'a' * 40}
      about |= {'siblings': siblings, 'private': False, 'downloads': 0}
      return self.reply(json.dumps(about | {'tags': []}).encode())
    self.reply(b'x' * 100, 1000)
    self.close_connection = True

  def reply(self, body, size=0):
    self.send_response(200)
    self.send_header('Content-Length', str(size or len(body)))
    self.send_header('Content-Type', 'application/json')
    self.send_header('ETag', f'"{"b" * 40}"')
    self.send_header('X-Repo-Commit', 'a' * 40)
    self.end_headers()
    self.wfile.write(body)


@pytest.mark.slow
def test_a_download_that_breaks_off(tmp_path):
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), BreaksOff)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  environment = {
    'HF_ENDPOINT': f'http://127.0.0.1:{server.server_port}',
    'HF_HOME': str(tmp_path),
    'HF_HUB_OFFLINE': '0',
    'HF_HUB_DISABLE_XET': '1',
    'NO_PROXY': '127.0.0.1',
  }
  done = subprocess.run(
    [sys.executable, '-c', OPENING],
    cwd=ROOT,
    env=os.environ | environment,
    capture_output=True,
    text=True,
    check=False,
  )
  server.shutdown()
  thread.join()
  server.server_close()
  assert done.returncode == 2, done.stderr
  *_, line = done.stderr.splitlines()
  assert line.startswith('error: model hf://owner/name is neither in the cache')
  assert 'received 100 bytes, expected 1000' in line

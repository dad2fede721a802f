"""A run is uploaded to a server that speaks the Hub's API, with its card."""

import base64
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from tests.shared.command_line import ROOT, the_error

pytestmark = pytest.mark.job

TOKEN = 'hf_not_a_real_token'


class Hub(http.server.BaseHTTPRequestHandler):
  """Keeps what is committed; every file goes into the commit itself."""

  def log_message(self, *args):
    pass

  def reply(self, status, **values):
    text = json.dumps(values).encode()
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(text)))
    self.end_headers()
    self.wfile.write(text)

  def do_GET(self):
    self.reply(404, error='Not found')

  def do_POST(self):
    size = int(self.headers.get('Content-Length') or 0)
    body = self.rfile.read(size)
    state = self.server.state
    if self.headers['Authorization'] != f'Bearer {TOKEN}':
      self.reply(401, error='Invalid username or password.')
    elif self.path == '/api/repos/create':
      state['created'] = json.loads(body)
      self.reply(200, url=f'http://{self.headers["Host"]}/me/model')
    elif self.path == '/api/validate-yaml':
      self.reply(200, errors=[], warnings=[])
    elif '/preupload/' in self.path:
      files = [
        {'path': x['path'], 'uploadMode': 'regular', 'shouldIgnore': False}
        for x in json.loads(body)['files']
      ]
      self.reply(200, files=files)
    elif '/commit/' in self.path:
      for line in body.splitlines():
        entry = json.loads(line)
        if entry['key'] == 'file':
          value = entry['value']
          state['files'][value['path']] = base64.b64decode(value['content'])
      url = f'http://{self.headers["Host"]}/me/model/commit/1'
      self.reply(200, success=True, commitUrl=url, commitOid='1')
    else:
      self.reply(404, error=self.path)


@pytest.fixture
def hub():
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
  server.state = {'files': {}}
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  yield server
  server.shutdown()
  thread.join()
  server.server_close()


def export(source, to, endpoint, repository='me/model', token=TOKEN):
  return subprocess.run(
    [
      *(sys.executable, '-m', 'prm_jax.export', '--from', str(source)),
      *('--to', str(to), '--layout', 'token_classification'),
      *('--push', repository, '--private'),
    ],
    cwd=ROOT,
    env=os.environ
    | {'HF_ENDPOINT': endpoint, 'HF_TOKEN': token, 'HF_HUB_OFFLINE': '0'},
    capture_output=True,
    text=True,
    check=False,
  )


def test_a_run_is_pushed_with_its_card(hub, finished, tmp_path):
  endpoint = f'http://127.0.0.1:{hub.server_port}'
  done = export(finished, tmp_path / 'out', endpoint)
  assert done.returncode == 0, done.stderr
  assert f'pushed: {endpoint}/me/model' in done.stdout
  assert TOKEN not in done.stdout + done.stderr
  created = hub.state['created']
  assert (created['organization'], created['name']) == ('me', 'model')
  # As versions of huggingface_hub say it.
  assert created.get('private') or created.get('visibility') == 'private'
  files = {
    path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()
  }
  assert hub.state['files'] == files
  card = files['README.md'].decode()
  results = json.loads((finished / 'results.json').read_text())
  assert f'# {results["manifest"]["name"]}\n' in card
  assert "prm_jax.load('hf://me/model')" in card
  f1 = results['results']['localisation']['arithmetic']['f1']
  assert f'| localisation.arithmetic.f1 | {f1:.4g} | [' in card
  assert results['manifest']['data_fingerprint'] in card


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_line(hub, finished, tmp_path):
  endpoint = f'http://127.0.0.1:{hub.server_port}'
  refused = export(finished, tmp_path / 'a', endpoint, token='hf_another')
  assert 'set HF_TOKEN to a token that may write there' in the_error(refused)
  assert 'hf_another' not in refused.stderr
  wrong = export(finished, tmp_path / 'b', endpoint, repository='a/b/c')
  assert 'expected OWNER/NAME' in the_error(wrong)
  away = export(finished, tmp_path / 'c', 'http://127.0.0.1:9')
  assert 'http://127.0.0.1:9 cannot be reached' in the_error(away)
  assert (tmp_path / 'c' / 'README.md').is_file()

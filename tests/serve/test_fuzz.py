"""Thousands of requests drawn from the OpenAPI document: no fault of ours."""

import os
import subprocess
import sys

import pytest

import prm_jax
from tests.serve.live_server import LiveServer

pytest.importorskip('schemathesis', reason='schemathesis is not installed')
pytestmark = [pytest.mark.job, pytest.mark.slow]

# For each of seven paths; PRM_JAX_FUZZ=1500 makes ten thousand requests.
EXAMPLES = int(os.environ.get('PRM_JAX_FUZZ', '200'))
CHAIN = ('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])


def fuzz(server, examples, folder):
  """Sends requests to each path; none may be a fault of the server."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'schemathesis.cli', 'run'),
      f'http://127.0.0.1:{server.port}/openapi.json',
      *('--max-examples', str(examples), '--seed', '1'),
      *('--phases', 'fuzzing', '--mode', 'all'),
      *('--checks', 'not_a_server_error,status_code_conformance'),
    ],
    cwd=folder,  # it keeps what it found there
    capture_output=True,
    text=True,
    timeout=1200,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_fuzzed_requests_are_answered_or_refused(finished, tmp_path):
  server = LiveServer(finished).wait()
  try:
    wanted = prm_jax.load(finished).score(*CHAIN).tolist()
    fuzz(server, EXAMPLES // 4, tmp_path)  # compiles the programs
    before = server.memory()
    fuzz(server, EXAMPLES, tmp_path)
    status, reply = server.score(CHAIN)
    assert status == 200
    assert reply['data'][0]['scores'] == pytest.approx(wanted, abs=1e-6)
    assert server.memory() < before + 100 * 2**20
  finally:
    code, text = server.stop()
  assert code == 0
  assert 'Traceback' not in text

"""Thousands of requests drawn from the OpenAPI document: no fault of ours."""

import subprocess
import sys

import pytest

import prm_jax
from tests.serve.live_server import LiveServer

pytest.importorskip('schemathesis', reason='schemathesis is not installed')
pytestmark = [pytest.mark.job, pytest.mark.slow]

EXAMPLES = 1500  # for each of seven paths
CHAIN = ('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])


def test_fuzzed_requests_are_answered_or_refused(finished):
  server = LiveServer(finished).wait()
  try:
    wanted = prm_jax.load(finished).score(*CHAIN).tolist()
    before = server.memory()
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'schemathesis.cli', 'run'),
        f'http://127.0.0.1:{server.port}/openapi.json',
        *('--max-examples', str(EXAMPLES), '--seed', '1'),
        *('--phases', 'fuzzing', '--mode', 'all'),
        *('--checks', 'not_a_server_error,status_code_conformance'),
      ],
      capture_output=True,
      text=True,
      timeout=1200,
      check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    status, reply = server.score(CHAIN)
    assert status == 200
    assert reply['data'][0]['scores'] == pytest.approx(wanted, abs=1e-6)
    assert server.memory() < before + 100 * 2**20
  finally:
    code, text = server.stop()
  assert code == 0
  assert 'Traceback' not in text

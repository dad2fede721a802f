"""Clients that hang up, read or send slowly, send too much, or no HTTP."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import uvicorn

from prm_jax.data.encoding import make_format
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.serve import connections
from prm_jax.serve.app import AppConfig, Server
from prm_jax.serve.connections import BoundedProtocol
from prm_jax.serve.gather import GatherConfig, Gatherer
from prm_jax.serve.observed import Observed
from prm_jax.serve.prms import ServedPrm

LENGTH = 8 << 20  # more than the buffers of both sides hold


async def answer(scope, receive, send):
  """An application whose answers are as long as their paths say."""
  if scope['type'] == 'http':
    await send({'type': 'http.response.start', 'status': 200})
    length = int(scope['path'].removeprefix('/'))
    await send({'type': 'http.response.body', 'body': bytes(length)})


@contextlib.contextmanager
def running(application):
  """Runs a server in a thread."""
  listening = socket.create_server(('127.0.0.1', 0))
  # Else the system takes several megabytes at once, and then nothing for long.
  listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
  config = uvicorn.Config(
    application,
    http=BoundedProtocol,
    lifespan='off',
    log_config=None,
    timeout_graceful_shutdown=20,
  )
  server = uvicorn.Server(config)
  thread = threading.Thread(target=server.run, kwargs={'sockets': [listening]})
  thread.start()
  while not server.started:
    assert thread.is_alive()
    time.sleep(0.01)
  try:
    yield server
  finally:
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setattr(connections, 'UNREAD_SECONDS', 1.0)
  with running(answer) as server:
    yield server


def port_of(server):
  return server.servers[0].sockets[0].getsockname()[1]


@pytest.fixture
def port(server):
  return port_of(server)


def ask(port, length, more=b''):
  """Returns a client that has asked for an answer, and reads little at once.

  Args:
    more: further lines of the request's head.
  """
  client = socket.create_connection(('127.0.0.1', port), timeout=60)
  client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
  client.sendall(b'GET /%d HTTP/1.1\r\nHost: a\r\n%s\r\n' % (length, more))
  return client


def read(client, wait):
  """Returns how many bytes a client gets that waits before each piece."""
  got = 0
  while True:
    wait()
    try:
      piece = client.recv(1 << 16)
    except ConnectionResetError:
      return got
    if not piece:
      return got
    got += len(piece)


def test_who_reads_slowly_gets_all(port, monkeypatch):
  """It takes longer than nobody may be idle, and much longer than a pause."""
  monkeypatch.setattr(connections, 'UNREAD_SECONDS', 4.0)
  pauses = iter([0.1] * 50)
  with ask(port, LENGTH, b'Connection: close\r\n') as client:
    assert read(client, lambda: time.sleep(next(pauses, 0))) > LENGTH


def wait_until(state):
  """Waits until a function returns true."""
  end = time.monotonic() + 60
  while not state():
    assert time.monotonic() < end
    time.sleep(0.01)


def test_who_does_not_read_is_hung_up_on(server, port):
  state = server.server_state
  with ask(port, LENGTH) as client:
    wait_until(lambda: state.total_requests and not state.connections)
    assert read(client, lambda: None) < LENGTH


@pytest.mark.slow
def test_who_leaves_any_of_an_answer_unread_is_hung_up_on(server, port):
  """Whatever is left waits somewhere else: in the system, or in the program."""
  state = server.server_state
  clients = [ask(port, length) for length in range(30_000, 720_000, 30_000)]
  wait_until(lambda: state.total_requests == len(clients))
  # Those that the system has taken whole are idle after five seconds.
  wait_until(lambda: not state.connections)
  for client in clients:
    client.close()


CHUNKED = b'POST /9 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'


@pytest.mark.parametrize('read_first', [False, True])
def test_what_is_no_http_behind_an_answer_ends_the_connection(
  port, caplog, read_first
):
  """The answer was given before all of the body was there."""
  with socket.create_connection(('127.0.0.1', port), timeout=30) as client:
    client.sendall(CHUNKED + b'5\r\nabcde\r\n')
    got = client.recv(1 << 16) if read_first else b''
    client.sendall(b'ZZ\r\n')
    while piece := client.recv(1 << 16):
      got += piece
  assert got.startswith(b'HTTP/1.1 ')
  assert [
    r for r in caplog.records if r.exc_info or r.levelname == 'ERROR'
  ] == []


def test_what_is_no_http_at_once_is_refused(port, caplog):
  with socket.create_connection(('127.0.0.1', port), timeout=30) as client:
    client.sendall(CHUNKED + b'5\r\nabcde\r\nZZ\r\n')
    client.recv(1 << 16)
    assert client.recv(1 << 16) == b''
  assert [
    r for r in caplog.records if r.exc_info or r.levelname == 'ERROR'
  ] == []


class Half:
  """A PRM that thinks half of everything."""

  def encode(self, problem, steps):
    return [(len(problem),), *((2,) for _ in steps)]

  def score_ids(self, chains):
    return [ScoredSteps((0.5,) * len(chain[1:]), 1) for chain in chains]


class Held(Half):
  """Answers once it may.

  Attributes:
    read: the chains that it was asked to score.
  """

  def __init__(self):
    self.read, self.may_answer = [], threading.Event()

  def score_ids(self, chains):
    self.read += chains
    assert self.may_answer.wait(60)
    return super().score_ids(chains)


@contextlib.contextmanager
def application_of(scorer, config):
  """Yields the application that serves a PRM, and what it observes."""
  observed = Observed(1)
  gatherer = Gatherer(GatherConfig(), observed)
  prm = ServedPrm('prm', scorer, make_format('arithmetic', 46), 'w')
  try:
    yield Server([prm], gatherer, observed, config).app(), observed
  finally:
    gatherer.close(5)


def test_who_hangs_up_is_not_computed():
  held = Held()
  with (
    application_of(held, AppConfig()) as (application, observed),
    running(application) as server,
  ):

    def post(problem):
      chains = [{'problem': problem, 'steps': ['b']}]
      client = http.client.HTTPConnection(
        '127.0.0.1', port_of(server), timeout=60
      )
      client.request('POST', '/v1/steps', json.dumps({'chains': chains}))
      return client

    def wait_for(line):
      wait_until(lambda: f'{line}\n' in observed.text().decode())

    busy = post('a')
    wait_until(lambda: held.read)
    gone = post('aa')
    wait_for('prm_jax_queue 1.0')
    gone.close()
    wait_for('prm_jax_requests_total{path="/v1/steps",status="499"} 1.0')
    held.may_answer.set()
    assert busy.getresponse().status == 200
    assert post('aaa').getresponse().status == 200
    wait_for('prm_jax_tokens_total{how="read",prm="prm"} 2.0')
  assert [chain[0] for chain in held.read] == [(1,), (3,)]


BODY = b'{"chains": [{"problem": "a", "steps": ["b"]}]}'.ljust(50)


def statuses(config, *rounds):
  """Returns the statuses of some rounds of requests.

  Args:
    rounds: the bodies of requests that are sent together, each in pieces. One
      without its last piece, which is empty, does not end; the time that it may
      take is over at once.
  """
  found = []

  async def post(pieces):
    left = iter(pieces)

    async def receive():
      if (piece := next(left, None)) is None:
        late = config.body_seconds
        asyncio.get_running_loop().time = lambda: time.monotonic() + late
        await asyncio.Event().wait()
      await asyncio.sleep(0)  # others send meanwhile
      return {'type': 'http.request', 'body': piece, 'more_body': bool(piece)}

    async def send(message):
      if message['type'] == 'http.response.start':
        found.append(message['status'])

    about = {'type': 'http', 'method': 'POST', 'path': '/v1/steps'}
    about |= {'headers': [], 'query_string': b''}
    await application(about, receive, send)

  async def go():
    async with asyncio.timeout(60):
      for bodies in rounds:
        await asyncio.gather(*map(post, bodies))

  with application_of(Half(), config) as (application, _):
    asyncio.run(go())
  return found


def test_bodies_are_held_up_to_a_size_in_all_and_no_longer_than_needed():
  config, body = AppConfig(bodies_bytes=100), [BODY[:25], BODY[25:], b'']
  assert statuses(config, *[[body]] * 10) == [200] * 10
  found = statuses(config, [body] * 3, [body] * 2)
  # Two are let in again once the others are gone.
  assert sorted(found[:3]) == [200, 200, 429] and found[3:] == [200, 200]


def test_a_body_that_stalls_is_given_up():
  """And held no longer: there is room for two others."""
  config, whole = AppConfig(bodies_bytes=100), [BODY, b'']
  assert statuses(config, [[BODY]], [whole] * 2) == [408, 200, 200]

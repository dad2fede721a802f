"""Clients that read or send slowly or not at all, too much, or no HTTP."""

import asyncio
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


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setattr(connections, 'UNREAD_SECONDS', 1.0)
  listening = socket.create_server(('127.0.0.1', 0))
  # Else the system takes several megabytes at once, and then nothing for long.
  listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
  config = uvicorn.Config(
    answer,
    http=BoundedProtocol,
    lifespan='off',
    log_config=None,
    timeout_graceful_shutdown=20,
  )
  server = uvicorn.Server(config)
  thread = threading.Thread(target=server.run, kwargs={'sockets': [listening]})
  thread.start()
  yield server
  server.should_exit = True
  thread.join()
  listening.close()


@pytest.fixture
def port(server):
  while not server.started:
    time.sleep(0.01)
  return server.servers[0].sockets[0].getsockname()[1]


def read(port, pause, pieces):
  """Returns how many bytes a client gets that waits before some pieces."""
  with socket.create_connection(('127.0.0.1', port), timeout=30) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.sendall(
      b'GET /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' % LENGTH
    )
    got = 0
    for n in range(LENGTH):
      if n < pieces:
        time.sleep(pause)
      try:
        piece = client.recv(1 << 20)
      except ConnectionResetError:
        break
      if not piece:
        break
      got += len(piece)
  return got


def test_who_reads_slowly_gets_all(port):
  """It takes three times as long as nobody may be idle."""
  assert read(port, 0.2, 15) > LENGTH


def test_who_does_not_read_is_hung_up_on(port):
  assert read(port, 4.0, 1) < LENGTH


@pytest.mark.slow
def test_who_leaves_any_of_an_answer_unread_is_hung_up_on(server, port):
  """Whatever is left waits somewhere else: in the system, or in the program."""
  clients = []
  for length in range(30_000, 720_000, 30_000):
    client = socket.create_connection(('127.0.0.1', port), timeout=30)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.sendall(b'GET /%d HTTP/1.1\r\nHost: a\r\n\r\n' % length)
    clients.append(client)
  end = time.monotonic() + 30
  while len(server.server_state.connections) < len(clients):
    assert time.monotonic() < end
    time.sleep(0.01)
  # Those that the system has taken whole are idle after five seconds.
  while server.server_state.connections:
    assert time.monotonic() < end
    time.sleep(0.1)
  for client in clients:
    client.close()


CHUNKED = b'POST /9 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'


@pytest.mark.parametrize('pause', [0.0, 0.5])
def test_what_is_no_http_behind_an_answer_ends_the_connection(
  port, caplog, pause
):
  """The answer was given before all of the body was there."""
  with socket.create_connection(('127.0.0.1', port), timeout=30) as client:
    client.sendall(CHUNKED + b'5\r\nabcde\r\n')
    time.sleep(pause)
    client.sendall(b'ZZ\r\n')
    got = b''
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
    return [(1,), *((2,) for _ in steps)]

  def score_ids(self, chains):
    return [ScoredSteps((0.5,) * len(chain[1:]), 1) for chain in chains]


BODY = b'{"chains": [{"problem": "a", "steps": ["b"]}]}'.ljust(50)


def statuses(config, *rounds):
  """Returns the statuses of some rounds of requests.

  Args:
    rounds: the bodies of requests that are sent together, each in pieces. One
      without its last piece, which is empty, does not end.
  """
  observed = Observed(1)
  gatherer = Gatherer(GatherConfig(), observed)
  prm = ServedPrm('prm', Half(), make_format('arithmetic', 46), 'w')
  app = Server([prm], gatherer, observed, config).app()
  found = []

  async def post(pieces):
    left = iter(pieces)

    async def receive():
      if (piece := next(left, None)) is None:
        await asyncio.Event().wait()
      await asyncio.sleep(0)  # others send meanwhile
      return {'type': 'http.request', 'body': piece, 'more_body': bool(piece)}

    async def send(message):
      if message['type'] == 'http.response.start':
        found.append(message['status'])

    about = {'type': 'http', 'method': 'POST', 'path': '/v1/steps'}
    await app(about | {'headers': [], 'query_string': b''}, receive, send)

  async def go():
    async with asyncio.timeout(20):
      for bodies in rounds:
        await asyncio.gather(*map(post, bodies))

  try:
    asyncio.run(go())
  finally:
    gatherer.close(5)
  return found


def test_bodies_are_held_up_to_a_size_in_all_and_no_longer_than_needed():
  config, body = AppConfig(bodies_bytes=100), [BODY[:25], BODY[25:], b'']
  assert statuses(config, *[[body]] * 10) == [200] * 10
  found = statuses(config, [body] * 3, [body] * 2)
  # Two are let in again once the others are gone.
  assert sorted(found[:3]) == [200, 200, 429] and found[3:] == [200, 200]


def test_a_body_that_stalls_is_given_up():
  """And held no longer: there is room for two others."""
  config, whole = AppConfig(bodies_bytes=100, body_seconds=0.1), [BODY, b'']
  assert statuses(config, [[BODY]], [whole] * 2) == [408, 200, 200]

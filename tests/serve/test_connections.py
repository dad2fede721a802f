"""Clients that read slowly or not at all, or send what is no HTTP."""

import socket
import threading
import time

import pytest

pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import uvicorn

from prm_jax.serve import connections
from prm_jax.serve.connections import BoundedProtocol

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

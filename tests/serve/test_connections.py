"""Clients that read slowly, and clients that do not read at all."""

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
  """An application whose only answer is long."""
  if scope['type'] == 'http':
    await send({'type': 'http.response.start', 'status': 200})
    await send({'type': 'http.response.body', 'body': bytes(LENGTH)})


@pytest.fixture
def port(monkeypatch):
  monkeypatch.setattr(connections, 'UNREAD_SECONDS', 1.0)
  listening = socket.create_server(('127.0.0.1', 0))
  # Else the system takes several megabytes at once, and then nothing for long.
  listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
  config = uvicorn.Config(
    answer, http=BoundedProtocol, lifespan='off', log_config=None
  )
  server = uvicorn.Server(config)
  thread = threading.Thread(target=server.run, kwargs={'sockets': [listening]})
  thread.start()
  yield listening.getsockname()[1]
  server.should_exit = True
  thread.join()


def read(port, pause, pieces):
  """Returns how many bytes a client gets that waits before some pieces."""
  with socket.create_connection(('127.0.0.1', port), timeout=30) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.sendall(b'GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
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

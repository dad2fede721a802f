"""Runs an OpenAI-compatible server on loopback that fails on demand.

It has no model: it repeats what it is asked and counts requests. Its faults are
real ones, such as silent sockets and bodies that break off.
"""

import contextlib
import hashlib
import http.server
import itertools
import json
import socket
import sqlite3
import struct
import sys
import threading
import time

USAGE = {'prompt_tokens': 7, 'completion_tokens': 5, 'total_tokens': 12}


def echo(body):
  """Returns two steps with the prompt and the seed, unique to a request."""
  if 'messages' in body:
    said = body['messages'][-1]['content']
  else:
    said = body['prompt']
  return f'I read {said.strip()!r}\n\n#### {body.get("seed")}\n'


def reply(text, finish='stop', usage=USAGE):
  choice = {
    'index': 0,
    'message': {'role': 'assistant', 'content': text},
    'text': text,
    'finish_reason': finish,
  }
  return {'id': '1', 'choices': [choice], 'usage': usage}


def verdict(body, _):
  """Returns a judge's reply that depends only on what is asked, as a fault."""
  text = json.dumps(body, sort_keys=True)
  index = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 6 - 1
  return reply(f'\\boxed{{{index}}}')


class FaultyServer(http.server.ThreadingHTTPServer):
  """Serves requests, and records them.

  Attributes:
    fault: called with a body and how often it came before; returns None to
      answer, a status, (status, headers, text), a dict as the reply's JSON, or
      the name of one of FAULTS.
    answer: called with a body; returns the JSON of a whole reply.
    models: the JSON that a GET gets.
    asked: bodies in the order in which they came.
    heads: headers of these requests.
    times: when these requests came, in seconds.
    answered: number of replies that were sent in full.
    most: most requests at the same time.
    pause: seconds before each reply.
    wait: called with the seconds for which a fault has its client wait; returns
      whether the server stops.
    status: status of a flood's reply.
    sent: bytes of floods that were sent.
  """

  daemon_threads = True
  request_queue_size = 64

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.fault = lambda body, before: None
    self.answer = lambda body: reply(echo(body))
    self.models = {'object': 'list', 'data': []}
    self.asked, self.heads, self.times = [], [], []
    self.answered, self.most, self._now = 0, 0, 0
    self.pause, self.status, self.sent = 0.0, 200, 0
    self.lock = threading.Lock()
    self.stopping = threading.Event()
    self.wait = self.stopping.wait

  @property
  def url(self):
    return f'http://127.0.0.1:{self.server_port}/v1'

  @contextlib.contextmanager
  def counted(self, body, headers):
    with self.lock:
      before = self.asked.count(body)
      self.asked.append(body)
      self.heads.append(headers)
      self.times.append(time.monotonic())
      self._now += 1
      self.most = max(self.most, self._now)
    yield before
    with self.lock:
      self._now -= 1

  def handle_error(self, request, client_address):
    # Many tests are about clients that hang up.
    if not isinstance(sys.exc_info()[1], ConnectionError):
      super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *_):
    pass

  def do_GET(self):
    self.send(json.dumps(self.server.models))

  def do_POST(self):
    server = self.server
    body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
    with server.counted(body, self.headers) as before:
      time.sleep(server.pause)
      fault = server.fault(body, before)
    self.broken = isinstance(fault, str) and fault != 'twice'
    if isinstance(fault, str):
      FAULTS[fault](self, json.dumps(server.answer(body)).encode())
      return
    status, headers, text = 200, {}, None
    if isinstance(fault, int):
      status, text = fault, '{"error": {"message": "as it was told"}}'
    elif isinstance(fault, tuple):
      status, headers, text = fault
    elif isinstance(fault, dict):
      text = json.dumps(fault)
    text = json.dumps(server.answer(body)) if text is None else text
    self.send(text, status, headers)
    with server.lock:
      server.answered += status == 200

  def send(self, text, status=200, headers=()):
    data = text if isinstance(text, bytes) else text.encode()
    self.start(len(data), status, headers)
    self.wfile.write(data)

  def start(self, length, status=200, headers=()):
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    if length is not None:
      self.send_header('Content-Length', str(length))
    for name, value in dict(headers).items():
      self.send_header(name, value)
    self.end_headers()


class KeptAlive(_Handler):
  """Keeps a connection open after a whole reply, as most servers do.

  For use as a server's `RequestHandlerClass`.
  """

  protocol_version = 'HTTP/1.1'

  def do_POST(self):
    super().do_POST()
    # Bytes without a length end where the connection does.
    self.close_connection |= self.broken


def _hang(handler, data):
  handler.server.wait(20)


def _drip(handler, data):
  """Sends a byte now and then, so that no single wait is long."""
  handler.start(10_000)
  while not handler.server.wait(0.05):
    handler.wfile.write(b' ')


def _cut(handler, data):
  handler.start(len(data))
  handler.wfile.write(data[: len(data) // 2])


def _cut_unseen(handler, data):
  """Cuts a body without a length, which seems to end there."""
  handler.start(None)
  handler.wfile.write(data[: len(data) // 2])


def _flood(handler, data):
  """Sends blanks for as long as they are read."""
  handler.start(None, handler.server.status)
  blanks = b' ' * 2**16
  while not handler.server.stopping.is_set():
    handler.wfile.write(blanks)
    handler.server.sent += len(blanks)


def _silence(handler, data):
  """Hangs up without a reply."""


def _reset(handler, data):
  """Resets the connection instead of closing it."""
  handler.connection.setsockopt(
    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)
  )
  handler.connection.close()


def _short_length(handler, data):
  """Names a length below the body's."""
  handler.start(len(data) // 2)
  handler.wfile.write(data)


def _two_lengths(handler, data):
  handler.start(len(data), headers={'content-length': '7'})
  handler.wfile.write(data)


def _garbage(handler, data):
  handler.wfile.write(data)


def _bad_chunks(handler, data):
  handler.start(None, headers={'Transfer-Encoding': 'chunked'})
  handler.wfile.write(b'5\r\n' + data)


def _no_gzip(handler, data):
  handler.start(len(data), headers={'Content-Encoding': 'gzip'})
  handler.wfile.write(data)


def _endless_head(handler, data):
  handler.wfile.write(b'HTTP/1.1 200 OK\r\n' + b'X: y\r\n' * 100_000)


def _twice(handler, data):
  """Sends two replies to one request, in one piece."""
  head = f'HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n'
  handler.wfile.write((head.encode() + data) * 2)


FAULTS = {
  'hang': _hang,
  'drip': _drip,
  'cut': _cut,
  'cut unseen': _cut_unseen,
  'silence': _silence,
  'flood': _flood,
  'reset': _reset,
  'short length': _short_length,
  'two lengths': _two_lengths,
  'garbage': _garbage,
  'bad chunks': _bad_chunks,
  'no gzip': _no_gzip,
  'endless head': _endless_head,
  'twice': _twice,
}


class Gate:
  """Lets a server answer `count` requests, and holds all further ones."""

  def __init__(self, server, count):
    self._server, self._count, self._lifted = server, count, threading.Event()
    self._fault, server.fault = server.fault, self._pass
    self._turns = itertools.count()

  def _pass(self, body, before):
    if next(self._turns) < self._count:
      return self._fault(body, before)
    self._lifted.wait(120)
    return 'silence'

  def wait_for_held(self, count, process):
    """Waits until so many are held, so that a process waits for all of them."""
    end = time.monotonic() + 120
    while len(self._server.asked) < self._count + count:
      assert process.poll() is None and time.monotonic() < end
      time.sleep(0.01)

  def lift(self):
    """Hangs up on those that are held; the server is as it was before."""
    self._server.fault = self._fault
    self._lifted.set()


def count_replies(folder):
  """Returns the number of answers in an endpoint's cache."""
  if not (folder / 'cache.db').exists():
    return 0
  with contextlib.closing(sqlite3.connect(folder / 'cache.db')) as database:
    try:
      return database.execute('SELECT COUNT(*) FROM Cache').fetchone()[0]
    except sqlite3.OperationalError:  # the process has only begun to make it
      return 0


@contextlib.contextmanager
def serving():
  """Runs a server for the time of a block."""
  with FaultyServer() as server:
    thread = threading.Thread(
      target=server.serve_forever, args=(0.02,), daemon=True
    )
    thread.start()
    try:
      yield server
    finally:
      server.stopping.set()
      server.shutdown()
      thread.join()

"""Sends each attempt of the `openai` client: bounded, checked and recorded.

    request -> send -> a reply with an answer in it, or an error

The `openai` client decides how often and when to try again. This module
adds what it does not know: how long a whole reply may take and how large it may
be, that a reply without an answer is a failure, and which refusals are final.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httpx2  # openai is built on it
import openai

from prm_jax.inference.server import replies
from prm_jax.runtime.errors import UserError

T = TypeVar('T')

# Why each attempt of the running task's call failed, '' if it succeeded.
OUTCOMES: contextvars.ContextVar[list[str]] = contextvars.ContextVar('outcomes')


def without_key(text: str, key: str) -> str:
  """Returns a server's text on one line, without the key: some quote it."""
  line = ' '.join(text.split())
  return line.replace(key, '***') if key else line


def read_key(variable: str) -> str:
  """Returns the key in an environment variable; '' names none.

  Raises:
    UserError: the variable is not set, or a header cannot hold what it is.
  """
  if not variable:
    return ''
  key = os.environ.get(variable, '').strip()
  if not key:
    raise UserError(
      f'endpoint.api_key_variable={variable!r}: it is not set in the '
      f"environment; export {variable}=KEY, or set the config's to ''"
    )
  if not (key.isascii() and key.isprintable()):
    raise UserError(
      f'endpoint.api_key_variable={variable!r}: the key in it has characters '
      'that no header holds, such as a dash of another kind; copy it again'
    )
  return key


def run(calls: Coroutine[Any, Any, T]) -> T:
  """Runs calls to their end, also where an event loop runs already.

  If the handler of SIGTERM raises, the calls are cancelled and its exception is
  raised here; within a call asyncio might lose it.
  """
  try:
    asyncio.get_running_loop()
  except RuntimeError:
    if threading.current_thread() is threading.main_thread():
      return _run_minding_signals(calls)
    return asyncio.run(calls)
  # A notebook has its own loop running, and a thread can have only one.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(asyncio.run, calls).result()


def _run_minding_signals(calls: Coroutine[Any, Any, T]) -> T:
  """Runs calls; cancels them where the handler of SIGTERM raises."""
  handler = signal.getsignal(signal.SIGTERM)
  raised: list[BaseException] = []
  tasks: list[asyncio.Task] = []

  async def cancellable() -> T:
    tasks.append(asyncio.current_task())
    if raised:
      tasks[0].cancel()
    return await calls

  def note(*_: Any) -> None:
    try:
      handler(signal.SIGTERM, None)
    except BaseException as error:
      raised.append(error)
      for task in tasks:
        # A loop that is closed has nothing left to cancel.
        with contextlib.suppress(RuntimeError):
          task.get_loop().call_soon_threadsafe(task.cancel)

  if not callable(handler):
    return asyncio.run(calls)
  signal.signal(signal.SIGTERM, note)
  try:
    return asyncio.run(cancellable())
  finally:
    signal.signal(signal.SIGTERM, handler)
    if raised:  # also where the calls have ended meanwhile
      raise raised[0] from None


class Failure(openai.OpenAIError):
  """Reports a call that got no answer.

  It is an error of `openai`, which the client passes on without another try.

  Attributes:
    reason: the reason under which it is counted.
    said: the message of a server that refused, on one line.
    final: whether this call can never succeed.
  """

  def __init__(self, reason: str, said: str = '', final: bool = False) -> None:
    super().__init__(reason)
    self.reason, self.said, self.final = reason, said, final


def _drop_short_waits(response: httpx2.Response, attempts: int) -> None:
  """Lets the client back off where a server asks for a shorter wait.

  The client waits as long as it is asked to, even for a millisecond, and so
  would use up all attempts at once.
  """
  least = min(0.5 * 2 ** (attempts - 1), 8.0)
  for name, units in (('retry-after-ms', 1000), ('retry-after', 1)):
    with contextlib.suppress(KeyError, ValueError):  # absent, or a date
      if float(response.headers[name]) < least * units:
        del response.headers[name]


class Attempts(openai.DefaultAsyncHttpxClient):
  """Is the HTTP client of an `openai` client; each `send` is an attempt.

  Args:
    seconds: most seconds of an attempt, from its first byte to its last.
    max_bytes: most bytes of a reply, counted after decompression.
    check: raises `replies.NoAnswer` where a reply's text has no answer.
  """

  def __init__(
    self,
    seconds: float,
    max_bytes: int,
    check: Callable[[str], Any] = replies.read_answer,
  ) -> None:
    super().__init__(
      timeout=seconds,
      event_hooks={'response': [self._read]},
      # A server that sends two replies to a request would have the second one
      # taken for the answer to the next request of a connection.
      limits=httpx2.Limits(max_keepalive_connections=0),
      # Another address may be anybody's, and its calls would not be counted.
      follow_redirects=False,
    )
    self._seconds, self._max_bytes, self._check = seconds, max_bytes, check

  async def send(
    self, request: httpx2.Request, **options: Any
  ) -> httpx2.Response:
    """Sends one attempt; marks a reply with an error status as final or not.

    Raises:
      httpx2.RequestError: the attempt failed, and the client may try again.
      Failure: the reply is larger than allowed.
    """
    outcomes = OUTCOMES.get()
    outcomes.append('connection')  # until more is known
    try:
      # The client's own timeout starts again with every piece of a reply.
      async with asyncio.timeout(self._seconds):
        response = await super().send(request, **options)
      if response.is_success:
        self._check(response.text)
        outcomes[-1] = ''
        return response
    except (TimeoutError, httpx2.TimeoutException) as error:
      outcomes[-1] = 'timeout'
      raise httpx2.ReadTimeout('timeout', request=request) from error
    except replies.NoAnswer as error:
      outcomes[-1] = str(error)
      raise httpx2.DecodingError(str(error), request=request) from error
    outcomes[-1] = f'status {response.status_code}'
    fault = replies.fault_of(response.status_code, response.text)
    passing = 'true' if fault == 'the moment' else 'false'
    response.headers['x-should-retry'] = passing
    _drop_short_waits(response, len(outcomes))
    return response

  async def _read(self, response: httpx2.Response) -> None:
    """Reads a reply, and hangs up on one that is too long."""
    # Older HTTP clients decompress a piece of such a reply to any size.
    if ',' in response.headers.get('content-encoding', ''):
      raise Failure('a reply compressed twice', final=True)
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
      async for piece in pieces:
        body += piece
        if len(body) > self._max_bytes:
          raise Failure(f'a reply above {self._max_bytes:,} bytes', final=True)
    # This is where the client's `aread`, which has no limit, stores a body.
    response._content = bytes(body)
    # JSON is UTF-8 (RFC 8259), whatever charset the header names.
    response.encoding = 'utf-8'

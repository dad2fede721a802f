"""Sends each attempt of the `openai` client: bounded, checked and recorded.

    request -> send -> a reply with an answer in it, or an error

The `openai` client decides how often and when to try again. What it does not
know is added here: how long a whole reply may take, how large it may be, that
a reply without an answer is a failure, and which refusals are final. Only this
module needs the package `openai`, which is an extra.
"""

import asyncio
import contextlib
import contextvars
from typing import Any

import httpx2  # openai is built on it
import openai

from prm_jax.inference.server import replies

# What became of each attempt of the call that the running task has sent: why
# it failed, or ''.
OUTCOMES: contextvars.ContextVar[list[str]] = contextvars.ContextVar('outcomes')


class Failure(openai.OpenAIError):
  """A call that got no answer; the client passes its own errors on at once.

  Attributes:
    reason: what it is counted by.
    said: the words of a server that refused, on one line.
    final: whether this call can never succeed.
  """

  def __init__(self, reason: str, said: str = '', final: bool = False) -> None:
    super().__init__(reason)
    self.reason, self.said, self.final = reason, said, final


class Attempts(openai.DefaultAsyncHttpxClient):
  """The HTTP client of an `openai` client: a `send` is an attempt."""

  def __init__(self, seconds: float, max_bytes: int) -> None:
    """Sends nothing yet.

    Args:
      seconds: of one attempt, from its first byte to its last.
      max_bytes: of a reply, counted after it was decompressed.
    """
    super().__init__(timeout=seconds, event_hooks={'response': [self._read]})
    self._seconds, self._max_bytes = seconds, max_bytes

  async def send(
    self, request: httpx2.Request, **options: Any
  ) -> httpx2.Response:
    """Returns the reply, marked with whether to try again if it is an error.

    Raises:
      httpx2.RequestError: the attempt failed and the client may try again.
      Failure: the reply is larger than allowed.
    """
    outcomes = OUTCOMES.get()
    outcomes.append('')
    try:
      # The client's own timeout begins anew with every piece of a reply.
      async with asyncio.timeout(self._seconds):
        response = await super().send(request, **options)
      if response.is_success:
        replies.read_answer(response.text)
        return response
    except (TimeoutError, httpx2.TimeoutException) as error:
      outcomes[-1] = 'timeout'
      raise httpx2.ReadTimeout('timeout', request=request) from error
    except httpx2.RequestError:
      outcomes[-1] = 'connection'
      raise
    except replies.NoAnswer as error:
      outcomes[-1] = str(error)
      raise httpx2.DecodingError(str(error), request=request) from error
    outcomes[-1] = f'status {response.status_code}'
    fault = replies.fault_of(response.status_code, response.text)
    passing = 'true' if fault == 'the moment' else 'false'
    response.headers['x-should-retry'] = passing
    return response

  async def _read(self, response: httpx2.Response) -> None:
    """Reads a reply, and hangs up on one that is too long."""
    # Older clients inflate a piece of such a reply at once, to any size.
    if ',' in response.headers.get('content-encoding', ''):
      raise Failure('a reply compressed twice', final=True)
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
      async for piece in pieces:
        body += piece
        if len(body) > self._max_bytes:
          raise Failure(f'a reply above {self._max_bytes:,} bytes', final=True)
    # Where the client's own `aread`, which knows no limit, would leave it.
    response._content = bytes(body)
    # JSON is UTF-8 (RFC 8259), whatever charset a header makes up.
    response.encoding = 'utf-8'

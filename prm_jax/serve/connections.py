"""Hangs up on clients that are slow to speak, or that do not listen.

uvicorn bounds idle connections, and `app.py` bodies; between the two a client
could send a header a byte at a time, or never read its answer, and keep its
connection for ever.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
UNREAD_SECONDS = 60.0


class BoundedProtocol(H11Protocol):
  """Closes a connection whose head takes too long, or whose answer waits."""

  def connection_made(self, transport: Any) -> None:
    self._head: asyncio.TimerHandle | None = None
    self._unread: asyncio.TimerHandle | None = None
    super().connection_made(transport)
    # The clock for unread answers starts with the first byte that waits.
    transport.set_write_buffer_limits(0)
    self._wait_for_head()

  def data_received(self, data: bytes) -> None:
    super().data_received(data)
    self._wait_for_head()

  def on_response_complete(self) -> None:
    super().on_response_complete()
    self._wait_for_head()

  def send_400_response(self, msg: str) -> None:
    """Refuses what is no HTTP, unless an answer has begun or was given."""
    if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
      super().send_400_response(msg)
    else:
      self.transport.close()
    if self.cycle is not None:
      # Nobody waits for what it may still answer.
      self.cycle.disconnected = True
      self.cycle.message_event.set()

  def pause_writing(self) -> None:
    """Starts the clock when the client does not read what it is sent."""
    super().pause_writing()
    self._wait_for_reader()

  def resume_writing(self) -> None:
    super().resume_writing()
    self._stop_waiting_for_reader()

  def connection_lost(self, exc: Exception | None) -> None:
    self._stop_waiting_for_head()
    self._stop_waiting_for_reader()
    super().connection_lost(exc)

  def _wait_for_head(self) -> None:
    """Starts the clock unless it runs, and stops it once there is a request."""
    if self.cycle is not None and not self.cycle.response_complete:
      self._stop_waiting_for_head()
    elif self._head is None:
      self._head = self.loop.call_later(HEAD_SECONDS, self._hang_up)

  def _stop_waiting_for_head(self) -> None:
    if self._head is not None:
      self._head.cancel()
      self._head = None

  def _wait_for_reader(self) -> None:
    left = self.transport.get_write_buffer_size()

    def look() -> None:
      if self.transport.get_write_buffer_size() < left:
        self._wait_for_reader()  # it reads, if slowly
      else:
        self.transport.abort()

    self._unread = self.loop.call_later(UNREAD_SECONDS, look)

  def _stop_waiting_for_reader(self) -> None:
    if self._unread is not None:
      self._unread.cancel()
      self._unread = None

  def _hang_up(self) -> None:
    self._head = None
    self.transport.close()

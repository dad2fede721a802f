"""SIGTERM while calls are under way, and keys that no header holds."""

import asyncio
import os
import signal

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.server import attempts
from prm_jax.runtime.errors import UserError


class Halt(BaseException):
  """What a handler raises, as that of `prm_jax.main` does."""


@pytest.fixture
def handler():
  """Sets a handler of SIGTERM, and puts back what was there."""
  before = signal.getsignal(signal.SIGTERM)
  yield lambda function: signal.signal(signal.SIGTERM, function)
  signal.signal(signal.SIGTERM, before)


def halt(*_):
  raise Halt


async def calls(seconds, cancelled):
  """Two calls in a group; SIGTERM comes while they wait."""

  async def call():
    try:
      await asyncio.sleep(seconds)
    except asyncio.CancelledError:
      cancelled.append(True)
      raise

  async with asyncio.TaskGroup() as group:
    group.create_task(call())
    group.create_task(call())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
  return 'answers'


def test_a_handler_that_raises_ends_the_calls_and_is_heard(handler):
  handler(halt)
  for _ in range(3):
    cancelled = []
    with pytest.raises(Halt):
      attempts.run(calls(60, cancelled))
    assert cancelled == [True, True]
    assert signal.getsignal(signal.SIGTERM) is halt


@pytest.mark.parametrize('turns', range(3))
def test_a_signal_in_the_last_moment_is_heard(handler, turns):
  async def last():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(turns):
      await asyncio.sleep(0)
    return 'answers'

  handler(halt)
  with pytest.raises(Halt):
    attempts.run(last())
  assert signal.getsignal(signal.SIGTERM) is halt


def test_a_handler_that_only_notes_the_signal_lets_the_calls_end(handler):
  heard, cancelled = [], []
  handler(lambda *_: heard.append(True))
  assert attempts.run(calls(0.1, cancelled)) == 'answers'
  assert (heard, cancelled) == ([True], [])


@pytest.mark.parametrize('key', ['sk\u2013123', 'sk\t1', 'sk\n1'])
def test_a_key_that_no_header_holds_is_refused(key, monkeypatch):
  monkeypatch.setenv('KEY', key)
  with pytest.raises(UserError, match="'KEY': the key in it has characters"):
    attempts.read_key('KEY')

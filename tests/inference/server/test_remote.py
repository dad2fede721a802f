"""Tests servers that fail: retries, limits, and what is counted."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import threading
import time

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.protocols import Question
from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage
from prm_jax.runtime.errors import UserError
from tests.shared.faulty_server import USAGE, reply, serving
from tests.shared.parrot import BAD, GOOD, endpoint_for, problem_of

FASTER = 120


@pytest.fixture
def fast_waits(server, monkeypatch):
  """Lets a client's time pass faster while a fault has it wait.

  So a timeout of a minute runs out soon, and never where a reply is only slow.
  """
  ahead, loops = [0.0], []

  def passed(loop):
    loops[:] = [loop]
    return time.monotonic() + ahead[0]

  def wait(seconds):
    ahead[0] += FASTER * seconds
    with contextlib.suppress(RuntimeError):  # the client has ended
      loops[0].call_soon_threadsafe(int)  # has it look at its clock
    return server.stopping.wait(seconds)

  monkeypatch.setattr(asyncio.BaseEventLoop, 'time', passed)
  monkeypatch.setattr(server, 'wait', wait)


FAULTS = [
  (500, 'status 500'),
  (503, 'status 503'),
  (408, 'status 408'),
  (429, 'status 429'),
  ('hang', 'timeout'),
  ('drip', 'timeout'),
  ('cut', 'connection'),
  ('silence', 'connection'),
  ('cut unseen', 'malformed JSON'),
  ((200, {}, '<html>502 Bad Gateway</html>'), 'malformed JSON'),
  ((200, {}, '{"choices": [{"message": '), 'malformed JSON'),
  ((200, {}, b'\xff\xfe\x00'), 'malformed JSON'),
  ((200, {}, '[' * 100_000), 'malformed JSON'),
  ((200, {}, 'null'), 'no choices'),
  ({'choices': [], 'usage': USAGE}, 'no choices'),
  ({'choices': [{'message': None}]}, 'no choices'),
  ({'choices': [{'message': {'content': 7}}]}, 'no choices'),
  ({'error': {'message': 'overloaded'}}, 'no choices'),
]


@pytest.mark.usefixtures('fast_waits')
@pytest.mark.parametrize(('fault', 'reason'), FAULTS, ids=str)
def test_a_passing_fault_is_retried(server, fault, reason):
  server.fault = lambda body, before: fault if before < 2 else None
  endpoint = endpoint_for(server, timeout=60.0)
  [[completion]] = endpoint.complete([GOOD])
  assert completion.steps[0] == "I read 'good'"
  assert endpoint.usage.retried == {reason: 2}
  assert endpoint.usage.failed == {}
  assert endpoint.usage.calls == len(server.asked) == 3
  assert endpoint.usage.tokens == 5


@pytest.mark.usefixtures('fast_waits')
@pytest.mark.parametrize(('fault', 'reason'), FAULTS, ids=str)
def test_a_lasting_fault_fails_its_item_alone(server, fault, reason):
  server.fault = lambda body, _: fault if problem_of(body) == 'bad' else None
  endpoint = endpoint_for(server, concurrency=1, timeout=60.0)
  answers = endpoint.complete([GOOD, BAD, GOOD._replace(samples=2)])
  assert answers[1] == [None]
  assert [completion.finished for completion in answers[2]] == [True, True]
  assert endpoint.usage.failed == {reason: 1}
  assert endpoint.usage.retried == {reason: 2}
  assert [problem_of(body) for body in server.asked].count('bad') == 3


def test_retry_after_is_heeded(server):
  told = (429, {'Retry-After': '0.5'}, '{}')
  server.fault = lambda body, before: None if before else told
  [[completion]] = endpoint_for(server).complete([GOOD])
  assert completion.finished
  assert server.times[1] - server.times[0] >= 0.5


@pytest.mark.parametrize('header', ['Retry-After', 'retry-after-ms'])
def test_a_short_retry_after_does_not_end_the_growing_waits(server, header):
  """Else all attempts would be used up within a blink."""
  server.fault = lambda body, _: (429, {header: '0.0001'}, '{}')
  assert endpoint_for(server, attempts=6).complete([GOOD]) == [[None]]
  waits = [b - a for a, b in itertools.pairwise(server.times)]
  assert waits[-1] >= 0.01 * 2**4 * 0.75


def test_a_retry_after_above_two_minutes_fails_at_once(server):
  server.fault = lambda body, _: (503, {'Retry-After': '3600'}, '{}')
  endpoint = endpoint_for(server)
  assert endpoint.complete([GOOD]) == [[None]]
  assert endpoint.usage.failed == {'status 503': 1}
  assert len(server.asked) == 1


def test_waits_between_attempts_grow(server):
  server.fault = lambda body, _: 500
  endpoint = endpoint_for(server, attempts=6)
  assert endpoint.complete([GOOD]) == [[None]]
  waits = [b - a for a, b in itertools.pairwise(server.times)]
  assert len(waits) == 5
  for n, wait in enumerate(waits):
    assert wait >= 0.01 * 2**n * 0.75


def test_the_openai_key_is_not_sent_elsewhere(server, monkeypatch):
  monkeypatch.setenv('OPENAI_API_KEY', 'sk-theirs')
  endpoint_for(server).complete([GOOD])
  assert not any('sk-theirs' in head for head in server.heads[0].values())


def test_failures_in_a_row_stop_the_job():
  with serving() as server:
    pass
  endpoint = endpoint_for(
    server, attempts=2, max_failed_in_a_row=5, concurrency=1
  )
  with pytest.raises(UserError, match=r'5 calls in a row failed, the last wit'):
    endpoint.complete([GOOD._replace(samples=100)])
  assert endpoint.usage.failed == {'connection': 5}
  assert endpoint.usage.calls == 2 * 5


def test_an_answer_resets_the_failures_in_a_row(server):
  server.fault = lambda body, _: 500 if problem_of(body) == 'bad' else None
  endpoint = endpoint_for(
    server, concurrency=1, attempts=1, max_failed_in_a_row=2
  )
  answers = endpoint.complete([BAD, GOOD] * 4)
  assert [completion is None for [completion] in answers] == [True, False] * 4
  assert endpoint.usage.failed == {'status 500': 4}


def test_concurrency_is_bounded(server):
  three = threading.Barrier(3)

  def wait_for_two_others(body, before):
    three.wait(60)

  server.pause, server.fault = 0.1, wait_for_two_others
  endpoint_for(server, concurrency=3).complete([GOOD._replace(samples=12)])
  assert len(server.asked) == 12
  assert server.most == 3


def test_tokens_are_counted(server):
  counts = {'prompt_tokens': 1000, 'completion_tokens': 200}
  server.fault = lambda body, _: reply(
    'x', usage=counts if problem_of(body) == 'good' else None
  )
  endpoint = endpoint_for(server)
  endpoint.complete([GOOD._replace(samples=4), BAD])
  usage = endpoint.usage
  assert (usage.tokens, usage.prompt_tokens) == (800, 4000)
  assert usage.uncounted == 1
  assert json.loads(json.dumps(dataclasses.asdict(usage)))['calls'] == 5


def test_the_log_counts_only_paid_tokens(server, tmp_path):
  cache, logs = tmp_path / 'cache', tmp_path / 'usage'
  server.fault = lambda body, before: (
    500 if problem_of(body) == 'bad' and before < 4 else None
  )

  def run(name, *requests):
    endpoint = endpoint_for(server, cache, log=logs / name)
    endpoint.complete(requests)
    return endpoint.usage

  first = run('process-0.jsonl', GOOD._replace(samples=2), BAD)
  assert (first.calls, first.cached, first.tokens) == (5, 0, 10)
  second = run('process-0.jsonl', GOOD._replace(samples=2), BAD)
  assert (second.calls, second.cached, second.tokens) == (2, 2, 5)
  assert usage.read(logs) == Usage(
    calls=7,
    cached=2,
    tokens=15,
    prompt_tokens=21,
    retried={'status 500': 3},
    failed={'status 500': 1},
  )
  # A refusal that stops the job is counted as a call.
  server.fault = lambda body, _: 404
  with pytest.raises(UserError, match='status 404'):
    run('process-1.jsonl', GOOD._replace(key='other'))
  assert usage.read(logs).calls == 8


def test_equal_calls_of_one_batch_are_paid_for_once(server, tmp_path):
  """Two chains with the same text give a judge the same question."""
  server.pause = 0.05
  twice = Question('Right?', 'judge/1', 3)
  endpoint = endpoint_for(server, log=tmp_path / 'process-0.jsonl')
  answers = endpoint.ask([twice, Question('No?', 'judge/2', 1), twice])
  # Three samples are three draws; the repeated question gets the same three.
  assert len(server.asked) == 4
  assert answers[0] == answers[2]
  assert len({reply.text for reply in answers[0]}) == 3
  assert usage.read(tmp_path) == Usage(
    calls=4, cached=3, tokens=20, prompt_tokens=28
  )


def test_equal_calls_without_seeds_are_paid_for_once(server):
  """Without seeds, samples of one prompt have equal bodies but differ.

  Another key is another draw, too.
  """
  endpoint = endpoint_for(server, send_seed=False)
  several = GOOD._replace(samples=3)
  endpoint.complete([several, several, several._replace(key='other')])
  assert len(server.asked) == 6
  assert len({json.dumps(body) for body in server.asked}) == 1


def test_equal_calls_fail_together(server, tmp_path):
  server.fault = lambda body, _: 400 if problem_of(body) == 'bad' else None
  cache = tmp_path / 'cache'
  answers = endpoint_for(server, cache).complete([BAD, GOOD, BAD, GOOD])
  assert [completion is None for [completion] in answers] == [True, False] * 2
  assert len(server.asked) == 2
  # A failure is not stored: later the call is sent again, once.
  server.fault = lambda body, _: None
  again = endpoint_for(server, cache)
  answers = again.complete([BAD, GOOD, BAD, GOOD])
  assert all(completion.finished for [completion] in answers)
  assert len(server.asked) == 3
  assert (again.usage.calls, again.usage.cached) == (1, 3)

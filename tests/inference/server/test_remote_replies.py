"""Tests absurd replies: they are bounded and fail only their item."""

import gzip
import json
import math
import tracemalloc
import zlib

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.protocols import Question
from prm_jax.runtime.errors import UserError
from tests.shared.faulty_server import KeptAlive, reply
from tests.shared.parrot import BAD, GOOD, endpoint_for, problem_of

CHARSETS = ('utf-99', 'hex', 'rot13', 'zip', 'undefined', 'idna', 'no such')
MIB = 2**20


DATES = (
  'Wed, 21 Oct 99999999999 07:28:00 GMT',
  'Fri, 31 Dec 9999 23:59:59 -9999',
  'Mon, 01 Jan 0001 00:00:00 +2359',
  'Mon, 01 Jan 0001 00:00:00 -0000',
  'Wed, 21 Oct 2015 07:28:00 +99999999999999',
  '1 Jan 2030 99:99:99 GMT',
)


@pytest.mark.parametrize('text', ['1e400', 'inf', '9' * 4000, *DATES])
def test_an_absurd_retry_after_fails_its_item_alone(server, text):
  told = (503, {'Retry-After': text}, '{}')
  server.fault = lambda body, _: told if problem_of(body) == 'bad' else None
  endpoint = endpoint_for(server)
  [[bad], [good]] = endpoint.complete([BAD, GOOD])
  assert bad is None and good.finished
  assert endpoint.usage.failed == {'status 503': 1}


@pytest.mark.parametrize('charset', CHARSETS)
def test_an_unknown_charset_is_read_as_utf_8(server, charset):
  told = json.dumps(reply('4 \u00d7 2 = 8'), ensure_ascii=False).encode()
  head = {'Content-Type': f'application/json; charset={charset}'}
  server.fault = lambda body, _: (200, head, told)
  [[said]] = endpoint_for(server).ask([Question('?', 'q', 1)])
  assert said.text == '4 \u00d7 2 = 8'
  # Bytes that are not UTF-8 are replaced.
  server.fault = lambda body, _: (200, head, told.replace(b'\xc3\x97', b'\xc3'))
  [[said]] = endpoint_for(server).ask([Question('?', 'q', 1)])
  assert said.text == '4 \ufffd 2 = 8'


@pytest.mark.parametrize('charset', CHARSETS)
def test_a_refusal_in_an_unknown_charset_is_read(server, charset):
  head = {'Content-Type': f'text/html; charset={charset}'}
  server.fault = lambda body, _: (404, head, 'no \u00d7 here'.encode())
  with pytest.raises(UserError, match='no \u00d7 here; see to'):
    endpoint_for(server).complete([GOOD])


def too_large(server, fault, reason=f'a reply above {MIB:,} bytes'):
  """Asks for a reply that is too large and for one that is not.

  Returns:
    The most memory that this took, in MiB.
  """
  server.fault = lambda body, _: fault if problem_of(body) == 'bad' else None
  endpoint = endpoint_for(server, max_reply_bytes=MIB)
  tracemalloc.start()
  [[bad], [good]] = endpoint.complete([BAD, GOOD])
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert bad is None and good.finished
  assert endpoint.usage.failed == {reason: 1}
  # It was not asked for again: it would be as large, and is paid for.
  assert [problem_of(body) for body in server.asked].count('bad') == 1
  return most / MIB


@pytest.mark.parametrize('status', [200, 400, 404, 503])
def test_a_reply_that_never_ends_is_cut_off(server, status):
  """It has no length, and would send gigabytes before the timeout."""
  server.status = status
  assert too_large(server, 'flood') < 64
  # Of what the server would have gone on sending, little was read.
  assert server.sent < 64 * MIB


def test_a_reply_just_below_the_limit_is_read(server):
  told = reply('x' * 1000)
  size = len(json.dumps(told).encode())
  server.fault = lambda body, _: told
  [[fits]] = endpoint_for(server, max_reply_bytes=size).complete([GOOD])
  assert fits.finished
  with pytest.raises(UserError, match=f'a reply above {size - 1:,} bytes'):
    endpoint_for(server, max_reply_bytes=size - 1).complete([GOOD])


@pytest.mark.parametrize(
  ('encoding', 'compress'),
  [('gzip', gzip.compress), ('deflate', zlib.compress)],
)
def test_a_compressed_reply_is_limited_by_its_full_size(
  server, encoding, compress
):
  bomb = compress(b' ' * (256 * MIB), 9)
  # The compressed bytes alone are within the limit.
  assert len(bomb) < MIB
  head = {'Content-Encoding': encoding}
  assert too_large(server, (200, head, bomb)) < 128


@pytest.mark.parametrize('status', [200, 400])
def test_a_reply_compressed_twice_is_not_decompressed(server, status):
  bomb = gzip.compress(gzip.compress(b' ' * (256 * MIB), 9), 9)
  fault = (status, {'Content-Encoding': 'gzip, gzip'}, bomb)
  assert too_large(server, fault, 'a reply compressed twice') < 32


def test_a_compressed_reply_is_read(server):
  data = gzip.compress(json.dumps(reply('7')).encode())
  server.fault = lambda body, _: (200, {'Content-Encoding': 'gzip'}, data)
  [[said]] = endpoint_for(server).ask([Question('?', 'q', 1)])
  assert said.text == '7'


@pytest.mark.parametrize('count', [-5, 10**400, 2**60, 1.5, 'many'])
def test_an_absurd_count_of_tokens_is_ignored(server, count):
  counts = {'prompt_tokens': count, 'completion_tokens': count}
  server.fault = lambda body, _: reply('7', usage=counts)
  endpoint = endpoint_for(server)
  [[said]] = endpoint.ask([Question('?', 'q', 1)])
  assert said[1:] == (0, 0)
  assert endpoint.usage.uncounted == 1
  assert math.isfinite(endpoint.usage.tokens * 1e-6)


def test_a_second_reply_to_a_request_answers_no_other(server):
  """Both come in one piece, so that the second is read with the first."""
  server.RequestHandlerClass = KeptAlive
  server.fault = lambda body, _: 'twice'
  endpoint = endpoint_for(server, concurrency=1)
  questions = [Question(f'question {n}', f'{n}', 1) for n in range(4)]
  for question, [said] in zip(questions, endpoint.ask(questions), strict=True):
    assert repr(question.text) in said.text


@pytest.mark.parametrize('status', [301, 302, 307, 308])
def test_no_call_is_sent_to_another_address(server, status):
  """It would be a second request, to anyone, that is not counted."""
  head = {'Location': '/v1/chat/completions?again'}
  server.fault = lambda body, before: None if before else (status, head, '{}')
  endpoint = endpoint_for(server)
  with pytest.raises(UserError, match=f'status {status}: .*endpoint.base_url'):
    endpoint.complete([GOOD])
  assert endpoint.usage.calls == len(server.asked) == 1

"""Calls servers whose replies fail in random ways.

    random faults for every item -> Endpoint or RemotePrm -> what came back

Whatever fails: an answer is that of its own request; each request is counted,
and so are the tokens of every answer that was fetched; what failed is counted
by its reason, or ends the job with one line; the log on disk agrees; the cache
holds the answers that were given, and no others; and all of it ends in time.
"""

import contextlib
import json
import math
import pathlib
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import openai

from prm_jax.inference.protocols import Choice, Question, Request, Scoring
from prm_jax.inference.server import usage
from prm_jax.inference.server.config import EndpointConfig, PrmServerConfig
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.inference.server.step_scores import RemotePrm
from prm_jax.runtime.errors import UserError
from tests.campaigns.answer_forms import pick, whole
from tests.campaigns.campaign import Campaign, run
from tests.shared.faulty_server import (
  FAULTS,
  USAGE,
  FaultyServer,
  KeptAlive,
  count_replies,
  echo,
  reply,
  serving,
)

MOST_SECONDS = 120  # of a case, on a busy machine
SLOW = ('hang', 'drip')  # these last until the timeout
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
REFUSALS = (400, 413, 422, 451, 501)
ENDING = (301, 302, 307, 308, 401, 402, 403, 404)
MALFORMED = (
  *('', ' ', '{', 'null', '7', '[]', '"text"', '<html>', '[' * 9999, '{}{}'),
  *('{"choices": []}', '{"choices": 7}', '{"choices": [null]}', b'\xff\xfe'),
  *('{"choices": [{"message": {}}]}', '{"choices": [{"text": 7}]}'),
  *('{"data": []}', '{"data": [7], "usage": {"tokens": 1}}', 'data: {}\n\n'),
  '{"error": {"message": "overloaded", "code": {}}}',
)
HEADERS = (
  *({'Retry-After': text} for text in ('0', '-3', 'soon', '0.01', 'nan')),
  *({'Retry-After': text} for text in ('3600', '1e400')),
  *({'retry-after-ms': '1'}, {'Content-Type': 'text/html; charset=x'}),
  *({}, {}, {}, {}),
)
NUMBER = re.compile(r'item (\d+)\.')
Rng = np.random.Generator


def number_of(body: dict[str, Any]) -> int:
  """Returns the number of the item that a request is about; -1 for none."""
  found = NUMBER.search(json.dumps(body))
  return int(found[1]) if found else -1


def answer(body: dict[str, Any]) -> dict[str, Any]:
  """Returns the right answer to a request, which no other request has."""
  if 'chains' in body:
    scores = [
      {'index': n, 'scores': [scored(number_of(chain))] * len(chain['steps'])}
      for n, chain in enumerate(body['chains'])
    ]
    return {'data': scores, 'usage': {'tokens': 7}}
  found = reply(echo(body))
  if 'logprobs' in body:
    likely = [
      {'token': ' yes', 'logprob': -scored(number_of(body))},
      {'token': ' no', 'logprob': -5.0},
    ]
    found['choices'][0]['logprobs'] = {'content': [{'top_logprobs': likely}]}
  return found


def scored(number: int) -> float:
  """Returns the score of an item's steps."""
  return (number + 1) / 1000


def fault(rng: Rng, slow: bool, ending: bool) -> Any:
  """Returns what one attempt meets, as `FaultyServer.fault` does."""
  kind = rng.random()
  if kind < 0.35:
    quick = sorted(set(FAULTS) - set(SLOW))
    return pick(rng, SLOW if slow and kind < 0.08 else quick)
  if kind < 0.55:
    return 200, {}, pick(rng, MALFORMED)
  if kind < 0.6 and ending:
    return pick(rng, ENDING), {'Location': '/v1/elsewhere'}, '{"error": "no"}'
  status = pick(rng, PASSING if kind < 0.9 else REFUSALS)
  return status, pick(rng, HEADERS), pick(rng, ('', '{}', '{"error": 7}'))


def set_faults(rng: Rng, server: FaultyServer, items: int, slow: bool) -> None:
  """Gives every item up to three faults, after which it is answered."""
  ending = rng.random() < 0.1
  plans = {
    number: [fault(rng, slow, ending) for _ in range(whole(rng, 0, 3))]
    for number in range(items)
    if rng.random() < 0.7
  }
  server.answer = answer
  server.fault = lambda body, before: dict(
    enumerate(plans.get(number_of(body), ()))
  ).get(before)
  if rng.random() < 0.7:
    server.RequestHandlerClass = KeptAlive


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
  """Raises TimeoutError in a block that takes longer."""

  def late(*_: object) -> None:
    raise TimeoutError(f'no end after {seconds} s')

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def check_usage(
  found: usage.Usage, server: FaultyServer, slow: bool, ended: bool
) -> None:
  """Checks that the requests that a server got were counted."""
  # The server may read a request after its client has given it up.
  until = time.monotonic() + 20
  while len(server.asked) < found.calls and time.monotonic() < until:
    if slow or ended:
      break
    time.sleep(0.01)
  asked = len(server.asked)
  assert asked <= found.calls, (asked, found)
  assert slow or ended or asked == found.calls, (asked, found)
  assert sum(found.retried.values()) <= found.calls


def endpoint_case(rng: Rng, server: FaultyServer, folder: pathlib.Path) -> int:
  """Has an endpoint complete, answer or choose; checks what came back."""
  items, slow = whole(rng, 4, 16), rng.random() < 0.15
  set_faults(rng, server, items, slow)
  config = EndpointConfig(
    base_url=server.url,
    model='parrot',
    continues=True,
    concurrency=whole(rng, 1, 8),
    attempts=whole(rng, 1, 4),
    timeout=1.0 if slow else 60.0,
    max_reply_bytes=2**18,
    max_failed_in_a_row=1000,
  )
  how = pick(rng, (complete, ask, choose))
  given: list[str | None] | None = None
  endpoint = Endpoint(config, folder / 'cache', folder / 'usage' / '0.jsonl')
  with contextlib.suppress(UserError):
    given = how(endpoint, items)
  found = endpoint.usage
  check_usage(found, server, slow, given is None)
  assert usage.read(folder / 'usage') == found
  # An answer is paid for and stored, or neither.
  kept = count_replies(folder / 'cache')
  short = found.tokens // 5 - kept
  assert found.tokens == 5 * (kept + short) == 5 * found.prompt_tokens // 7
  assert 0 <= short <= 1, found
  if given is None:
    return found.calls
  answered = [n for n, text in enumerate(given) if text is not None]
  # The short question, which shows whose fault refusals are, is stored, too.
  extra = kept - len(answered)
  assert 0 <= extra <= 1, (kept, answered)
  assert sum(found.failed.values()) == items - len(answered), found
  again = Endpoint(config, folder / 'cache')
  server.fault = lambda body, before: 500
  repeated: list[str | None] | None = None
  with contextlib.suppress(UserError):
    repeated = how(again, items)
  assert again.usage.cached == len(answered), again.usage
  assert again.usage.corrupt == 0
  assert repeated is None or repeated == given
  return found.calls


def complete(endpoint: Endpoint, items: int) -> list[str | None]:
  """Completes items; raises AssertionError for another item's text."""
  requests = [Request(f'item {n}.', (), f'key {n}', 1) for n in range(items)]
  found = []
  for n, [one] in enumerate(endpoint.complete(requests)):
    assert one is None or one.steps[0] == f"I read 'item {n}.'", (n, one)
    found.append(one and repr(one.steps))
  return found


def ask(endpoint: Endpoint, items: int) -> list[str | None]:
  """Asks questions; raises AssertionError for another item's reply."""
  questions = [Question(f'item {n}.', f'key {n}', 1) for n in range(items)]
  found = []
  for n, [one] in enumerate(endpoint.ask(questions)):
    assert one is None or f"'item {n}.'" in one.text, (n, one)
    assert one is None or one[1:] == (5, 7)
    found.append(one and one.text)
  return found


def choose(endpoint: Endpoint, items: int) -> list[str | None]:
  """Asks for choices; raises AssertionError for another item's."""
  choices = [
    Choice(f'item {n}.', (), 'Is it?', (' yes', ' no')) for n in range(items)
  ]
  found: list[str | None] = []
  for n, one in enumerate(endpoint.choose(choices)):
    expected = (-scored(n), -5.0)
    assert one.logprobs in ((), expected), (n, one)
    assert bool(one.logprobs) == (one.tokens == sum(USAGE.values()) // 2)
    found.append(repr(one) if one.logprobs else None)
  return found


def prm_case(rng: Rng, server: FaultyServer, folder: pathlib.Path) -> int:
  """Has a PRM at a server score chains; checks what came back."""
  items, slow = whole(rng, 4, 16), rng.random() < 0.15
  set_faults(rng, server, items, slow)
  server.models = {'data': [{'id': 'prm', 'root': 'prm'}]}
  config = PrmServerConfig(
    base_url=server.url,
    chains=whole(rng, 1, 4),
    concurrency=whole(rng, 1, 8),
    attempts=whole(rng, 1, 4),
    timeout=1.0 if slow else 60.0,
    max_reply_bytes=2**18,
  )
  prm = RemotePrm(config, folder / 'usage' / '0.jsonl')
  chains = [
    Scoring(f'problem {n % 3}', (f'item {n}.',) * whole(rng, 1, 3))
    for n in range(items)
  ]
  ended = False
  try:
    for n, [one] in enumerate(prm.score(chains)):
      right = (scored(n),) * len(chains[n].steps)
      assert one.scores in ((), right) or all(map(math.isnan, one.scores)), n
  except UserError as error:
    ended = True
    assert '\n' not in str(error)
  check_usage(prm.usage, server, slow, ended)
  assert usage.read(folder / 'usage') == prm.usage
  # What ends a job is counted as a failure, with its reason.
  assert not ended or prm.usage.failed, prm.usage
  assert prm.usage.prompt_tokens % 7 == 0
  return prm.usage.calls


KINDS: tuple[Callable[[Rng, FaultyServer, pathlib.Path], int], ...] = (
  *(endpoint_case, endpoint_case, prm_case),
)


def case(rng: np.random.Generator) -> int:
  """Runs a job against a server of its own; returns the number of requests."""
  waits = mock.patch.object(openai._base_client, 'INITIAL_RETRY_DELAY', 0.005)
  with (
    tempfile.TemporaryDirectory(prefix='prm_jax_calls_') as folder,
    within(MOST_SECONDS),
    serving() as server,
    waits,
  ):
    return pick(rng, KINDS)(rng, server, pathlib.Path(folder))


CAMPAIGN = Campaign(
  'faulty_calls', 'requests to servers that fail', 10_000, case
)
if __name__ == '__main__':
  run(CAMPAIGN)

"""Scores steps with a PRM at a server: ours, or vLLM's.

    Scoring requests -> calls of some chains of a problem, several at a time
      -> scores of steps -> ScoredSteps

The `openai` client tries failed calls again (see `attempts.py`). A chain that
the server refuses has no scores, and no other is affected; a server that is
away, or refuses all, ends the job, which resumes.
"""

import asyncio
import collections
import contextlib
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import openai

from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.server.attempts import (
  OUTCOMES,
  Attempts,
  Failure,
  read_key,
  run,
  without_key,
)
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.inference.server.replies import (
  believed_count,
  fault_of,
  names_a_chain,
  read_json,
)
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.runtime.errors import UserError

# Names the problem of a call: a balancer that hashes it sends the chains of a
# problem to the same replica, which has read their beginnings.
PROBLEM_HEADER = 'X-Problem'
NAN = 422  # our server's status for a chain whose scores are not finite
# After so many refusals in a row a chain that was scored before shows whether
# all are refused; without such a chain a short one does.
REFUSED = 8
ROUNDING = 1e-2  # of two probabilities in bfloat16, whose sum is 1
SHORT = Scoring('What is 1 + 1?', ('1 + 1 = 2',))


class RemotePrm:
  """Is a `protocols.StepScorer` at a server.

  Args:
    log: file to which usage is added; None counts it in this process only.

  Attributes:
    name: identifies the PRM by what the server calls it.

  Raises:
    UserError: the key is missing, or the config names no PRM and the server
      does not say which it has.
  """

  counts_flops = False

  def __init__(
    self, config: PrmServerConfig, log: pathlib.Path | None = None
  ) -> None:
    self._config, self._log = config, UsageLog(log)
    self._key = read_key(config.api_key_variable)
    asked = f'{config.api} {config.system} {config.separator}'
    digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
    self._model, known_as = config.model, config.model
    if not self._model:
      self._model, known_as = run(self._first_model())
    self.name = f'{known_as} at a server {digest}'
    self._refused = 0  # in a row
    self._answered: Scoring | None = None  # a request that was answered

  @property
  def usage(self) -> Usage:
    """Returns calls, tokens and failures of this process so far."""
    return self._log.total

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`.

    Raises:
      UserError: the server cannot be reached, or refuses all requests.
    """
    if not requests:
      return []
    return run(self._score_all(requests))

  async def _score_all(
    self, requests: Sequence[Scoring]
  ) -> list[list[ScoredSteps]]:
    config = self._config
    scored: dict[int, ScoredSteps] = {}
    # All workers take from the same iterator.
    left = iter(parts := self._parts(requests))

    async def work(client: openai.AsyncOpenAI) -> None:
      for part in left:
        answer = await self._score(client, [requests[n] for n in part])
        scored.update(zip(part, answer, strict=True))

    try:
      async with self._client() as client:
        async with asyncio.TaskGroup() as group:
          for _ in range(min(config.concurrency, len(parts))):
            group.create_task(work(client))
        if self._refused and self._answered is None:
          await self._score_short(client)
    except ExceptionGroup as errors:
      raise errors.exceptions[0] from None
    return [[scored[number]] for number in range(len(requests))]

  def _client(self) -> openai.AsyncOpenAI:
    config = self._config
    return openai.AsyncOpenAI(
      base_url=config.base_url,
      # Without a key the client would send OPENAI_API_KEY to any server.
      api_key=self._key or 'none',
      timeout=config.timeout,
      max_retries=config.attempts - 1,
      http_client=Attempts(config.timeout, config.max_reply_bytes, read_json),
    )

  async def _first_model(self) -> tuple[str, str]:
    """Asks the server for its first model.

    Returns:
      What to ask for it by, and a name that tells its weights from others.
    """
    OUTCOMES.set([])
    async with self._client() as client:
      try:
        with self._faults_told():
          reply = read_json(await client.get('/models', cast_to=str))
      except openai.APIStatusError as error:
        fault = fault_of(error.status_code, error.response.text)
        raise self._ended(error, fault) from error
    match reply:
      case {'data': [{'id': str(model), **about}, *_]} if model:
        # Ours says of which weights the PRM is, and vLLM where it has it from.
        more = about.get('fingerprint') or about.get('root') or model
        return model, model if more == model else f'{model} ({more})'
    raise UserError(
      f'{self._config.base_url}: /models does not say which PRM it serves: '
      f'{without_key(str(reply), self._key)[:200]!r}; set endpoint.model'
    )

  @contextlib.contextmanager
  def _faults_told(self) -> Iterator[None]:
    """Turns the failures of a whole server into a UserError."""
    try:
      yield
    except Failure as error:
      raise UserError(
        f'{self._config.base_url}: {error.reason}; see to endpoint.base_url'
      ) from error
    except openai.APIConnectionError as error:  # or a timeout
      raise UserError(
        f'{self._config.base_url}: {self._config.attempts} attempts failed, '
        f'the last with: {OUTCOMES.get()[-1]}; see to the server, then run '
        'the same command again'
      ) from error

  def _parts(self, requests: Sequence[Scoring]) -> list[list[int]]:
    """Returns for each call the indices of its requests."""
    size = self._config.chains if self._config.api == 'steps' else 1
    of_problem: dict[str, list[int]] = collections.defaultdict(list)
    for number, request in enumerate(requests):
      of_problem[request.problem].append(number)
    return [
      own[at : at + size]
      for own in of_problem.values()
      for at in range(0, len(own), size)
    ]

  async def _score(
    self, client: openai.AsyncOpenAI, requests: Sequence[Scoring]
  ) -> list[ScoredSteps]:
    """Scores some chains with one call, and each alone if that is refused."""
    if self._config.api == 'pooling' and self._has_separator(requests[0]):
      return [ScoredSteps((), 0)]
    try:
      with self._faults_told():
        found = await self._call(client, requests)
    except UnicodeEncodeError as error:
      # Half of a surrogate pair, which JSON cannot hold; a header is our fault.
      if error.encoding != 'utf-8':
        raise
      if len(requests) > 1:
        return await self._one_by_one(client, requests)
      return [ScoredSteps((), 0)]
    except openai.APIStatusError as error:
      return await self._refusal(client, requests, error)
    self._answered, self._refused = requests[0], 0
    return found

  def _has_separator(self, request: Scoring) -> bool:
    """Says whether the server would find other steps in a chain's text."""
    separator = self._config.separator
    return any(separator in text for text in (request.problem, *request.steps))

  async def _one_by_one(
    self, client: openai.AsyncOpenAI, requests: Sequence[Scoring]
  ) -> list[ScoredSteps]:
    return [
      each for one in requests for each in await self._score(client, [one])
    ]

  async def _refusal(
    self,
    client: openai.AsyncOpenAI,
    requests: Sequence[Scoring],
    error: openai.APIStatusError,
  ) -> list[ScoredSteps]:
    """Returns what a refused call means for its chains.

    Raises:
      UserError: it concerns all calls.
    """
    fault = fault_of(error.status_code, error.response.text)
    if fault != 'the call':
      raise self._ended(error, fault) from error
    if len(requests) > 1:
      return await self._one_by_one(client, requests)
    # Our server names the part of the call that is at fault.
    self._refused += not names_a_chain(error.response.text)
    if self._refused == REFUSED:
      await self._score_short(client)
    scores: tuple[float, ...] = ()
    if error.status_code == NAN and self._config.api == 'steps':
      scores = (float('nan'),) * len(requests[0].steps)
    return [ScoredSteps(scores, 0)]

  async def _score_short(self, client: openai.AsyncOpenAI) -> None:
    """Raises UserError if the server refuses a chain that it should score."""
    self._refused = 0
    try:
      with self._faults_told():
        await self._call(client, [self._answered or SHORT])
    except openai.APIStatusError as error:
      fault = fault_of(error.status_code, error.response.text)
      if fault == 'the call' and names_a_chain(error.response.text):
        return  # the PRM has no words for it, which says nothing of others
      raise self._ended(error, fault) from error

  def _ended(self, error: openai.APIStatusError, fault: str) -> UserError:
    said = without_key(error.response.text, self._key)[:300]
    cure = {
      'the moment': 'the server, then run the same command again',
      'the key': 'the key that endpoint.api_key_variable names',
    }.get(fault, 'endpoint.base_url, endpoint.api and endpoint.model')
    return UserError(
      f'{self._config.base_url}: status {error.status_code}: {said}; see to '
      f'{cure}'
    )

  async def _call(
    self, client: openai.AsyncOpenAI, requests: Sequence[Scoring]
  ) -> list[ScoredSteps]:
    """Sends one call, and counts it."""
    outcomes: list[str] = []
    OUTCOMES.set(outcomes)
    usage = Usage()
    try:
      if self._config.api == 'steps':
        found = await self._steps(client, requests)
      else:
        found = [await self._pooling(client, requests[0])]
      usage.prompt_tokens = sum(each.tokens for each in found)
      return found
    except Failure as failure:
      usage.failed[failure.reason] = 1
      raise
    except openai.OpenAIError:
      usage.failed[outcomes[-1] if outcomes else 'connection'] = 1
      raise
    except UserError:
      usage.failed['malformed scores'], usage.uncounted = 1, 1
      raise
    finally:
      usage.calls = len(outcomes)
      usage.retried = dict(collections.Counter(outcomes[:-1]))
      self._log.add(usage)

  async def _post(
    self,
    client: openai.AsyncOpenAI,
    path: str,
    problem: str,
    body: dict[str, Any],
  ) -> Any:
    body = {'model': self._model} | body
    digest = hashlib.sha256(problem.encode('utf-8', 'replace')).hexdigest()
    text = await client.post(
      path,
      body=body,
      cast_to=str,
      options={'headers': {PROBLEM_HEADER: digest[:16]}},
    )
    return read_json(text)

  async def _steps(
    self, client: openai.AsyncOpenAI, requests: Sequence[Scoring]
  ) -> list[ScoredSteps]:
    chains = [
      {'problem': each.problem, 'steps': list(each.steps)} for each in requests
    ]
    reply = await self._post(
      client, '/steps', requests[0].problem, {'chains': chains}
    )
    match reply:
      case {'data': list(data), 'usage': {'tokens': int(read)}} if len(
        data
      ) == len(requests) and all(
        isinstance(each, dict) and each.get('index', n) == n
        for n, each in enumerate(data)
      ):
        pass
      case _:
        raise self._malformed(reply)
    # The server counts the tokens of a call, not of each chain.
    tokens = [believed_count(read), *[0] * (len(requests) - 1)]
    return [
      ScoredSteps(self._numbers(each.get('scores'), request), count)
      for each, request, count in zip(data, requests, tokens, strict=True)
    ]

  async def _pooling(
    self, client: openai.AsyncOpenAI, request: Scoring
  ) -> ScoredSteps:
    config = self._config
    said = ''.join(step + config.separator for step in request.steps)
    turns = {
      'system': config.system,
      'user': request.problem,
      'assistant': said,
    }
    messages = [{'role': k, 'content': v} for k, v in turns.items() if v]
    root = config.base_url.rstrip('/').removesuffix('/v1')
    reply = await self._post(
      client, f'{root}/pooling', request.problem, {'messages': messages}
    )
    match reply:
      case {
        'data': [{'data': list(rows)}],
        'usage': {'prompt_tokens': int(tokens)},
      }:
        pass
      case _:
        raise self._malformed(reply)
    scores = [self._of_right(row) for row in rows]
    return ScoredSteps(self._numbers(scores, request), believed_count(tokens))

  def _of_right(self, row: Any) -> Any:
    """Returns the second of two probabilities, or a number as it is.

    A server that does not apply softmax sends logits, which may look like
    probabilities one by one.
    """
    match row:
      case [int() | float() as wrong, int() | float() as right] if (
        abs(wrong + right - 1) < ROUNDING
      ):
        return right
      case list():
        raise self._malformed(row)
    return row

  def _numbers(self, scores: Any, request: Scoring) -> tuple[float, ...]:
    """Returns the scores; raises UserError unless each step has one."""
    right = isinstance(scores, list) and len(scores) == len(request.steps)
    if not right or not all(
      type(score) in (int, float) and 0 <= score <= 1 for score in scores
    ):
      raise self._malformed(scores)
    return tuple(map(float, scores))

  def _malformed(self, reply: Any) -> UserError:
    return UserError(
      f'{self._config.base_url}: expected a probability for each step, and got '
      f'{without_key(str(reply), self._key)[:200]!r}; see to endpoint.api, and '
      'to endpoint.separator'
    )

"""Scores steps with a PRM at a server: ours, or vLLM's.

    Scoring requests -> calls of some chains of a problem, several at a time
      -> scores of steps -> ScoredSteps

The `openai` client tries failed calls again. A chain that the server refuses
has no scores, and no other is affected; a server that is away ends the job,
which resumes.
"""

import collections
import concurrent.futures
import contextvars
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import httpx2  # openai is built on it
import openai

from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.inference.server.replies import fault_of
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.runtime.errors import UserError

# Names the problem of a call: a balancer that hashes it sends the chains of a
# problem to the same replica, which has read their beginnings.
PROBLEM_HEADER = 'X-Problem'
NAN = 422  # our server's status for a chain whose scores are not finite
# Why each attempt of the running thread's call failed, '' if it succeeded.
_OUTCOMES: contextvars.ContextVar[list[str]] = contextvars.ContextVar('prm')


class _Attempts(openai.DefaultHttpxClient):
  """Is the HTTP client of an `openai` client, and records its attempts."""

  def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
    outcomes = _OUTCOMES.get()
    outcomes.append('connection')  # until more is known
    try:
      response = super().send(request, **options)
    except httpx2.TimeoutException:
      outcomes[-1] = 'timeout'
      raise
    status = response.status_code
    outcomes[-1] = '' if response.is_success else f'status {status}'
    return response


class RemotePrm:
  """Is a `protocols.StepScorer` at a server.

  Args:
    log: file to which usage is added; None counts it in this process only.

  Attributes:
    name: identifies the PRM by what the server calls it.

  Raises:
    UserError: the key is missing.
  """

  counts_flops = False

  def __init__(
    self, config: PrmServerConfig, log: pathlib.Path | None = None
  ) -> None:
    self._config, self._log = config, UsageLog(log)
    key = ''
    if variable := config.api_key_variable:
      key = os.environ.get(variable, '').strip()
      if not key:
        raise UserError(
          f'endpoint.api_key_variable={variable!r}: it is not set in the '
          f"environment; export {variable}=KEY, or set the config's to ''"
        )
    asked = f'{config.api} {config.system} {config.separator}'
    digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
    self.name = f'{config.model or "prm"} at a server {digest}'
    self._client = openai.OpenAI(
      base_url=config.base_url,
      api_key=key or 'none',
      timeout=config.timeout,
      max_retries=config.attempts - 1,
      http_client=_Attempts(),
    )

  @property
  def usage(self) -> Usage:
    """Returns calls, tokens and failures of this process so far."""
    return self._log.total

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`.

    Raises:
      UserError: the server cannot be reached, or refuses all requests.
    """
    size = self._config.chains if self._config.api == 'steps' else 1
    of_problem: dict[str, list[int]] = collections.defaultdict(list)
    for number, request in enumerate(requests):
      of_problem[request.problem].append(number)
    parts = [
      own[at : at + size]
      for own in of_problem.values()
      for at in range(0, len(own), size)
    ]
    with concurrent.futures.ThreadPoolExecutor(
      self._config.concurrency
    ) as threads:
      found = threads.map(
        lambda part: self._score([requests[n] for n in part]), parts
      )
      scored = {
        number: one
        for part, answer in zip(parts, found, strict=True)
        for number, one in zip(part, answer, strict=True)
      }
    return [[scored[number]] for number in range(len(requests))]

  def _score(self, requests: Sequence[Scoring]) -> list[ScoredSteps]:
    """Scores some chains with one call, and each alone if that is refused."""
    try:
      return self._call(requests)
    except openai.APIStatusError as error:
      fault = fault_of(error.status_code, error.response.text)
      if fault != 'the call':
        raise self._ended(error, fault) from error
      if len(requests) > 1:
        return [each for one in requests for each in self._score([one])]
      if error.status_code == NAN:
        return [ScoredSteps((float('nan'),) * len(requests[0].steps), 0)]
      return [ScoredSteps((), 0)]
    except openai.APIConnectionError as error:  # or a timeout
      raise UserError(
        f'{self._config.base_url}: {self._config.attempts} attempts failed, '
        f'the last with: {_OUTCOMES.get()[-1]}; see to the server, then run '
        'the same command again'
      ) from error

  def _ended(self, error: openai.APIStatusError, fault: str) -> UserError:
    said = ' '.join(error.response.text.split())[:300]
    cure = {
      'the moment': 'the server, then run the same command again',
      'the key': 'the key that endpoint.api_key_variable names',
    }.get(fault, 'endpoint.base_url, endpoint.api and endpoint.model')
    return UserError(
      f'{self._config.base_url}: status {error.status_code}: {said}; see to '
      f'{cure}'
    )

  def _call(self, requests: Sequence[Scoring]) -> list[ScoredSteps]:
    """Sends one call, and counts it."""
    outcomes: list[str] = []
    _OUTCOMES.set(outcomes)
    usage = Usage()
    try:
      if self._config.api == 'steps':
        found = self._steps(requests)
      else:
        found = [self._pooling(requests[0])]
      usage.prompt_tokens = sum(each.tokens for each in found)
      return found
    except openai.OpenAIError:
      usage.failed[outcomes[-1] if outcomes else 'connection'] = 1
      raise
    finally:
      usage.calls = len(outcomes)
      usage.retried = dict(collections.Counter(outcomes[:-1]))
      self._log.add(usage)

  def _post(self, path: str, problem: str, body: dict[str, Any]) -> Any:
    if self._config.model:
      body = {'model': self._config.model} | body
    digest = hashlib.sha256(problem.encode('utf-8', 'replace')).hexdigest()
    return self._client.post(
      path,
      body=body,
      cast_to=object,
      options={'headers': {PROBLEM_HEADER: digest[:16]}},
    )

  def _steps(self, requests: Sequence[Scoring]) -> list[ScoredSteps]:
    chains = [
      {'problem': each.problem, 'steps': list(each.steps)} for each in requests
    ]
    match reply := self._post(
      '/steps', requests[0].problem, {'chains': chains}
    ):
      case {'data': list(data), 'usage': {'tokens': int(read)}} if len(
        data
      ) == len(requests):
        pass
      case _:
        raise self._malformed(reply)
    # What is read for a call is not told for each chain.
    tokens = [read, *[0] * (len(requests) - 1)]
    return [
      ScoredSteps(self._numbers(each.get('scores'), request), count)
      for each, request, count in zip(data, requests, tokens, strict=True)
    ]

  def _pooling(self, request: Scoring) -> ScoredSteps:
    config = self._config
    said = ''.join(step + config.separator for step in request.steps)
    turns = {
      'system': config.system,
      'user': request.problem,
      'assistant': said,
    }
    messages = [{'role': k, 'content': v} for k, v in turns.items() if v]
    root = config.base_url.rstrip('/').removesuffix('/v1')
    reply = self._post(
      f'{root}/pooling', request.problem, {'messages': messages}
    )
    match reply:
      case {
        'data': [{'data': list(rows)}],
        'usage': {'prompt_tokens': int(tokens)},
      }:
        pass
      case _:
        raise self._malformed(reply)
    scores = [row[-1] if isinstance(row, list) and row else row for row in rows]
    return ScoredSteps(self._numbers(scores, request), tokens)

  def _numbers(self, scores: Any, request: Scoring) -> tuple[float, ...]:
    """Returns the scores; raises UserError unless each step has one."""
    right = isinstance(scores, list) and len(scores) == len(request.steps)
    if not right or not all(
      isinstance(score, int | float) and 0 <= score <= 1 for score in scores
    ):
      raise self._malformed(scores)
    return tuple(map(float, scores))

  def _malformed(self, reply: Any) -> UserError:
    return UserError(
      f'{self._config.base_url}: expected a probability for each step, and got '
      f'{str(reply)[:200]!r}; see to endpoint.api, and to endpoint.separator'
    )

"""Sends calls to an OpenAI-compatible server: bounded, retried, counted.

    Calls -> the cache on disk, else the server -> Answers, None where it failed

`endpoint.py` writes the calls and makes steps and replies of the answers.
"""

import asyncio
import concurrent.futures
import dataclasses
import email.utils
import math
import os
import pathlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.errors import UserError
from prm_jax.replies import Answer, BrokenReply, Call, ReplyCache, read_answer
from prm_jax.usage import Usage, UsageLog

# Statuses below 500 that another attempt may change.
_PASSING = (408, 409, 425, 429)
# With these words a server refuses one request and not all of them.
_ITS_OWN_FAULT = ('context', 'content_filter', 'content_policy')


@dataclasses.dataclass(frozen=True)
class ServerConfig:
  """Where a server is, and how much may be asked of it.

  Attributes:
    base_url: with its version, such as http://localhost:8000/v1.
    model: the server's name for it.
    api_key_variable: the environment variable that holds the key; '': none.
    concurrency: calls under way at once.
    timeout: seconds for one attempt, from its first byte to its last.
    attempts: at most for one call.
    backoff: seconds to wait after the first that failed, doubled after each,
      times a random number from 1/2 to 1.
    max_wait: seconds; longer waits are shortened to it, and where the server
      itself asks for a longer one (Retry-After) the call is given up.
    max_failed_in_a_row: calls given up, one after another, that stop the job.
  """

  base_url: str = ''
  model: str = ''
  api_key_variable: str = ''
  concurrency: int = 16
  timeout: float = 300.0
  attempts: int = 6
  backoff: float = 1.0
  max_wait: float = 60.0
  max_failed_in_a_row: int = 32

  def __post_init__(self) -> None:
    if not self.base_url.startswith(('http://', 'https://')):
      raise UserError(
        f'endpoint.base_url={self.base_url!r}: expected http:// or https://, '
        'such as http://localhost:8000/v1'
      )
    if not self.model:
      raise UserError("endpoint.model='': expected the server's name for it")
    for name in ('concurrency', 'attempts', 'max_failed_in_a_row'):
      if (value := getattr(self, name)) < 1:
        raise UserError(f'endpoint.{name}={value}: expected >= 1')
    for name in ('backoff', 'max_wait'):
      if not 0 <= (value := getattr(self, name)) < math.inf:
        raise UserError(f'endpoint.{name}={value}: expected >= 0')
    if not 0 < self.timeout < math.inf:
      raise UserError(f'endpoint.timeout={self.timeout}: expected seconds > 0')


class _Failure(Exception):
  """An attempt without an answer.

  Attributes:
    wait: seconds that the server asks for.
    final: whether this call can never succeed.
  """

  def __init__(
    self, reason: str, wait: float = 0.0, final: bool = False
  ) -> None:
    super().__init__(reason)
    self.reason, self.wait, self.final = reason, wait, final


class Server:
  """A server, its answers on disk, and what was used of it."""

  def __init__(
    self,
    config: ServerConfig,
    cache: pathlib.Path | None,
    log: pathlib.Path | None,
  ) -> None:
    """Sends nothing yet.

    Args:
      cache: folder of answers; None: none are kept.
      log: file that usage is added to; None: it is counted here only.

    Raises:
      UserError: no openai package, no key, or a folder that cannot be made.
    """
    try:
      import openai  # noqa: PLC0415
    except ModuleNotFoundError as error:
      raise UserError(
        f'endpoint.base_url={config.base_url!r}: servers are asked with the '
        'package openai: pip install openai'
      ) from error
    self._openai = openai
    self._config = config
    self._key = ''
    if variable := config.api_key_variable:
      self._key = os.environ.get(variable, '').strip()
      if not self._key:
        raise UserError(
          f'endpoint.api_key_variable={variable!r}: it is not set in the '
          f"environment; export {variable}=KEY, or set the config's to ''"
        )
    self._cache = None if cache is None else ReplyCache(cache)
    self._log = UsageLog(log)
    self._failed_in_a_row = 0

  @property
  def usage(self) -> Usage:
    """Of this process."""
    return self._log.total

  def answers(self, calls: Sequence[Call]) -> list[Answer | None]:
    """The answers in order; None where every attempt failed.

    Raises:
      UserError: the server refuses what it would always refuse, or one call
        after another fails.
    """
    corrupt = self._cache.corrupt if self._cache else 0
    answers = [self._cache and self._cache.read(call) for call in calls]
    missing = [i for i, answer in enumerate(answers) if answer is None]
    if self._cache:
      corrupt = self._cache.corrupt - corrupt
      self._log.add(Usage(cached=len(calls) - len(missing), corrupt=corrupt))
    fetched = self._fetch([calls[i] for i in missing]) if missing else []
    for i, answer in zip(missing, fetched, strict=True):
      answers[i] = answer
    return answers

  def _fetch(self, calls: Sequence[Call]) -> list[Answer | None]:
    try:
      asyncio.get_running_loop()
    except RuntimeError:
      return asyncio.run(self._send_all(calls))
    # A notebook's own loop is running, and there can be one to a thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      return thread.submit(asyncio.run, self._send_all(calls)).result()

  async def _send_all(self, calls: Sequence[Call]) -> list[Answer | None]:
    config = self._config
    answers: list[Answer | None] = [None] * len(calls)
    # Shared, so that as many calls are under way as there are workers.
    left = iter(enumerate(calls))

    async def work(client: Any) -> None:
      for i, call in left:
        answers[i] = await self._answer(client, call)

    client = self._openai.AsyncOpenAI(
      base_url=config.base_url,
      # Without one the client would send OPENAI_API_KEY to any server.
      api_key=self._key or 'none',
      timeout=config.timeout,
      # Its own know neither broken replies nor our counts.
      max_retries=0,
    )
    try:
      async with client, asyncio.TaskGroup() as group:
        for _ in range(min(config.concurrency, len(calls))):
          group.create_task(work(client))
    except ExceptionGroup as errors:
      raise errors.exceptions[0] from None
    return answers

  async def _answer(self, client: Any, call: Call) -> Answer | None:
    usage = Usage()
    try:
      answer = await self._answer_counted(client, call, usage)
    finally:
      # Before it is kept: what is on disk was counted.
      self._log.add(usage)
    if answer and self._cache:
      self._cache.write(call, answer)
    return answer

  async def _answer_counted(
    self, client: Any, call: Call, usage: Usage
  ) -> Answer | None:
    config = self._config
    wait = config.backoff
    for attempt in range(1, config.attempts + 1):
      usage.calls += 1
      try:
        answer = await self._attempt(client, call)
        break
      except _Failure as failure:
        too_long = failure.wait > config.max_wait
        if failure.final or too_long or attempt == config.attempts:
          usage.failed[failure.reason] = 1
          self._give_up(failure)
          return None
        again = usage.retried.get(failure.reason, 0) + 1
        usage.retried[failure.reason] = again
        pause = min(wait, config.max_wait) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(pause, failure.wait))
        wait *= 2
    self._failed_in_a_row = 0
    usage.tokens, usage.prompt_tokens = answer.tokens, answer.prompt_tokens
    usage.uncounted = int(not answer.prompt_tokens)
    return answer

  def _give_up(self, failure: _Failure) -> None:
    # A server that says no to one call is there for the others.
    self._failed_in_a_row = 0 if failure.final else self._failed_in_a_row + 1
    if self._failed_in_a_row >= self._config.max_failed_in_a_row:
      raise UserError(
        f'{self._config.base_url}: {self._failed_in_a_row} calls in a row '
        f'failed, the last with: {failure.reason}; see to the server, then '
        'run the same command again'
      )

  async def _attempt(self, client: Any, call: Call) -> Answer:
    openai, rest = self._openai, dict(call.body)
    if call.api == 'chat':
      create = client.chat.completions.with_raw_response.create
      asked = {name: rest.pop(name) for name in ('model', 'messages')}
    else:
      create = client.completions.with_raw_response.create
      asked = {name: rest.pop(name) for name in ('model', 'prompt')}
    try:
      # The client's own timeout begins anew with every piece of a reply.
      async with asyncio.timeout(self._config.timeout):
        reply = await create(**asked, extra_body=rest)
      return read_answer(reply.http_response.text)
    except (TimeoutError, openai.APITimeoutError) as error:
      raise _Failure('timeout') from error
    except openai.APIConnectionError as error:
      raise _Failure('connection') from error
    except BrokenReply as error:
      raise _Failure(str(error)) from error
    except openai.APIStatusError as error:
      raise self._refusal(error) from error

  def _refusal(self, error: Any) -> Exception:
    """What a status other than 200 means: for this call, or for the job."""
    config, status = self._config, error.status_code
    # Not every server has OpenAI's form, in which the client finds a message.
    said = error.response.text
    if isinstance(error.body, Mapping) and 'message' in error.body:
      said = str(error.body['message'])
    said = ' '.join(said.split())
    if self._key:
      # Some servers quote it.
      said = said.replace(self._key, '***')
    quota = status == 429 and error.code == 'insufficient_quota'
    if (status in _PASSING or status >= 500) and not quota:
      return _Failure(f'status {status}', retry_after(error.response.headers))
    reasons = f'{error.code} {said}'.lower()
    own = any(word in reasons for word in _ITS_OWN_FAULT)
    if status == 413 or (status == 400 and own):
      return _Failure(f'refused with status {status}', final=True)
    cure = 'see what it says, and endpoint.extra'
    if status in (401, 403):
      cure = f'see to the key in {config.api_key_variable or "the environment"}'
      cure += ', which endpoint.api_key_variable names'
    elif status == 404:
      cure = 'see to endpoint.base_url, endpoint.api and endpoint.model'
    elif quota:
      cure = 'see to the account, then run the same command again'
    return UserError(
      f'{config.base_url}: refused model {config.model!r} with status '
      f'{status}: {said[:300]}; {cure}'
    )


def retry_after(headers: Mapping[str, Any]) -> float:
  """Seconds that a server asks for, as a number or a date; 0: it does not."""
  text = headers.get('retry-after', '')
  try:
    seconds = float(text)
  except ValueError:
    try:
      at = email.utils.parsedate_to_datetime(text)
    except ValueError:
      return 0.0
    seconds = at.timestamp() - time.time()
  return seconds if seconds > 0 else 0.0

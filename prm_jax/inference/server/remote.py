"""Sends calls to an OpenAI-compatible server: bounded, retried, counted.

    Calls -> the cache on disk, else the server -> Answers, None where it failed

`endpoint.py` writes the calls and makes steps and replies of the answers.
"""

import asyncio
import concurrent.futures
import dataclasses
import math
import os
import pathlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.inference.server.replies import (
  Answer,
  Call,
  Failure,
  ReplyCache,
  fault_of,
  read_answer,
  read_up_to,
  retry_after,
)
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.runtime.errors import UserError

# Calls that are refused in a row until a short question tells whose fault it
# is; the first ones that a process sends need not be as many.
_REFUSED = 8


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
      Those that the server refuses are their items' failures and not counted.
    max_reply_bytes: a longer reply is not read to its end, and is a failure.
    send_stop: whether the server is told to stop after a step where no more is
      wanted; False for servers that refuse it.
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
  max_reply_bytes: int = 2**24
  send_stop: bool = True

  def __post_init__(self) -> None:
    if not self.base_url.startswith(('http://', 'https://')):
      raise UserError(
        f'endpoint.base_url={self.base_url!r}: expected http:// or https://, '
        'such as http://localhost:8000/v1'
      )
    if not self.model:
      raise UserError("endpoint.model='': expected the server's name for it")
    for name in (
      'concurrency',
      'attempts',
      'max_failed_in_a_row',
      'max_reply_bytes',
    ):
      if (value := getattr(self, name)) < 1:
        raise UserError(f'endpoint.{name}={value}: expected >= 1')
    for name in ('backoff', 'max_wait'):
      if not 0 <= (value := getattr(self, name)) < math.inf:
        raise UserError(f'endpoint.{name}={value}: expected >= 0')
    if not 0 < self.timeout < math.inf:
      raise UserError(f'endpoint.timeout={self.timeout}: expected seconds > 0')


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
    self._failed_in_a_row = self._refused_in_a_row = 0
    self._answered = False  # whether any call was, by now

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
    # Equal calls are one draw: it is paid for once, and goes to all of them.
    digests = [call.digest() for call in calls]
    distinct = dict(zip(digests, calls, strict=True))
    had: dict[str, Answer | str | None] = dict.fromkeys(distinct)
    usage = Usage()
    if cache := self._cache:
      corrupt = cache.corrupt
      had = {name: cache.read(call) for name, call in distinct.items()}
      usage.corrupt = cache.corrupt - corrupt
    missing = [name for name, answer in had.items() if answer is None]
    usage.cached = sum(had[name] is not None for name in digests)
    self._answered |= usage.cached > 0
    self._log.add(usage)
    sent = self._fetch([distinct[name] for name in missing])
    had.update(zip(missing, sent, strict=True))
    # The first of equal calls was counted when it was sent.
    for name, count in (Counter(digests) - Counter(distinct.keys())).items():
      if name in missing:
        if isinstance(reason := had[name], str):
          self._log.add(Usage(failed={reason: count}))
        else:
          self._log.add(Usage(cached=count))
    found = (had[name] for name in digests)
    return [it if isinstance(it, Answer) else None for it in found]

  def _fetch(self, calls: Sequence[Call]) -> list[Answer | str]:
    """The answers, or why there is none."""
    if not calls:
      return []
    try:
      asyncio.get_running_loop()
    except RuntimeError:
      return asyncio.run(self._send_all(calls))
    # A notebook's own loop is running, and there can be one to a thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      return thread.submit(asyncio.run, self._send_all(calls)).result()

  async def _send_all(self, calls: Sequence[Call]) -> list[Answer | str]:
    config = self._config
    answers: dict[int, Answer | str] = {}
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
      http_client=self._openai.DefaultAsyncHttpxClient(
        timeout=config.timeout,
        event_hooks={'response': [read_up_to(config.max_reply_bytes)]},
      ),
      # Its own know neither broken replies nor our counts.
      max_retries=0,
    )
    try:
      async with client:
        async with asyncio.TaskGroup() as group:
          for _ in range(min(config.concurrency, len(calls))):
            group.create_task(work(client))
        if self._refused_in_a_row and not self._answered:
          await self._ask_short(client, calls[-1])
    except ExceptionGroup as errors:
      raise errors.exceptions[0] from None
    return [answers[i] for i in range(len(calls))]

  async def _answer(self, client: Any, call: Call) -> Answer | str:
    try:
      answer = await self._ask(client, call)
    except Failure as failure:
      await self._give_up(client, call, failure)
      return failure.reason
    self._failed_in_a_row = self._refused_in_a_row = 0
    return answer

  async def _ask(self, client: Any, call: Call) -> Answer:
    """The answer, counted and kept; raises the last Failure."""
    usage = Usage()
    try:
      answer = await self._try(client, call, usage)
    finally:
      # Before it is kept: what is on disk was counted.
      self._log.add(usage)
    self._answered = True
    if self._cache:
      self._cache.write(call, answer)
    return answer

  async def _try(self, client: Any, call: Call, usage: Usage) -> Answer:
    config = self._config
    wait = config.backoff
    for attempt in range(1, config.attempts + 1):
      usage.calls += 1
      try:
        answer = await self._attempt(client, call)
        break
      except Failure as failure:
        too_long = failure.wait > config.max_wait
        if failure.final or too_long or attempt == config.attempts:
          usage.failed[failure.reason] = 1
          if failure.said:
            usage.said[failure.reason] = failure.said
          raise
        again = usage.retried.get(failure.reason, 0) + 1
        usage.retried[failure.reason] = again
        pause = min(wait, config.max_wait) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(pause, failure.wait))
        wait *= 2
    usage.tokens, usage.prompt_tokens = answer.tokens, answer.prompt_tokens
    usage.uncounted = int(not answer.prompt_tokens)
    return answer

  async def _give_up(self, client: Any, call: Call, failure: Failure) -> None:
    """Counts a call that failed; raises UserError where all will."""
    url, most = self._config.base_url, self._config.max_failed_in_a_row
    if not failure.final:
      self._failed_in_a_row += 1
      if self._failed_in_a_row >= most:
        raise UserError(
          f'{url}: {self._failed_in_a_row} calls in a row failed, the last '
          f'with: {failure.reason}; see to the server, then run the same '
          'command again'
        )
      return
    # A server that says no to one call is there for the others.
    self._failed_in_a_row = 0
    self._refused_in_a_row += 1
    if self._refused_in_a_row >= _REFUSED:
      await self._ask_short(client, call)

  async def _ask_short(self, client: Any, call: Call) -> None:
    """Asks a short question as others were that were refused.

    Is it what was asked, or how? Neither statuses nor words of servers say.

    Raises:
      UserError: it is refused, too.
    """
    config, refused = self._config, self._refused_in_a_row
    self._refused_in_a_row = 0
    try:
      await self._ask(client, call.shortened())
    except Failure as short:
      if short.final:
        why = short.reason.removeprefix('refused with ')
        said = f': {short.said}' if short.said else ''
        raise UserError(
          f'{config.base_url}: refused model {config.model!r} with {why}{said}'
          f'; a short question, too, after {refused} in a row: see what it '
          'says, endpoint.max_tokens and endpoint.extra'
        ) from short

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
      raise Failure('timeout') from error
    except openai.APIConnectionError as error:
      # Before version 3 the client takes what a hook raises for this.
      if isinstance(error.__cause__, Failure):
        raise error.__cause__ from error
      raise Failure('connection') from error
    except UnicodeEncodeError as error:
      if error.encoding != 'utf-8':  # as that of a header is
        raise
      raise Failure('a prompt that is not Unicode', final=True) from error
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
    said, fault = said[:300], fault_of(error)
    if fault == 'the moment':
      return Failure(
        f'status {status}', wait=retry_after(error.response.headers)
      )
    if fault == 'the call':
      return Failure(f'refused with status {status}', said, final=True)
    cure = {
      'the account': 'the account, then run the same command again',
      'the key': f'the key in {config.api_key_variable or "the environment"}, '
      'which endpoint.api_key_variable names',
      'the address': 'endpoint.base_url, endpoint.api and endpoint.model',
    }[fault]
    return UserError(
      f'{config.base_url}: refused model {config.model!r} with status '
      f'{status}: {said}; see to {cure}'
    )

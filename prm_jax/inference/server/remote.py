"""Sends calls to an OpenAI-compatible server, and counts what they cost.

    Calls -> the cache on disk, else the server -> Answers, None if they failed

`endpoint.py` writes the calls and makes steps and replies of the answers. The
`openai` client tries failed calls again (see `attempts.py`).
"""

import asyncio
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence

import openai

from prm_jax.inference.server.attempts import (
  OUTCOMES,
  Attempts,
  Failure,
  read_key,
  run,
  without_key,
)
from prm_jax.inference.server.config import ServerConfig
from prm_jax.inference.server.replies import (
  Answer,
  Call,
  fault_of,
  read_answer,
)
from prm_jax.inference.server.reply_cache import ReplyCache
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.runtime.errors import UserError

# After so many refusals in a row a short question shows whose fault it is.
_REFUSED = 8


class Server:
  """Answers calls from disk or from a server, and counts the usage."""

  def __init__(
    self,
    config: ServerConfig,
    cache: pathlib.Path | None,
    log: pathlib.Path | None,
  ) -> None:
    """Opens the cache and the log; sends nothing yet.

    Args:
      cache: folder of answers; None keeps none.
      log: file to which usage is added; None counts it in this process only.

    Raises:
      UserError: the key is missing, or the cache cannot be opened.
    """
    self._config = config
    self._key = read_key(config.api_key_variable)
    self._cache = None if cache is None else ReplyCache(cache)
    self._log = UsageLog(log)
    self._failed_in_a_row = self._refused_in_a_row = 0
    self._answered = False  # whether any call was answered so far

  @property
  def usage(self) -> Usage:
    """Returns the usage of this process."""
    return self._log.total

  def answers(self, calls: Sequence[Call]) -> list[Answer | None]:
    """Returns the answers in order, None for calls that failed.

    Raises:
      UserError: the server would refuse every call, or one call after another
        fails.
    """
    # Equal calls are one draw, which is paid for once and shared by all.
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
    asked = set(missing)
    # The first of equal calls was counted when it was sent.
    for name, count in (Counter(digests) - Counter(distinct.keys())).items():
      if name in asked:
        if isinstance(reason := had[name], str):
          self._log.add(Usage(failed={reason: count}))
        else:
          self._log.add(Usage(cached=count))
    found = (had[name] for name in digests)
    return [it if isinstance(it, Answer) else None for it in found]

  def _fetch(self, calls: Sequence[Call]) -> list[Answer | str]:
    """Returns each call's answer, or the reason why there is none."""
    if not calls:
      return []
    return run(self._send_all(calls))

  async def _send_all(self, calls: Sequence[Call]) -> list[Answer | str]:
    config = self._config
    answers: dict[int, Answer | str] = {}
    # All workers take from the same iterator.
    left = iter(enumerate(calls))

    async def work(client: openai.AsyncOpenAI) -> None:
      for i, call in left:
        answers[i] = await self._answer(client, call)

    client = openai.AsyncOpenAI(
      base_url=config.base_url,
      # Without a key the client would send OPENAI_API_KEY to any server.
      api_key=self._key or 'none',
      timeout=config.timeout,
      max_retries=config.attempts - 1,
      http_client=Attempts(config.timeout, config.max_reply_bytes),
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

  async def _answer(
    self, client: openai.AsyncOpenAI, call: Call
  ) -> Answer | str:
    try:
      answer = await self._ask(client, call)
    except Failure as failure:
      await self._give_up(client, call, failure)
      return failure.reason
    self._failed_in_a_row = self._refused_in_a_row = 0
    return answer

  async def _ask(self, client: openai.AsyncOpenAI, call: Call) -> Answer:
    """Returns the answer, counted and stored; raises Failure."""
    outcomes: list[str] = []
    OUTCOMES.set(outcomes)
    usage = Usage()
    try:
      answer = await self._send(client, call)
      usage.tokens, usage.prompt_tokens = answer.tokens, answer.prompt_tokens
      usage.uncounted = int(not answer.prompt_tokens)
    except Failure as failure:
      usage.failed[failure.reason] = 1
      if failure.said:
        usage.said[failure.reason] = failure.said
      raise
    finally:
      # Counted before it is stored, so that every answer on disk was counted.
      usage.calls = len(outcomes)
      usage.retried = dict(Counter(outcomes[:-1]))
      self._log.add(usage)
    self._answered = True
    if self._cache:
      self._cache.write(call, answer)
    return answer

  async def _give_up(
    self, client: openai.AsyncOpenAI, call: Call, failure: Failure
  ) -> None:
    """Counts a call that failed; raises UserError if all calls would."""
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
    # A server that refuses a call is up, and may answer others.
    self._failed_in_a_row = 0
    self._refused_in_a_row += 1
    if self._refused_in_a_row >= _REFUSED:
      await self._ask_short(client, call)

  async def _ask_short(self, client: openai.AsyncOpenAI, call: Call) -> None:
    """Sends a short question in the form of calls that were refused.

    Neither the status nor the message of a refusal tells whether an item's text
    is at fault or a setting that all calls share; this question does.

    Raises:
      UserError: the server refuses it, too.
    """
    config, refused = self._config, self._refused_in_a_row
    self._refused_in_a_row = 0
    try:
      await self._ask(client, call.shortened())
    except Failure as short:
      if short.final:
        why = short.reason.removeprefix('refused with ')
        message = f': {short.said}' if short.said else ''
        raise UserError(
          f'{config.base_url}: refused model {config.model!r} with {why}'
          f'{message}; a short question, too, after {refused} in a row: check '
          'that message, endpoint.max_tokens and endpoint.extra'
        ) from short

  async def _send(self, client: openai.AsyncOpenAI, call: Call) -> Answer:
    """Sends a call until it is answered or the client gives up."""
    rest = dict(call.body)
    if call.api == 'chat':
      create = client.chat.completions.with_raw_response.create
      asked = {name: rest.pop(name) for name in ('model', 'messages')}
    else:
      create = client.completions.with_raw_response.create
      asked = {name: rest.pop(name) for name in ('model', 'prompt')}
    try:
      reply = await create(**asked, extra_body=rest)
      return read_answer(reply.http_response.text)
    except openai.APIConnectionError as error:  # or a timeout
      raise Failure(OUTCOMES.get()[-1]) from error
    except UnicodeEncodeError as error:
      if error.encoding != 'utf-8':  # the key cannot be put into a header
        raise
      raise Failure('a prompt that is not Unicode', final=True) from error
    except openai.APIStatusError as error:
      raise self._refusal(error) from error

  def _refusal(self, error: openai.APIStatusError) -> Exception:
    """Returns a Failure of this call, or a UserError that ends the job."""
    config, status = self._config, error.status_code
    # The client finds the message only if the server uses OpenAI's form.
    message = error.response.text
    if isinstance(error.body, Mapping) and 'message' in error.body:
      message = str(error.body['message'])
    message = without_key(message, self._key)[:300]
    fault = fault_of(status, error.response.text)
    if fault == 'the moment':
      return Failure(f'status {status}')
    if fault == 'the call':
      return Failure(f'refused with status {status}', message, final=True)
    cure = {
      'the account': 'the account, then run the same command again',
      'the key': f'the key in {config.api_key_variable or "the environment"}, '
      'which endpoint.api_key_variable names',
      'the address': 'endpoint.base_url, endpoint.api and endpoint.model',
    }[fault]
    return UserError(
      f'{config.base_url}: refused model {config.model!r} with status '
      f'{status}: {message}; see to {cure}'
    )

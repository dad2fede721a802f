"""A policy and a judge at any OpenAI-compatible server.

    Request: problem and steps so far -> text -> Completion: whole steps
    Question -> text -> Reply

Such a server knows no step ends, so here, and only here, text becomes steps:
what stands between two separators is one. Where single steps are wanted the
separator is what the server is to stop at.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from prm_jax.inference.protocols import (
  Completion,
  Question,
  Reply,
  Request,
  sample_seed,
)
from prm_jax.inference.server.config import EndpointConfig, ServerConfig
from prm_jax.inference.server.replies import AMBIGUOUS, STOPPED, Answer, Call
from prm_jax.inference.server.usage import Usage
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# OpenAI's word, and those of servers that are compatible in all but this.
_FINISHED = (AMBIGUOUS, 'eos', 'eos_token', 'end')
# After so many blank lines in a row a model gets no more stops. Blank is also
# all that a chat's template leaves to write which cuts the last separator off.
_BLANKS = 2
# Tokens that show whether a text goes on: one may end what was to be two.
_PEEK = 2
# A completion as it comes to be: it asks with calls until it is done.
_Writing = Generator[Call, Answer | None, Completion | None]


class Endpoint:
  """A Policy and a Judge (`protocols.py`) at a server."""

  counts_flops = False

  def __init__(
    self,
    config: EndpointConfig,
    cache: str | paths.Path | None = None,
    log: pathlib.Path | None = None,
  ) -> None:
    """Sends nothing yet.

    Args:
      cache: folder on a disk where answers are kept; processes, jobs and
        servers may share it. None: none are kept.
      log: file that usage is added to, see `usage.py`.

    Raises:
      UserError: no openai package, no key, or a folder that cannot be made.
    """
    if cache is not None:
      paths.check_local(cache, 'the cache of replies')
      cache = pathlib.Path(cache)
    self._config = config
    try:
      from prm_jax.inference.server.remote import Server  # noqa: PLC0415
    except ModuleNotFoundError as error:
      raise UserError(
        f'endpoint.base_url={config.base_url!r}: servers need the package '
        f"{error.name}: pip install 'openai>=3' 'diskcache>=5.6'"
      ) from error
    self._server = Server(config, cache, log)
    limits = {field.name for field in dataclasses.fields(ServerConfig)}
    asked = {
      name: dict(value) if isinstance(value, Mapping) else value
      for name, value in vars(config).items()
      if name not in limits
    }
    text = json.dumps(asked, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    # Servers move between hosts; the model and how it is asked stay.
    self.name = f'{config.model} {config.api} {digest}'

  @property
  def usage(self) -> Usage:
    """Calls, tokens and failures of this process so far."""
    return self._server.usage

  @property
  def _goes_on(self) -> bool:
    """Whether the server goes on with what it is sent."""
    config = self._config
    return bool(
      config.api != 'chat' or config.continues or config.extra_after_steps
    )

  def check_goes_on(self) -> None:
    """Raises UserError where the server may begin anew after some steps."""
    if not self._goes_on:
      raise UserError(
        "endpoint.api='chat' may begin anew after the steps of a chain: set "
        'endpoint.api=completions, endpoint.continues=True (llama.cpp) or '
        'endpoint.extra_after_steps=\'{"continue_final_message": true, '
        '"add_generation_prompt": false}\' (vLLM)'
      )

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """As in `Policy.complete`; all samples of all requests side by side.

    Log-probabilities are NaN. All tokens that are billed are counted, those
    that are cut off included: a server that does not stop where it is told
    writes to the end of the chain for every step.

    Raises:
      UserError: the server refuses every request, or fails again and again; or
        it may begin anew where it is to go on with steps.
    """
    if any(request.steps for request in requests):
      self.check_goes_on()
    written = iter(
      self._together(
        [
          self._write(request, sample)
          for request in requests
          for sample in range(request.first, request.first + request.samples)
        ]
      )
    )
    return [
      [next(written) for _ in range(request.samples)] for request in requests
    ]

  def _together(self, writings: Sequence[_Writing]) -> list[Completion | None]:
    """What they come to; what they ask at the same time is sent together."""
    done: list[Completion | None] = [None] * len(writings)
    calls = {i: next(writing) for i, writing in enumerate(writings)}
    while calls:
      answers = self._server.answers(list(calls.values()))
      asked, calls = calls, {}
      for i, answer in zip(asked, answers, strict=True):
        try:
          calls[i] = writings[i].send(answer)
        except StopIteration as end:
          done[i] = end.value
    return done

  def _write(self, request: Request, sample: int) -> _Writing:
    """One completion: a call for a chain, a call or two for each step.

    A text that was to stop at the separator may have ended there, or with the
    chain. vLLM, SGLang and TGI say which (`replies.read_answer`), and servers
    that leave the separator in show it. Of others two more tokens are asked
    for, without a stop: where none come, the chain has ended.
    """
    config, separator = self._config, self._config.separator
    stops = request.max_steps and config.send_stop and self._goes_on
    limit = 'max_completion_tokens'
    limit = limit if limit in config.extra else 'max_tokens'
    text = ''  # after the request's steps, with separators
    tokens = prompt_tokens = steps_before = blanks = 0

    def call(most: int, **more: Any) -> Call:
      opening = self._opening(request, text) | more
      return self._call(opening, request.key, sample, most)

    while True:
      stopping = stops and blanks < _BLANKS
      most = config.max_tokens and config.max_tokens - tokens
      answer = yield call(most, **({'stop': [separator]} if stopping else {}))
      if answer is None:
        return None
      tokens += answer.tokens
      prompt_tokens += answer.prompt_tokens
      end, before = 'text', text
      text += answer.text
      if stopping:
        end = _end_of(answer, separator)
      if end == 'step or chain':
        peek = yield call(0, **{limit: _PEEK})
        if peek is None:
          return None
        tokens += peek.tokens
        prompt_tokens += peek.prompt_tokens
        ended = peek.finish in _FINISHED and not peek.text.strip()
        end = 'text' if ended else 'step'
      if end == 'step':
        text = before + answer.text.partition(separator)[0] + separator
      finished = end == 'text' and answer.finish in (*_FINISHED, STOPPED)
      steps, finished = split_steps(
        text, separator, finished, request.max_steps
      )
      blanks = blanks + 1 if len(steps) == steps_before else 0
      steps_before = len(steps)
      if (
        end == 'text'
        or len(steps) == request.max_steps
        or 0 < config.max_tokens <= tokens
      ):
        return Completion(steps, finished, tokens, prompt_tokens, float('nan'))

  def ask(self, questions: Sequence[Question]) -> list[list[Reply | None]]:
    """As in `Judge.ask`: questions are sent alone, without `system`."""
    openings = (self._asked(question.text) for question in questions)
    return [
      [
        answer and Reply(answer.text, answer.tokens, answer.prompt_tokens)
        for answer in samples
      ]
      for samples in self._ask_all(questions, openings)
    ]

  def _ask_all(
    self,
    asked: Sequence[Request] | Sequence[Question],
    openings: Iterable[dict[str, Any]],
  ) -> list[list[Answer | None]]:
    calls = [
      self._call(opening, item.key, sample, self._config.max_tokens)
      for item, opening in zip(asked, openings, strict=True)
      for sample in range(item.first, item.first + item.samples)
    ]
    answers = iter(self._server.answers(calls))
    return [[next(answers) for _ in range(item.samples)] for item in asked]

  def _call(
    self, opening: dict[str, Any], key: str, sample: int, most: int
  ) -> Call:
    config = self._config
    body = {
      'model': config.model,
      'temperature': config.temperature,
      **config.extra,
      **opening,
    }
    if config.top_p < 1:
      body['top_p'] = config.top_p
    if most:
      body['max_tokens'] = most
    if config.send_seed:
      # 31 bits are what every server takes.
      body['seed'] = sample_seed(config.seed, key, sample) >> 33
    return Call(config.api, body, f'{config.seed}/{sample}/{key}')

  def _asked(self, text: str) -> dict[str, Any]:
    if self._config.api == 'completions':
      return {'prompt': text}
    return {'messages': [{'role': 'user', 'content': text}]}

  def _opening(self, request: Request, text: str) -> dict[str, Any]:
    """What the model reads before it goes on; it wrote the text itself."""
    config = self._config
    prompt = config.prompt.replace('{problem}', request.problem)
    written = ''.join(step + config.separator for step in request.steps)
    written += text
    extra = config.extra_after_steps if written else {}
    if config.api == 'completions':
      system = f'{config.system}\n\n' if config.system else ''
      text = f'{system}{prompt}{config.separator}{written}'
      return {'prompt': text, **extra}
    said = (('system', config.system), ('user', prompt), ('assistant', written))
    messages = [{'role': role, 'content': text} for role, text in said if text]
    return {'messages': messages, **extra}


def _end_of(answer: Answer, separator: str) -> str:
  """What a text ends with that was to stop at the separator.

  Returns:
    'step', 'step or chain' where the server does not say, or 'text': the chain
    ended, a limit cut it off, or the server did not stop.
  """
  _, found, rest = answer.text.partition(separator)
  if answer.finish == STOPPED:
    return 'step'
  if rest.strip() or answer.finish not in (AMBIGUOUS, 'length'):
    return 'text'
  if found:
    return 'step'
  return 'step or chain' if answer.finish == AMBIGUOUS else 'text'


def split_steps(
  text: str, separator: str, finished: bool, max_steps: int = 0
) -> tuple[tuple[str, ...], bool]:
  """Whole steps of a completion, and whether the chain ends with them.

  Args:
    finished: whether the model ended the text; else what follows the last
      separator was cut off, and is dropped.
    max_steps: at most as many are kept; 0: all.

  Returns:
    Steps without blanks around them, none of them blank, and whether both the
    text was finished and none was left out.
  """
  pieces = [piece.strip() for piece in text.split(separator)]
  if not finished:
    pieces.pop()
  steps = tuple(piece for piece in pieces if piece)
  if max_steps and len(steps) > max_steps:
    return steps[:max_steps], False
  return steps, finished

"""Uses any OpenAI-compatible server as a policy and as a judge.

    Request: problem and steps so far -> text -> Completion of whole steps
    Question -> text -> Reply
    Choice -> text -> Chosen, if the server tells log-probabilities

Servers return text, so `split_steps` splits it: a step is the text between two
separators. If single steps are wanted, the server is asked to stop at the
separator. `remote.py` sends the calls.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.inference.protocols import (
  Choice,
  Chosen,
  Completion,
  Question,
  Reply,
  Request,
  sample_seed,
  shared_start,
)
from prm_jax.inference.server.config import EndpointConfig, ServerConfig
from prm_jax.inference.server.replies import AMBIGUOUS, STOPPED, Answer, Call
from prm_jax.inference.server.usage import Usage
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# Finish reasons of a text that the model ended: OpenAI's, and other servers'.
_FINISHED = (AMBIGUOUS, 'eos', 'eos_token', 'end')
# After so many blank lines in a row a model gets no more stops. A chat template
# that strips the last separator makes the model write a blank line, too.
_BLANKS = 2
# Tokens asked for to see whether a text continues; the first may be a blank.
_PEEK = 2
# Most likely tokens that are asked for; OpenAI's APIs tell no more.
_LIKELY, _LIKELY_CHAT = 5, 20
# The coroutine of one completion: it yields calls until it is done.
# Settings of servers that change from which tokens one is drawn.
_DRAWING = ('temperature', 'top_k', 'top_p', 'min_p', 'typical_p')
_Writing = Generator[Call, Answer | None, Completion | None]


class Endpoint:
  """Is a `protocols.Critic` and a `protocols.Judge` at a server."""

  counts_flops = False

  def __init__(
    self,
    config: EndpointConfig,
    cache: str | paths.Path | None = None,
    log: pathlib.Path | None = None,
  ) -> None:
    """Opens the cache; sends nothing yet.

    Args:
      cache: folder on a disk where answers are kept; processes, jobs and
        servers may share it. None keeps no answers.
      log: file to which usage is added, see `usage.py`.

    Raises:
      UserError: a package or the key is missing, or the cache cannot be opened.
    """
    if cache is not None:
      paths.check_local(cache, 'the cache of replies')
      cache = pathlib.Path(cache).expanduser()
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
    # The name does not depend on where the server is and on its limits.
    self.name = f'{config.model} {config.api} {digest}'

  @property
  def usage(self) -> Usage:
    """Returns calls, tokens and failures of this process so far."""
    return self._server.usage

  @property
  def _limit(self) -> str:
    """Returns the field that limits the tokens of a call."""
    newer = 'max_completion_tokens'
    return newer if newer in self._config.extra else 'max_tokens'

  def check_continues(self) -> None:
    """Raises UserError if the server may begin a new text after some steps."""
    if not self._config.goes_on:
      raise UserError(
        "endpoint.api='chat' may begin anew after the steps of a chain: set "
        'endpoint.api=completions, endpoint.continues=True (llama.cpp) or '
        'endpoint.extra_after_steps=\'{"continue_final_message": true, '
        '"add_generation_prompt": false}\' (vLLM)'
      )

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """Returns completions as `Policy.complete` does, without log-probabilities.

    All billed tokens are counted, including those that are cut off: a server
    that ignores the stop writes to the end of the chain for every step.

    Raises:
      UserError: the server refuses every request or fails again and again, or
        it may begin a new text where it should continue steps.
    """
    if any(request.steps for request in requests):
      self.check_continues()
    written = iter(
      self._run_together(
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

  def _run_together(
    self, writings: Sequence[_Writing]
  ) -> list[Completion | None]:
    """Runs coroutines; calls of all that wait are sent at the same time."""
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
    """Writes one completion with one call, or with one or two for each step.

    A text that was asked to stop at the separator ended either there or at the
    chain's end. vLLM, SGLang and TGI say which (see `replies.read_answer`), and
    some servers leave the separator in the text. Others are asked for two more
    tokens without a stop: if they write none, the chain has ended.
    """
    config, separator = self._config, self._config.separator
    stops = request.max_steps and config.send_stop and self._config.goes_on
    text = ''  # written after the request's steps, with separators
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
        peek = yield call(0, **{self._limit: _PEEK})
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
    """Returns replies as `Judge.ask` does; questions go without `system`."""
    calls = [
      self._call(
        self._question(it.text), it.key, sample, self._config.max_tokens
      )
      for it in questions
      for sample in range(it.first, it.first + it.samples)
    ]
    replies = (
      answer and Reply(answer.text, answer.tokens, answer.prompt_tokens)
      for answer in self._server.answers(calls)
    )
    return [[next(replies) for _ in range(it.samples)] for it in questions]

  def choose(self, choices: Sequence[Choice]) -> list[Chosen]:
    """Returns how likely each option is to come next; see `Critic.choose`.

    It is read from the most likely tokens that the server tells, see
    `_option_logprobs`. A server that may begin a new text is not asked, and
    chooses nothing.

    Raises:
      UserError: the server refuses every call or fails again and again.
    """
    if not self._config.goes_on:
      return [Chosen((), 0)] * len(choices)
    chat = self._config.api == 'chat'
    asked = {'logprobs': True, 'top_logprobs': _LIKELY_CHAT}
    asked = asked if chat else {'logprobs': _LIKELY}
    # Some servers tell log-probabilities as these change them.
    extra = {k: v for k, v in self._config.extra.items() if k not in _DRAWING}
    plain = dataclasses.replace(
      self._config, temperature=1.0, top_p=1.0, extra=extra
    )
    calls = []
    for choice in choices:
      shared = choice.options[0][: shared_start(choice.options)]
      request = Request(choice.problem, choice.steps, '', 1)
      opening = self._opening(request, (choice.lead + shared).rstrip())
      opening |= asked | {self._limit: 1}
      calls.append(self._call(opening, f'choice/{choice}', 0, 0, plain))
    return [
      Chosen(
        _option_logprobs(choice.options, answer.likely) if answer else (),
        answer.tokens + answer.prompt_tokens if answer else 0,
      )
      for choice, answer in zip(
        choices, self._server.answers(calls), strict=True
      )
    ]

  def _call(
    self,
    opening: dict[str, Any],
    key: str,
    sample: int,
    most: int,
    config: EndpointConfig | None = None,
  ) -> Call:
    config = config or self._config
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
      # Every server takes seeds of 31 bits.
      body['seed'] = sample_seed(config.seed, key, sample) >> 33
    return Call(config.api, body, f'{config.seed}/{sample}/{key}')

  def _question(self, text: str) -> dict[str, Any]:
    """Returns the fields of a request that ask a question."""
    if self._config.api == 'completions':
      return {'prompt': text}
    return {'messages': [{'role': 'user', 'content': text}]}

  def _opening(self, request: Request, text: str) -> dict[str, Any]:
    """Returns the fields of a request for what follows the steps and text."""
    config = self._config
    prompt = config.prompt.replace('{problem}', request.problem)
    written = ''.join(step + config.separator for step in request.steps)
    written += text
    extra = config.extra_after_steps if written else {}
    if config.api == 'completions':
      system = f'{config.system}\n\n' if config.system else ''
      text = f'{system}{prompt}{config.separator}{written}'
      return {'prompt': text, **extra}
    turns = {'system': config.system, 'user': prompt, 'assistant': written}
    messages = [
      {'role': role, 'content': text} for role, text in turns.items() if text
    ]
    return {'messages': messages, **extra}


def _option_logprobs(
  options: Sequence[str], likely: Mapping[str, float]
) -> tuple[float, ...]:
  """Returns the log-probability of each option's first token; () for none.

  An option that is not listed is at most as likely as the least likely token
  that is, and gets its log-probability. So a listed option that is no more
  likely than that token cannot be told from one that is not listed: the server
  told that token alone, or the option is the last of the list. Then nothing is
  returned, and what the critic wrote counts.
  """
  shared = shared_start(options)
  texts = [option[shared:].strip().lower() for option in options]
  found: list[list[float]] = [[] for _ in texts]
  for token, logprob in likely.items():
    word = token.strip().lower()
    meant = [
      i for i, text in enumerate(texts) if word and text.startswith(word)
    ]
    if len(meant) == 1:
      found[meant[0]].append(logprob)
  if not any(found):
    return ()
  least = min(likely.values())
  logprobs = [
    float(np.logaddexp.reduce(own)) if own else least for own in found
  ]
  return tuple(logprobs) if all(found) or max(logprobs) > least else ()


def _end_of(answer: Answer, separator: str) -> str:
  """Returns what ends a text that was asked to stop at the separator.

  Returns:
    'step'; 'step or chain' if the server does not tell; or 'text' if the chain
    ended, a limit cut it off, or the server ignored the stop.
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
  """Splits a completion into whole steps.

  Args:
    finished: whether the model ended the text; if not, what follows the last
      separator was cut off and is dropped.
    max_steps: most steps to keep; 0 keeps all.

  Returns:
    Steps without blanks around them, none of them blank, and whether the text
    was finished and no step was left out.
  """
  pieces = [piece.strip() for piece in text.split(separator)]
  if not finished:
    pieces.pop()
  steps = tuple(piece for piece in pieces if piece)
  if max_steps and len(steps) > max_steps:
    return steps[:max_steps], False
  return steps, finished

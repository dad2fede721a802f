"""A policy and a judge at any OpenAI-compatible server.

    Request: problem and steps so far -> text -> Completion: whole steps
    Question -> text -> Reply

Such a server knows no step ends, so here, and only here, text becomes steps:
what stands between two separators is one.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prm_jax import paths
from prm_jax.errors import UserError
from prm_jax.policy import Completion, Question, Reply, Request, sample_seed
from prm_jax.remote import Server, ServerConfig
from prm_jax.replies import Answer, Call
from prm_jax.usage import Usage

APIS = ('chat', 'completions')
# OpenAI's word, and those of servers that are compatible in all but this.
_FINISHED = ('stop', 'eos', 'eos_token', 'end')
# What `extra` may not say, as it is said elsewhere or breaks a promise.
_OWN_FIELDS = ('messages', 'model', 'n', 'prompt', 'seed', 'stop', 'stream')
_SYSTEM = (
  'Solve the problem step by step, one step a line and no blank lines. The '
  'last line is "#### " and then the final answer alone.'
)


@dataclasses.dataclass(frozen=True)
class EndpointConfig(ServerConfig):
  """A model on a server, and how it is asked.

  A chat gets `system`, `prompt` and the steps so far as an assistant's message.
  Whether the model goes on with that message or begins a new one is up to the
  server: llama.cpp goes on, `transformers serve` begins a new one, vLLM goes
  on with `extra_after_steps={'continue_final_message': True,
  'add_generation_prompt': False}`. A new one is no rollout of the steps, so a
  chat with steps takes `continues` or `extra_after_steps`. The completions API
  gets all as one text and goes on wherever it is.

  Attributes:
    api: chat or completions.
    continues: the server of a chat goes on with the steps by itself.
    system: said before everything else; '': nothing.
    prompt: text with `{problem}` in it.
    separator: what stands between steps, in prompts and in completions.
    temperature: 0 is greedy.
    top_p: 1 is all.
    max_tokens: of one completion; 0 leaves it to the server, or to
      `extra={'max_completion_tokens': 1024}`.
    seed: of all samples; a server may ignore it.
    send_seed: False for servers that refuse seeds.
    extra: more fields of every request, such as {'top_k': 20}.
    extra_after_steps: more fields of those that have steps already.
  """

  api: str = 'chat'
  continues: bool = False
  system: str = _SYSTEM
  prompt: str = '{problem}'
  separator: str = '\n'
  temperature: float = 1.0
  top_p: float = 1.0
  max_tokens: int = 1024
  seed: int = 0
  send_seed: bool = True
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  extra_after_steps: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.api not in APIS:
      raise UserError(
        f'endpoint.api={self.api!r}: expected one of {", ".join(APIS)}'
      )
    if '{problem}' not in self.prompt:
      raise UserError(
        f"endpoint.prompt={self.prompt!r}: expected '{{problem}}' in it"
      )
    if not self.separator:
      raise UserError("endpoint.separator='': expected text, such as '\\n'")
    for name, low, high in (
      ('temperature', 0, 100),
      ('top_p', 1e-6, 1),
      ('max_tokens', 0, 10**7),
    ):
      if not low <= (value := getattr(self, name)) <= high:
        raise UserError(f'endpoint.{name}={value}: expected {low} to {high}')
    for name in ('extra', 'extra_after_steps'):
      _check_extra(f'endpoint.{name}', getattr(self, name))


def _check_extra(name: str, extra: Mapping[str, Any]) -> None:
  try:
    json.dumps(dict(extra))
  except TypeError as error:
    raise UserError(
      f'{name}={extra}: expected JSON types only: {error}'
    ) from error
  for field in _OWN_FIELDS:
    if field in extra:
      raise UserError(
        f'{name} has {field!r}, which is said otherwise; take it out'
      )


class Endpoint:
  """A Policy and a Judge (`policy.py`) at a server."""

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

  def check_goes_on(self) -> None:
    """Raises UserError where the server may begin anew after some steps."""
    config = self._config
    if config.api == 'chat' and not (
      config.continues or config.extra_after_steps
    ):
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

    Log-probabilities are NaN. The server writes to the end of the chain
    whatever `max_steps` is: the tokens that are billed are counted, those of
    the steps cut off included.

    Raises:
      UserError: the server refuses every request, or fails again and again; or
        it may begin anew where it is to go on with steps.
    """
    if any(request.steps for request in requests):
      self.check_goes_on()
    answers = self._ask_all(requests, map(self._opening, requests))
    return [
      [self._completion(answer, request.max_steps) for answer in samples]
      for request, samples in zip(requests, answers, strict=True)
    ]

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
      self._call(opening, item.key, sample)
      for item, opening in zip(asked, openings, strict=True)
      for sample in range(item.first, item.first + item.samples)
    ]
    answers = iter(self._server.answers(calls))
    return [[next(answers) for _ in range(item.samples)] for item in asked]

  def _call(self, opening: dict[str, Any], key: str, sample: int) -> Call:
    config = self._config
    body = {
      'model': config.model,
      'temperature': config.temperature,
      **config.extra,
      **opening,
    }
    if config.top_p < 1:
      body['top_p'] = config.top_p
    if config.max_tokens:
      body['max_tokens'] = config.max_tokens
    if config.send_seed:
      # 31 bits are what every server takes.
      body['seed'] = sample_seed(config.seed, key, sample) >> 33
    return Call(config.api, body, f'{config.seed}/{sample}/{key}')

  def _asked(self, text: str) -> dict[str, Any]:
    if self._config.api == 'completions':
      return {'prompt': text}
    return {'messages': [{'role': 'user', 'content': text}]}

  def _opening(self, request: Request) -> dict[str, Any]:
    """What the model reads before it goes on."""
    config = self._config
    prompt = config.prompt.replace('{problem}', request.problem)
    written = ''.join(step + config.separator for step in request.steps)
    extra = config.extra_after_steps if request.steps else {}
    if config.api == 'completions':
      system = f'{config.system}\n\n' if config.system else ''
      text = f'{system}{prompt}{config.separator}{written}'
      return {'prompt': text, **extra}
    said = (('system', config.system), ('user', prompt), ('assistant', written))
    messages = [{'role': role, 'content': text} for role, text in said if text]
    return {'messages': messages, **extra}

  def _completion(
    self, answer: Answer | None, max_steps: int
  ) -> Completion | None:
    if answer is None:
      return None
    steps, finished = split_steps(
      answer.text,
      self._config.separator,
      answer.finish in _FINISHED,
      max_steps,
    )
    return Completion(
      steps, finished, answer.tokens, answer.prompt_tokens, float('nan')
    )


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

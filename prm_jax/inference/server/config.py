"""Settings of a model on a server: where it is, and how it is asked."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from prm_jax.runtime.errors import UserError

APIS = ('chat', 'completions')
# What `extra` may not say, as it is said elsewhere or breaks a promise.
_OWN_FIELDS = ('messages', 'model', 'n', 'prompt', 'seed', 'stop', 'stream')
_SYSTEM = (
  'Solve the problem step by step, one step a line and no blank lines. The '
  'last line is "#### " and then the final answer alone.'
)


@dataclasses.dataclass(frozen=True)
class ServerConfig:
  """Where a server is, and how much may be asked of it.

  Attributes:
    base_url: with its version, such as http://localhost:8000/v1.
    model: the server's name for it.
    api_key_variable: the environment variable that holds the key; '': none.
    concurrency: calls under way at once.
    timeout: seconds for one attempt, from its first byte to its last.
    attempts: at most for one call. The `openai` client waits half a second
      after the first and twice as long after each, up to eight seconds; or as
      long as the server asks (Retry-After), and gives up if that is more than
      two minutes. Eight attempts outlast an outage of half a minute.
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
  attempts: int = 8
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
    if not 0 < self.timeout < math.inf:
      raise UserError(f'endpoint.timeout={self.timeout}: expected seconds > 0')


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

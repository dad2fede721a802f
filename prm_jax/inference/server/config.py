"""Settings of a model on a server: where it is, and how it is asked."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from prm_jax.runtime.errors import UserError

APIS = ('chat', 'completions')
# Fields that `extra` may not set: other settings do, or a promise would break.
_OWN_FIELDS = ('messages', 'model', 'n', 'prompt', 'seed', 'stop', 'stream')
_SYSTEM = (
  'Solve the problem step by step, one step a line and no blank lines. The '
  'last line is "#### " and then the final answer alone.'
)


@dataclasses.dataclass(frozen=True)
class ServerConfig:
  """Says where a server is, and what limits apply to calls.

  Attributes:
    base_url: URL with the API's version, such as http://localhost:8000/v1.
    model: the server's name of the model.
    api_key_variable: environment variable that holds the key; '' sends none.
    concurrency: most calls at the same time.
    timeout: seconds for one attempt, from its first byte to its last.
    attempts: most attempts of one call. The `openai` client waits half a second
      after the first and twice as long after each, up to eight seconds. If the
      server asks for a time (Retry-After), it waits that long, or gives up if
      it is over two minutes. Eight attempts outlast half a minute's outage.
    max_failed_in_a_row: the job stops after so many failed calls in a row.
      Calls that the server refuses are not counted: they fail their item only.
    max_reply_bytes: a longer reply is a failure and is not read to its end.
    send_stop: whether to have the server stop after each step if single steps
      are wanted; False for servers that refuse `stop`.

  Raises:
    UserError: a value is missing or out of range.
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
  """Says how a model on a server is asked.

  A chat sends `system`, `prompt`, and the steps so far as an assistant message.
  Servers differ in whether they continue that message or begin a new one:
  llama.cpp continues it, `transformers serve` begins a new one, and vLLM
  continues it with `extra_after_steps={'continue_final_message': True,
  'add_generation_prompt': False}`. A new message would be no rollout of the
  steps, so chats with steps need `continues` or `extra_after_steps`. The
  completions API sends everything as one text, which every server continues.

  Attributes:
    api: 'chat' or 'completions'.
    continues: whether a chat's server continues the steps without being told.
    system: system message, '' for none.
    prompt: text with `{problem}` in it.
    separator: text between steps, in prompts and in completions.
    temperature: sampling temperature; 0 is greedy.
    top_p: keeps the most likely tokens up to this probability; 1 keeps all.
    max_tokens: most tokens of one completion; 0 leaves it to the server, or to
      `extra={'max_completion_tokens': 1024}`.
    seed: seeds all samples; servers may ignore it.
    send_seed: whether to send a seed; False for servers that refuse it.
    extra: further fields of every request, such as {'top_k': 20}.
    extra_after_steps: further fields of requests that already have steps.

  Raises:
    UserError: a value is missing or out of range.
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

"""Declares the settings of a model on a server, and checks them."""

import dataclasses
import json
import math
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any

from prm_jax.runtime import checks
from prm_jax.runtime.checks import (
  Rule,
  above_up_to,
  at_least,
  between,
  one_of,
  within,
)

_SYSTEM = (
  'Solve the problem step by step, one step a line and no blank lines. The '
  'last line is "#### " and then the final answer alone.'
)
# Fields that `extra` may not set: other settings do, or a promise would break.
_OWN_FIELDS = ('messages', 'model', 'n', 'prompt', 'seed', 'stop', 'stream')


def _is_extra(value: Mapping[str, Any]) -> bool:
  try:
    same = json.loads(json.dumps(dict(value), allow_nan=False)) == dict(value)
  except (TypeError, ValueError, RecursionError):
    return False
  # What JSON changes, such as a number as a key, the cache would not know.
  return same and not set(_OWN_FIELDS) & set(value)


def _is_url(value: str) -> bool:
  try:
    url = urllib.parse.urlsplit(value)
    return bool(
      url.scheme in ('http', 'https')
      and url.hostname
      and url.hostname.isascii()
      and url.port != 0
    )
  except ValueError:  # of brackets, or of a port that is none
    return False


_URL = Rule(
  _is_url,
  'expected http:// or https://, such as http://localhost:8000/v1',
)
_MODEL = Rule(bool, "expected the server's name of a model")
_PROMPT = Rule(lambda value: '{problem}' in value, "expected '{problem}' in it")
_SEPARATOR = Rule(bool, "expected text, such as '\\n'")
_EXTRA = Rule(
  _is_extra,
  f'expected JSON types, and none of the fields {", ".join(_OWN_FIELDS)}',
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
    checks.Faults: values are missing or out of range.
  """

  base_url: Annotated[str, _URL] = ''
  model: Annotated[str, _MODEL] = ''
  api_key_variable: str = ''
  concurrency: Annotated[int, at_least(1)] = 16
  timeout: Annotated[float, between(0, math.inf)] = 300.0
  attempts: Annotated[int, at_least(1)] = 8
  max_failed_in_a_row: Annotated[int, at_least(1)] = 32
  max_reply_bytes: Annotated[int, at_least(1)] = 2**24
  send_stop: bool = True

  def __post_init__(self) -> None:
    checks.check(self)


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
    continues: whether a chat's server continues the steps by default.
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
    checks.Faults: values are missing or out of range.
  """

  api: Annotated[str, one_of('chat', 'completions')] = 'chat'
  continues: bool = False
  system: str = _SYSTEM
  prompt: Annotated[str, _PROMPT] = '{problem}'
  separator: Annotated[str, _SEPARATOR] = '\n'
  temperature: Annotated[float, within(0, 100)] = 1.0
  top_p: Annotated[float, above_up_to(0, 1)] = 1.0
  max_tokens: Annotated[int, within(0, 10**7)] = 1024
  seed: int = 0
  send_seed: bool = True
  extra: Annotated[Mapping[str, Any], _EXTRA] = dataclasses.field(
    default_factory=dict
  )
  extra_after_steps: Annotated[Mapping[str, Any], _EXTRA] = dataclasses.field(
    default_factory=dict
  )

  @property
  def goes_on(self) -> bool:
    """Says whether the server continues the text that it is sent."""
    return bool(self.api != 'chat' or self.continues or self.extra_after_steps)


@dataclasses.dataclass(frozen=True)
class PrmServerConfig:
  """Says where a server scores steps, and what limits apply to calls.

  Attributes:
    base_url: URL with the API's version, such as http://localhost:8000/v1.
    model: the server's name of the PRM; '' is its first.
    api: 'steps', that of `python -m prm_jax.serve`; or 'pooling', vLLM's, for
      PRMs with a token that ends a step.
    api_key_variable: environment variable that holds the key; '' sends none.
    chains: most chains of a call, all of one problem; 'pooling' takes one.
    concurrency: most calls at the same time.
    timeout, attempts, max_reply_bytes: as in `ServerConfig`. A server of ours
      gives up after 120 seconds, and says so.
    system: system message of 'pooling', '' for none.
    separator: for 'pooling' the token that ends a step.
  """

  base_url: Annotated[str, _URL] = 'http://localhost:8000/v1'
  model: str = ''
  api: Annotated[str, one_of('steps', 'pooling')] = 'steps'
  api_key_variable: str = ''
  chains: Annotated[int, at_least(1)] = 32
  concurrency: Annotated[int, at_least(1)] = 8
  timeout: Annotated[float, between(0, math.inf)] = 150.0
  attempts: Annotated[int, at_least(1)] = 8
  max_reply_bytes: Annotated[int, at_least(1)] = 16 * 2**20
  system: str = (
    r'Please reason step by step, and put your final answer within \boxed{}.'
  )
  separator: Annotated[str, _SEPARATOR] = '<extra_0>'

  def __post_init__(self) -> None:
    checks.check(self)

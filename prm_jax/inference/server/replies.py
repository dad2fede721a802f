"""Describes calls to an OpenAI-compatible server, and reads what comes back.

    reply -> read_answer -> Answer
    a status that is not 200 -> fault_of -> whose fault it is

`remote.py` sends the calls, and `reply_cache.py` keeps the answers on disk.
"""

import hashlib
import json
import math
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

# Statuses below 500 after which another attempt may succeed; TGI uses 424 for a
# model that failed while it wrote.
_PASSING = (408, 409, 424, 425, 429)
# Error codes and types of an account without credit, whatever the status.
_UNPAID = {
  'insufficient_quota',
  'exceeded_current_quota_error',
  'billing_not_active',
  'billing_hard_limit_reached',
}
# With these words a status 403 is about the text and not about the key.
_CONTENT = ('content_filter', 'content_policy', 'flagged', 'moderation')
# Sent in place of an item's text to see whether all calls are refused.
_SHORT = 'What is 1 + 1?'
# Values of `Answer.finish`: the model's own end or a stop, and a stop only.
AMBIGUOUS = 'stop'
STOPPED = 'stop_sequence'
# Counts of tokens that are believed: those that a float holds exactly.
_COUNTS = range(2**53)


class Call(NamedTuple):
  """Asks for one answer.

  Attributes:
    api: 'chat' or 'completions'.
    sample: key, seed and number of the sample: calls with equal bodies and
      different samples are different draws.
  """

  api: str
  body: dict[str, Any]
  sample: str

  def digest(self) -> str:
    """Returns a hash of everything that the answer depends on.

    Calls with the same hash are one draw. The server's address is not part of
    it, because servers move.
    """
    text = json.dumps(self._asdict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def shortened(self) -> 'Call':
    """Returns the call with a short question in place of its text."""
    body = dict(self.body)
    if 'prompt' in body:
      body['prompt'] = _SHORT
    else:
      body['messages'] = [
        each if each['role'] == 'system' else {**each, 'content': _SHORT}
        for each in body['messages']
      ]
    return self._replace(body=body)


class Answer(NamedTuple):
  """Holds what the server wrote.

  Attributes:
    finish: why the text ended: 'eos' (the model ended it), STOPPED (at a stop),
      AMBIGUOUS (either of these), 'length', or the server's own word.
    tokens: tokens written, as billed; 0 if the server does not tell.
    prompt_tokens: tokens read, as billed; 0 if the server does not tell.
    likely: log-probabilities of the most likely first tokens, by their text;
      empty if they were not asked for, or the server does not tell.
  """

  text: str
  finish: str
  tokens: int
  prompt_tokens: int
  likely: Mapping[str, float] = types.MappingProxyType({})


class NoAnswer(ValueError):
  """Reports a reply without an answer; failures are counted by its text."""


def fault_of(status: int, text: str) -> str:
  """Returns whose fault a status other than 200 is.

  A bad key, account or address fails every call. Servers word all other 4xx
  refusals freely, and these may concern only this call.

  Returns:
    'the moment' (another attempt may succeed), 'the call', 'the key', 'the
    account', or 'the address' (of server, API or model).
  """
  try:
    body = json.loads(text)
  except (ValueError, RecursionError):
    body = None
  body = body if isinstance(body, dict) else {}
  error = body.get('error')
  error = error if isinstance(error, dict) else body
  if status == 402 or _UNPAID & {str(error.get(it)) for it in ('code', 'type')}:
    return 'the account'
  if error.get('code') == 'model_not_found' or error.get('param') == 'model':
    return 'the address'
  if status == 404 or status < 400:
    return 'the address'
  moderated = any(word in text.lower() for word in _CONTENT)
  if status == 401 or (status == 403 and not moderated):
    return 'the key'
  # With 501 a server says that it will never do this.
  if status in _PASSING or (status >= 500 and status != 501):
    return 'the moment'
  return 'the call'


def names_a_chain(text: str) -> bool:
  """Says whether our server refused for the sake of one of the chains."""
  try:
    match json.loads(text):
      case {'error': {'param': str(field)}}:
        return field.startswith('chains[')
  except (ValueError, RecursionError):
    pass
  return False


def read_json(text: str) -> Any:
  """Returns what a reply holds.

  Raises:
    NoAnswer: it is not JSON.
  """
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise NoAnswer('malformed JSON') from error


def believed_count(count: int) -> int:
  """Returns a count of tokens that a server tells, 0 if it is absurd."""
  return int(count) if count in _COUNTS else 0


def read_answer(text: str) -> Answer:
  """Returns the first choice in a reply's JSON, chat or completions.

  Raises:
    NoAnswer: it is not JSON, or there is no choice in it.
  """
  reply = read_json(text)
  match reply:
    case {'choices': [{'message': {'content': str(content)}} as choice, *_]}:
      pass
    # A reasoning model may be cut off before it answers.
    case {'choices': [{'message': {'content': None}} as choice, *_]}:
      content = ''
    case {'choices': [{'text': str(content)} as choice, *_]}:
      pass
    case _:
      raise NoAnswer('no choices')
  tokens = prompt_tokens = 0
  match reply:
    case {'usage': {'completion_tokens': int(m), 'prompt_tokens': int(n)}} if (
      m in _COUNTS and n in _COUNTS
    ):
      tokens, prompt_tokens = m, n
  finish = str(choice.get('finish_reason'))
  # OpenAI has one word for the model's own end and for a stop. vLLM and SGLang
  # tell which in these fields: only a stop is text.
  for name in ('stop_reason', 'matched_stop'):
    if finish == AMBIGUOUS and name in choice:
      finish = STOPPED if isinstance(choice[name], str) else 'eos'
  # JSON may escape half of a surrogate pair, which UTF-8 files cannot hold.
  content = content.encode('utf-8', 'replace').decode()
  return Answer(content, finish, tokens, prompt_tokens, read_likely(choice))


def read_likely(choice: Mapping[str, Any]) -> dict[str, float]:
  """Returns the log-probabilities of first tokens in a choice; {} for none."""
  match choice.get('logprobs'):
    case {'content': [{'top_logprobs': [*tokens]}, *_]}:  # of a chat
      pairs = [
        (each.get('token'), each.get('logprob'))
        for each in tokens
        if isinstance(each, dict)
      ]
    case {'top_logprobs': [{**found}, *_]}:  # of a completion
      pairs = list(found.items())
    case _:
      pairs = []
  return believed(dict(pairs))


def believed(likely: Mapping[Any, Any]) -> dict[str, float]:
  """Drops what is no text with a log-probability."""
  return {
    token: float(value)
    for token, value in likely.items()
    if isinstance(token, str)
    and isinstance(value, int | float)
    and math.isfinite(value)
    and value <= 0
  }

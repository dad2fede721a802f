"""One call to an OpenAI-compatible server, what comes back, answers on disk.

    reply -> read_up_to -> read_answer -> Answer, or Failure
    a status that is not 200 -> fault_of -> the moment's, the call's, or all's

`remote.py` sends the calls that no earlier run has the answer to. An answer is
on disk before it is handed on, so a job that is killed pays for nothing twice.
"""

import contextlib
import email.utils
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from prm_jax.runtime.errors import UserError

# Statuses below 500 that another attempt may change; 424 is that of TGI for a
# model that failed while it wrote.
_PASSING = (408, 409, 424, 425, 429)
# Codes and types of an account that can pay for nothing, whatever the status.
_UNPAID = {
  'insufficient_quota',
  'exceeded_current_quota_error',
  'billing_not_active',
  'billing_hard_limit_reached',
}
# With these words a status 403 is about what was asked and not about the key.
_CONTENT = ('content_filter', 'content_policy', 'flagged', 'moderation')
# In an item's place it shows whether all calls are refused.
_SHORT = 'What is 1 + 1?'
# Values of `Answer.finish`: OpenAI's word for two, and TGI's for one of them.
AMBIGUOUS = 'stop'
STOPPED = 'stop_sequence'
# Of tokens that a server may say; what is beyond a float's whole numbers is
# nobody's bill.
_COUNTS = range(2**53)


class Call(NamedTuple):
  """One answer that is wanted.

  Attributes:
    api: chat or completions.
    body: the whole request, JSON types only.
    sample: key, seed and number of the sample. Calls with equal bodies and
      different samples are different draws.
  """

  api: str
  body: dict[str, Any]
  sample: str

  def record(self) -> dict[str, Any]:
    """All that the answer depends on; where the server stands is no part."""
    return self._asdict()

  def digest(self) -> str:
    """Equal of equal calls: they are one draw."""
    text = json.dumps(self.record(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def shortened(self) -> 'Call':
    """The call with a short question in it, and all else as it is."""
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
  """What the server wrote.

  Attributes:
    finish: why it stopped: eos (by itself), STOPPED (where it was told to),
      AMBIGUOUS (one of these), length, or the server's own word.
    tokens: written, as billed; 0 where the server does not say.
    prompt_tokens: read, likewise.
  """

  text: str
  finish: str
  tokens: int
  prompt_tokens: int


class Failure(Exception):
  """An attempt that got no answer.

  Attributes:
    reason: what it is counted by.
    said: the words of a server that refused, on one line.
    wait: seconds that the server asks for.
    final: whether this call can never succeed.
  """

  def __init__(
    self, reason: str, said: str = '', wait: float = 0.0, final: bool = False
  ) -> None:
    super().__init__(reason)
    self.reason, self.said, self.wait, self.final = reason, said, wait, final


def read_up_to(most: int) -> Callable[[Any], Awaitable[None]]:
  """A hook of the HTTP client: reads a reply, hangs up on one too long.

  Args:
    most: bytes, counted after they were decompressed.
  """

  async def read(response: Any) -> None:
    # Older clients inflate a piece of such a reply at once, to any size.
    if ',' in response.headers.get('content-encoding', ''):
      raise Failure('a reply compressed twice', final=True)
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
      async for piece in pieces:
        body += piece
        if len(body) > most:
          raise Failure(f'a reply above {most:,} bytes', final=True)
    # Where the client's own `aread`, which knows no limit, would leave it.
    response._content = bytes(body)
    # JSON is UTF-8 (RFC 8259), whatever charset a header makes up.
    response.encoding = 'utf-8'

  return read


def fault_of(error: Any) -> str:
  """Whose fault a status other than 200 is.

  Key, account and address are the same for all calls. What else a server
  refuses with a 4xx it words as it likes, and it may be the one call.

  Args:
    error: the client's APIStatusError.

  Returns:
    'the moment' (another attempt may be answered), 'the call', 'the key',
    'the account', or 'the address': of server, API or model.
  """
  status, words = error.status_code, error.response.text.lower()
  if status == 402 or _UNPAID & {str(error.code), str(error.type)}:
    return 'the account'
  if error.code == 'model_not_found' or error.param == 'model':
    return 'the address'
  if status == 404 or status < 400:
    return 'the address'
  moderated = any(word in words for word in _CONTENT)
  if status == 401 or (status == 403 and not moderated):
    return 'the key'
  # 501 is a server's word for what it will never do.
  if status in _PASSING or (status >= 500 and status != 501):
    return 'the moment'
  return 'the call'


def retry_after(headers: Mapping[str, Any]) -> float:
  """Seconds that a server asks for, as a number or a date; 0: it does not."""
  text = headers.get('retry-after', '')
  try:
    seconds = float(text)
  except ValueError:
    try:
      at = email.utils.parsedate_to_datetime(text)
      seconds = at.timestamp() - time.time()
    except (ValueError, OverflowError):
      return 0.0
  return seconds if seconds > 0 else 0.0


def read_answer(text: str) -> Answer:
  """The first choice in a reply's JSON, chat or completions.

  Raises:
    Failure: it is not JSON, or there is no choice in it.
  """
  try:
    reply = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise Failure('malformed JSON') from error
  match reply:
    case {'choices': [{'message': {'content': str(said)}} as choice, *_]}:
      pass
    # A model that reasons may be cut before it says anything.
    case {'choices': [{'message': {'content': None}} as choice, *_]}:
      said = ''
    case {'choices': [{'text': str(said)} as choice, *_]}:
      pass
    case _:
      raise Failure('no choices')
  tokens = prompt_tokens = 0
  match reply:
    case {'usage': {'completion_tokens': int(m), 'prompt_tokens': int(n)}} if (
      m in _COUNTS and n in _COUNTS
    ):
      tokens, prompt_tokens = m, n
  finish = str(choice.get('finish_reason'))
  # OpenAI has one word for the model's own end and for a stop that was met. In
  # these vLLM and SGLang say which: text is a stop.
  for name in ('stop_reason', 'matched_stop'):
    if finish == AMBIGUOUS and name in choice:
      finish = STOPPED if isinstance(choice[name], str) else 'eos'
  # JSON can escape half of a character, which no file could hold.
  said = said.encode('utf-8', 'replace').decode()
  return Answer(said, finish, tokens, prompt_tokens)


class ReplyCache:
  """Answers on disk: a folder that processes may share, a file per call.

  Attributes:
    corrupt: entries met that could not be read.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    """Makes the folder; raises UserError where that cannot be done."""
    try:
      folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise UserError(
        f'{folder}: replies cannot be kept here: {error.strerror}'
      ) from error
    self._folder = folder
    self.corrupt = 0

  def path(self, call: Call) -> pathlib.Path:
    digest = call.digest()
    return self._folder / digest[:2] / f'{digest}.json'

  def read(self, call: Call) -> Answer | None:
    """The answer to the call, None where there is none to be read."""
    try:
      data = self.path(call).read_bytes()
    except FileNotFoundError:
      return None
    try:
      entry = json.loads(data)
    except ValueError:
      entry = None
    match entry:
      case {
        'call': dict(asked),
        'answer': {
          'text': str(text),
          'finish': str(finish),
          'tokens': int(tokens),
          'prompt_tokens': int(prompt_tokens),
        },
      } if asked == call.record():
        return Answer(text, finish, tokens, prompt_tokens)
    self.corrupt += 1
    return None

  def write(self, call: Call, answer: Answer) -> None:
    path = self.path(call)
    path.parent.mkdir(exist_ok=True)
    entry = {'call': call.record(), 'answer': answer._asdict()}
    # A file that bears its name is whole, whenever the process dies.
    part = path.with_suffix(f'.{os.getpid()}.part')
    part.write_text(json.dumps(entry))
    part.replace(path)

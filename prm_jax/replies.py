"""One call to an OpenAI-compatible server, its answer, and answers on disk.

`remote.py` sends the calls that no earlier run has the answer to. An answer is
on disk before it is handed on, so a job that is killed pays for nothing twice.
"""

import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple

from prm_jax.errors import UserError


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


class Answer(NamedTuple):
  """What the server wrote.

  Attributes:
    finish: why it stopped: stop, length, or the server's own word.
    tokens: written, as billed; 0 where the server does not say.
    prompt_tokens: read, likewise.
  """

  text: str
  finish: str
  tokens: int
  prompt_tokens: int


class BrokenReply(Exception):
  """Status 200, and no answer in it; the message says why, for counting."""


def read_answer(text: str) -> Answer:
  """The first choice in a reply's JSON, chat or completions.

  Raises:
    BrokenReply: it is not JSON, or there is no choice in it.
  """
  try:
    reply = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise BrokenReply('malformed JSON') from error
  match reply:
    case {'choices': [{'message': {'content': str(said)}} as choice, *_]}:
      pass
    # A model that reasons may be cut before it says anything.
    case {'choices': [{'message': {'content': None}} as choice, *_]}:
      said = ''
    case {'choices': [{'text': str(said)} as choice, *_]}:
      pass
    case _:
      raise BrokenReply('no choices')
  tokens = prompt_tokens = 0
  match reply:
    case {'usage': {'completion_tokens': int(m), 'prompt_tokens': int(n)}}:
      tokens, prompt_tokens = m, n
  # JSON can escape half of a character, which no file could hold.
  said = said.encode('utf-8', 'replace').decode()
  return Answer(said, str(choice.get('finish_reason')), tokens, prompt_tokens)


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
    text = json.dumps(call.record(), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
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

"""Renders a published model's chat template, and cuts the text into pieces.

`published_formats` renders it once, with a mark in place of every text that
differs between chains, and keeps the pieces between the marks. Templates are
downloaded programs, so they run in jinja2's sandbox, in a process of their own
(`template_program`) that may neither run for long nor take much memory.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prm_jax.models.hub import template_program
from prm_jax.models.hub.safetensors_files import read_json
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

Turns = Sequence[tuple[str, str]]  # role, content
Renderer = Callable[[Turns], str]


def special_tokens(directory: pathlib.Path) -> dict[str, str]:
  """Reads special tokens by their names.

  tokenizer_config.json counts, and what it leaves out is read from
  special_tokens_map.json, as transformers does.
  """
  found, kept = {}, directory / 'special_tokens_map.json'
  named = read_json(kept) if kept.is_file() else {}
  for name, value in {**named, **_tokenizer_config(directory)}.items():
    token = value.get('content') if isinstance(value, dict) else value
    if name.endswith('_token') and isinstance(token, str):
      found[name] = token
  return found


def chat_renderer(directory: pathlib.Path, fallback: str = '') -> Renderer:
  """Returns a function that renders turns, without a generation prompt.

  Args:
    directory: has a chat_template.jinja, or a tokenizer_config.json with a
      chat_template; transformers prefers the first, too.
    fallback: template to use if the folder has none.

  Raises:
    UserError: there is no template. The returned function raises it if the
      template is malformed or rejects the turns.
  """
  source = read_chat_template(directory) or fallback
  if not source:
    raise UserError(
      f'{directory} has no chat template; copy chat_template.jinja or '
      'tokenizer_config.json of the model into it'
    )
  return render_with(source, directory)


def render_with(source: str, directory: pathlib.Path) -> Renderer:
  """Returns a function that renders turns with a template.

  Args:
    source: the template.
    directory: of the model, for its special tokens and for errors.
  """

  values = special_tokens(directory)
  values |= {'tools': None, 'documents': None, 'add_generation_prompt': False}

  def render(turns: Turns) -> str:
    messages = [{'role': role, 'content': text} for role, text in turns]
    asked = {'source': source, 'values': values | {'messages': messages}}
    answer = _RENDERING.ask(asked)
    if 'error' in answer:
      why = ' '.join(answer['error'].split())
      raise UserError(
        f'{directory}: the chat template cannot be used ({why}); copy the '
        "one of the model's own folder"
      )
    return answer['text']

  return render


class _Rendering:
  """Holds the process that renders templates, once one is needed."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._process: subprocess.Popen | None = None

  def ask(self, asked: Mapping[str, Any]) -> dict[str, str]:
    """Returns the answer of template_program; an error if it has ended."""
    with self._lock:
      if self._process is None:
        self._process = subprocess.Popen(
          [sys.executable, '-P', template_program.__file__],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=subprocess.DEVNULL,
        )
      process, line = self._process, b''
      with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asked).encode() + b'\n')
        process.stdin.flush()
        line = process.stdout.readline()
      if line:
        return json.loads(line)
      process.kill()
      process.communicate()
      self._process = None
    return {
      'error': f'it needs more than {template_program.SECONDS} s or '
      f'{template_program.MEMORY / 2**20:.0f} MiB'
    }


_RENDERING = _Rendering()


def cut(text: str, marks: str, directory: pathlib.Path) -> list[str]:
  """Cuts a rendered text into the pieces before, between and after its marks.

  Args:
    marks: one character for each changing text, in their expected order.

  Raises:
    UserError: the template drops, repeats or reorders a text.
  """
  if [c for c in text if c in marks] != list(marks):
    raise UserError(
      f'{directory}: the chat template does not write the problem and every '
      "step exactly once, in order; copy the one of the model's own folder"
    )
  pieces, rest = [], text
  for mark in marks:
    piece, _, rest = rest.partition(mark)
    pieces.append(piece)
  return [*pieces, rest]


def _tokenizer_config(directory: pathlib.Path) -> dict:
  path = directory / 'tokenizer_config.json'
  return read_json(path) if path.is_file() else {}


def read_chat_template(directory: pathlib.Path) -> str:
  """Reads the Jinja text of a model's folder; '' if it has none."""
  path = directory / 'chat_template.jinja'
  if path.is_file():
    try:
      return paths.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
      raise UserError(
        f"{path} cannot be read ({error}); copy the one of the model's folder"
      ) from None
  found = _tokenizer_config(directory).get('chat_template') or ''
  if isinstance(found, list):  # several templates with names
    named = [each for each in found if isinstance(each, dict)]
    defaults = [e.get('template') for e in named if e.get('name') == 'default']
    found = defaults[0] if defaults else ''
  if not isinstance(found, str):
    raise UserError(
      f'{directory}: chat_template in tokenizer_config.json is no text; copy '
      "the one of the model's own folder"
    )
  return found

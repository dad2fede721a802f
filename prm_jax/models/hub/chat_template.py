"""Renders a published model's chat template, and cuts the text into pieces.

`published_formats` renders it once, with a mark in place of every text that
differs between chains, and keeps the pieces between the marks. Templates are
downloaded programs, so they run in jinja2's sandbox.
"""

import datetime
import pathlib
from collections.abc import Callable, Sequence

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prm_jax.models.hub.safetensors_files import read_json
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

Turns = Sequence[tuple[str, str]]  # role, content
Renderer = Callable[[Turns], str]


def special_tokens(directory: pathlib.Path) -> dict[str, str]:
  """Reads special tokens by their names in tokenizer_config.json."""
  found = {}
  for name, value in _tokenizer_config(directory).items():
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

  def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)

  # The same functions and variables that transformers offers to templates, as
  # far as turns of text need them.
  environment = ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=['jinja2.ext.loopcontrols'],
  )
  environment.globals['raise_exception'] = refuse
  environment.globals['strftime_now'] = lambda form: (
    datetime.datetime.now().strftime(form)
  )
  given = special_tokens(directory) | {'tools': None, 'documents': None}

  def render(turns: Turns) -> str:
    messages = [{'role': role, 'content': text} for role, text in turns]
    try:
      template = environment.from_string(source)
      return template.render(
        messages=messages, add_generation_prompt=False, **given
      )
    except Exception as error:  # a template is a program with any error
      raise UserError(
        f'{directory}: the chat template cannot be used ({error}); copy the '
        "one of the model's own folder"
      ) from None

  return render


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

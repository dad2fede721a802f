"""Renders chat templates in a process of its own, within limits.

    a line of JSON: source, values -> `render` -> a line of JSON: text or error

`chat_template` starts this file as a program. jinja2's sandbox keeps a template
from everything outside of it, but not from a loop without an end or a text that
fills the memory; there the system ends this process and no other. It starts in
a fraction of a second, so it imports nothing of this package.
"""

import contextlib
import datetime
import functools
import json
import resource
import signal
import sys
from typing import Any, ClassVar

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 5  # of the processor, for one text
MEMORY = 2**29  # bytes; Python and jinja2 need a tenth of them
LONGEST = 2_000_000  # characters of a text


def _refuse(message: str) -> None:
  raise jinja2.TemplateError(message)


class Generation(jinja2.ext.Extension):
  """Knows the tag with which transformers marks what a model writes."""

  tags: ClassVar = {'generation'}

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    """Returns what the tag encloses, as if the tag were not there."""
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


@functools.lru_cache(maxsize=8)
def _template(source: str) -> jinja2.Template:
  # The same functions and variables that transformers offers to templates, as
  # far as turns of text need them.
  environment = ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=['jinja2.ext.loopcontrols', Generation],
  )
  environment.filters['tojson'] = functools.partial(
    json.dumps, ensure_ascii=False
  )
  environment.globals['raise_exception'] = _refuse
  # Not today's: a job would ask otherwise tomorrow, and could not go on. Llama
  # 3's templates write this one where there is no clock.
  environment.globals['strftime_now'] = datetime.date(2024, 7, 26).strftime
  return environment.from_string(source)


def render(source: str, values: dict[str, Any]) -> dict[str, str]:
  """Returns {'text'}, or {'error'} if the template raises one."""
  try:
    text = _template(source).render(values)
  except Exception as error:  # a template is a program with any error
    return {'error': str(error) or type(error).__name__}
  if len(text) > LONGEST:
    return {'error': f'it writes {len(text):,} characters'}
  return {'text': text}


def main() -> None:
  """Answers each line of the input by one, until the input ends."""
  with contextlib.suppress(ValueError):  # macOS knows no such limit
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  # These are for the program that asks, which may have requests to answer yet;
  # when it ends, so does the input.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  # Ends the process even inside of one long operation.
  signal.signal(signal.SIGPROF, signal.SIG_DFL)
  for line in sys.stdin.buffer:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    answer = json.dumps(render(**json.loads(line)))
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(answer, flush=True)


if __name__ == '__main__':
  main()

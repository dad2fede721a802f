"""Renders hostile chat templates: nothing outside is reached, and none hangs.

    a way to do harm x a way to hide it -> chat_renderer -> text or UserError

The ways out of the sandbox try to read a file, run a program, write a file or
tell a secret of the environment; none of them may do it.
"""

import os
import pathlib
import random
import tempfile
import time

import numpy as np

from prm_jax.models.hub.chat_template import chat_renderer
from prm_jax.models.hub.template_program import LONGEST, SECONDS
from prm_jax.runtime.errors import UserError
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.mutations import damage, limited, python_random

SECRET = 'secret-of-the-environment'
GOOD = '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}'
TURNS = [('user', 'Q'), ('assistant', 'A')]
# Objects from which the rest of Python may be reached.
ROOTS = (
  *("''", '[]', '{}', '()', '1', 'none', 'true', 'messages', 'messages[0]'),
  *('range', 'dict', 'lipsum', 'cycler', 'joiner', 'namespace', 'self'),
  *('raise_exception', 'strftime_now', 'loop', 'caller', 'varargs', 'x'),
  *('cycler()', 'joiner()', 'namespace()', "''.format", "''|upper", '[].pop'),
  *("''.join", 'messages.append', 'messages[0].update', "'%s'|format"),
)
STEPS = (
  '.__class__.__mro__[-1].__subclasses__()',
  '.__class__.__base__.__subclasses__()',
  '.__init__.__globals__',
  '.__init__.__globals__.os.popen("touch PLACE").read()',
  '.__globals__.__builtins__.open("PLACE", "w").write("x")',
  '.__globals__["os"].environ["SECRET"]',
  '.__func__.__globals__.os.environ',
  '.__call__.__self__.__module__.os',
  '.gi_frame.f_back.f_globals',
  '.__reduce_ex__(2)',
  '.__getattribute__("__class__")',
  '["__class__"]["__mro__"]',
  '|attr("__class__")|attr("__mro__")',
  '|attr("\\x5f\\x5fclass\\x5f\\x5f")',
  '|map(attribute="__class__")|list',
  '|map("attr", "__class__")|list',
  '|groupby("__class__")|list',
  '|selectattr("__class__")|list',
  '|sum(attribute="__class__")',
  '|sort(attribute="__class__")',
  '._TemplateReference__context.eval_ctx.environment',
  '.__init__.__code__.co_consts',
  '.mro()',
)
TEXTS_OUT = (
  '{{ "{0.__class__.__mro__}".format(messages) }}',
  '{{ "{0.__class__.__init__.__globals__}".format(cycler) }}',
  '{{ "{x.__init__.__globals__[os].environ}".format_map({"x": cycler}) }}',
  '{{ ("{0.__cla" ~ "ss__}").format(1) }}',
  '{% set f = "{0.__class__}".format %}{{ f(1) }}',
  '{{ ["{0.__class__}"]|map("format", 1)|list }}',
  '{{ "".join(["{0.__class__}"|safe]).format(1) }}',
  '{% include "/etc/passwd" %}',
  '{% import "os" as os %}{{ os.system("touch PLACE") }}',
  '{% from "os" import system %}{{ system("touch PLACE") }}',
  '{% extends "/etc/passwd" %}',
  '{{ import("os") }}',
  '{{ open("/etc/passwd").read() }}',
  '{{ exec("1") }}{{ eval("1") }}',
  '{{ config }}{{ request }}{{ os.environ }}',
  '{{ self._TemplateReference__context }}',
  '{{ self.__init__.__globals__ }}',
  '{{ environment.globals }}',
  '{% do messages.append(1) %}',
  '{{ messages.append(1) }}',
  '{{ messages[0].update({"role": "x"}) }}',
  '{{ messages.clear() }}',
  '{% set messages = [] %}{{ messages }}',
  '{{ raise_exception("no") }}',
  '{{ raise_exception("two\nlines") }}',
  '{{ raise_exception(messages) }}',
  '{{ raise_exception() }}',
  '{{ strftime_now(1) }}',
  '{{ strftime_now("%" * 100) }}',
  '{{ strftime_now("%9999999999d") }}',
  '{{ strftime_now("\x00") }}',
  '{{ 1 / 0 }}',
  '{{ 10 ** 400 * 1.0 }}',
  '{{ "\\ud800" }}',
  '\ud800{{ 1 }}',
  '{{ missing.more }}',
  '{{ messages|tojson(indent=2) }}',
  '{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}',
  '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}',
  '{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f("a") }}',
  '{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}',
  '{% block a %}{{ self.a() }}{% endblock %}',
  '{% for i in range(10 ** 9) %}x{% endfor %}',
  '{% while true %}{% endwhile %}',
  '{%', '{{', '{#', '{% if %}', '{% endfor %}', '{{ }}', '{% raw %}',
  '{{ ' + '(' * 500 + '1' + ')' * 500 + ' }}',
  '{{ ' + '-' * 20_000 + '1 }}',
  '{{ ' + '1+' * 20_000 + '1 }}',
  '{{ ' + '[' * 5_000 + ']' * 5_000 + ' }}',
  '{{ x' + '.a' * 5_000 + ' }}',
  '{{ x' + '|upper' * 5_000 + ' }}',
  '{% if 1 %}' * 300 + '{% endif %}' * 300,
  '{% for a in [1] %}' * 50 + 'x' + '{% endfor %}' * 50,
)  # fmt: skip
_RUNS = '{% for R in range(99999) %}'
# Each takes all of the memory or of the time that it gets.
BOMBS = (
  '{{ "a" * 10 ** 10 }}',
  '{{ "a" * 10 ** 18 }}',
  '{{ [0] * 10 ** 10 }}',
  '{{ (2 ** (10 ** 9)) > 1 }}',
  '{{ 10 ** (10 ** 8) }}',
  '{{ "%9999999999d" % 1 }}',
  '{{ "%9999999999d"|format(1) }}',
  '{{ "{:9999999999}".format(1) }}',
  '{{ "a".center(10 ** 10) }}',
  '{{ "a".zfill(10 ** 10) }}',
  '{{ "a".ljust(10 ** 10) }}',
  '{{ ("\t").expandtabs(10 ** 10) }}',
  '{{ "a"|center(10 ** 10) }}',
  '{{ "a\nb"|indent(10 ** 10) }}',
  '{{ messages|tojson(indent=10 ** 10) }}',
  '{{ lipsum(n=10 ** 9) }}',
  '{{ lipsum(min=10 ** 9, max=10 ** 9 + 1) }}',
  '{{ [1]|batch(10 ** 9, 0)|list }}',
  '{{ [1]|slice(10 ** 9)|list }}',
  '{{ range(99999)|map("string")|join("a" * 99999) }}',
  '{{ ("a" * 99999)|replace("", "a" * 99999) }}',
  '{{ ("a" * 99999).replace("", "a" * 99999) }}',
  '{{ ("a" * 10 ** 6)|wordwrap(1) }}',
  '{{ ("a " * 10 ** 7)|title|length }}',
  '{{ ("&" * 10 ** 8)|escape|escape }}',
  '{{ ("http://a.b " * 10 ** 6)|urlize|length }}',
  '{{ ("<" * 10 ** 6)|striptags|length }}',
  _RUNS * 3 + '{% endfor %}' * 3,
  _RUNS * 3 + 'x' + '{% endfor %}' * 3,
  '{% for a in range(99999) for b in range(99999) %}{% endfor %}',
  '{% set n = namespace(x="a") %}'
  + _RUNS + '{% set n.x = n.x ~ n.x %}{% endfor %}',
  '{% set n = namespace(x=[1]) %}'
  + _RUNS + '{% set n.x = n.x + n.x %}{% endfor %}',
  '{% set n = namespace(x=3) %}'
  + _RUNS + '{% set n.x = n.x * n.x %}{% endfor %}',
  '{% set n = namespace(x=[]) %}'
  + _RUNS + '{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}',
  '{% set x %}{% for i in range(99999) %}aaaaaaaaaa{% endfor %}{% endset %}'
  '{{ range(9999)|map("replace", "", x)|list|length }}',
  '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}'
  '{% endmacro %}{{ f(60) }}',
  '{% for m in messages recursive %}{{ loop(messages) if loop.depth < 40 }}'
  '{% endfor %}',
  '{{ range(99999)|sum(start=2 ** 99999999) }}',
  '{{ range(99999)|list|sort|unique|list * 99999 }}',
  '{% for i in range(99999) %}{{ ("a" * 99999)|reverse }}{% endfor %}',
  '{{ (["a"] * 10 ** 7)|join }}',
)  # fmt: skip
HARMLESS = ('{% set y = EXPR %}', '{{ EXPR }}', '{% if EXPR %}{% endif %}')
WRAPS = (
  'BODY',
  '{% for m in messages %}BODY{% endfor %}',
  '{% macro g() %}BODY{% endmacro %}{{ g() }}',
  '{% set x %}BODY{% endset %}{{ x }}',
  '{% if messages|length == 2 %}BODY{% endif %}',
  '{% filter upper %}BODY{% endfilter %}',
  GOOD + 'BODY',
)


def escapes(place: pathlib.Path) -> list[str]:
  """Returns templates that try to reach what is outside."""
  found = [root + step for root in ROOTS for step in STEPS]
  return [text.replace('PLACE', str(place)) for text in found]


def drawn(draw: random.Random, place: pathlib.Path) -> str:
  """Returns one hostile template."""
  kind = draw.randrange(40)
  if kind == 0:
    body = draw.choice(BOMBS)
  elif kind < 10:
    body = draw.choice(TEXTS_OUT).replace('PLACE', str(place))
  elif kind < 14:
    data = damage(draw, (GOOD * 2).encode())
    return data.decode('utf-8', 'surrogateescape')
  else:
    body = draw.choice(HARMLESS).replace('EXPR', draw.choice(escapes(place)))
  return draw.choice(WRAPS).replace('BODY', body)


def check(source: str, folder: pathlib.Path, place: pathlib.Path) -> None:
  """Renders a template twice, and a good one afterwards."""
  data = source.encode('utf-8', 'surrogatepass')
  (folder / 'chat_template.jinja').write_bytes(data)
  try:
    text = chat_renderer(folder)(TURNS)
  except UserError as error:
    assert str(folder) in str(error)
    assert '\n' not in str(error), error
    text = str(error)
  else:
    assert isinstance(text, str)
    assert len(text) <= LONGEST
  assert SECRET not in text
  assert 'root:x:0' not in text
  assert not place.exists(), 'it has written a file'


def case(generator: np.random.Generator) -> int:
  draw = python_random(generator)
  os.environ['SECRET'] = SECRET
  with tempfile.TemporaryDirectory() as made, limited(5.0, 100):
    folder, place = pathlib.Path(made), pathlib.Path(made) / 'written'
    source = drawn(draw, place)
    before = time.monotonic()
    try:
      check(source, folder, place)
    except Exception as error:
      error.add_note(source[:2000])
      raise
    # The process may wait for others, but not for ever.
    assert time.monotonic() - before < 60 * SECONDS, source
    (folder / 'chat_template.jinja').write_text(GOOD)
    assert chat_renderer(folder)(TURNS) == '[user]Q[assistant]A'
  return 1


CAMPAIGN = Campaign('templates', 'hostile chat templates', 200, case)

if __name__ == '__main__':
  run(CAMPAIGN)

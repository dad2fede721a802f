"""How functions are cut, read from the syntax trees."""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Settings are made of a raw config here.
SETTINGS = pathlib.Path('prm_jax/jobs/settings')
# They pass a raw config on, or compare two, and know no key of it.
OPAQUE = {
  pathlib.Path('prm_jax/runtime') / name
  for name in ('checks.py', 'command_line.py', 'manifest.py', 'workdir.py')
}
MOST_PARAMETERS = 7
MOST_LINES_OF_RUN = 50
RAW = re.compile(r'(\w+\.)*config(\[.*\])*')
# Pure functions over arrays take what their formula has.
ARRAY_FUNCTIONS = {('sampler.py', 'sample_chunk')}


@functools.cache
def trees():
  """The syntax tree of every module; read in the process that checks them."""
  return {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for path in sorted((ROOT / 'prm_jax').rglob('*.py'))
  }


def functions(tree):
  return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]


def parameters(function):
  found = function.args
  every = [*found.posonlyargs, *found.args, *found.kwonlyargs]
  return [each for each in every if each.arg not in ('self', 'cls')]


def reads_of_a_raw_config(tree):
  """Lines with `config['key']` or `config.get('key')`."""
  for node in ast.walk(tree):
    key, value = None, None
    if isinstance(node, ast.Subscript):
      key, value = node.slice, node.value
    elif (
      isinstance(node, ast.Call)
      and isinstance(node.func, ast.Attribute)
      and node.func.attr == 'get'
      and node.args
    ):
      key, value = node.args[0], node.func.value
    named = isinstance(key, ast.Constant) and isinstance(key.value, str)
    if named and RAW.fullmatch(ast.unparse(value)):
      yield node.lineno


def test_the_reader_of_raw_configs():
  source = """
config['a']
config.get('b', 0)
self.config['c']['d']
configs[0]
settings.config.name
meta.get('config')
"""
  assert sorted(set(reads_of_a_raw_config(ast.parse(source)))) == [2, 3, 4]


def test_only_settings_are_made_of_a_raw_config():
  rooms = {path: tree for path, tree in trees().items() if len(path.parts) > 2}
  for path, tree in rooms.items():
    if path.is_relative_to(SETTINGS):
      continue
    assert not list(reads_of_a_raw_config(tree)), path
    if path in OPAQUE:
      continue
    raw = [
      f'{path}:{function.lineno} {function.name}'
      for function in functions(tree)
      for each in parameters(function)
      if each.arg == 'config'
      and each.annotation
      and re.match(r'(Mapping|dict|.*ConfigDict)', ast.unparse(each.annotation))
    ]
    assert not raw


def test_no_function_takes_more_than_seven_things():
  found = {
    (path.name, function.name)
    for path, tree in trees().items()
    for function in functions(tree)
    if len(parameters(function)) > MOST_PARAMETERS
  }
  assert found == ARRAY_FUNCTIONS


def test_the_run_of_a_job_is_read_at_one_glance():
  found = {}
  for path, tree in trees().items():
    if path.parent == pathlib.Path('prm_jax/jobs'):
      for function in functions(tree):
        if function.name == 'run':
          found[path.stem] = function.end_lineno - function.lineno + 1
  assert {'prm', 'policy', 'sample', 'label', 'search', 'rl'} <= found.keys()
  long = {name: n for name, n in found.items() if n > MOST_LINES_OF_RUN}
  assert not long

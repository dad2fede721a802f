"""The one-way order of imports between rooms, read from the syntax trees."""

import ast
import functools
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = 'prm_jax'
# Floors from the ground up: a room imports only from floors below its own.
FLOORS = (
  {'runtime'},
  {'data'},
  {'models'},
  {'training'},
  {'inference'},
  {'labels', 'search', 'evals'},
  {'rl', 'report'},
  {'jobs'},
  {'aot'},
  {'abstain', 'export', 'main'},
  {'serve'},
)
LEVEL = {name: i for i, floor in enumerate(FLOORS) for name in floor}
# What the package itself hands out: `prm_jax.load`.
PUBLIC = {'inference', 'report'}
# The public names, the subpackages, and the commands.
MOST_ENTRIES = 17
MOST_LINES = 400
NOWHERE = {'clu', 'pickle', 'tensorflow', 'torch', 'transformers', 'dill'}


def modules(folder):
  """Returns the dotted names of all modules of a folder, with their files."""
  found = {}
  for path in sorted((ROOT / folder).rglob('*.py')):
    parts = path.relative_to(ROOT).with_suffix('').parts
    found['.'.join(p for p in parts if p != '__init__')] = path
  return found


MODULES = modules(PACKAGE)
TESTS = modules('tests')


def imports_of(source, module, is_package=False):
  """Dotted names that a module imports, also inside functions.

  `from a import b` gives a.b where that is a module of the package or of its
  tests, else a.
  """
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        package = module.split('.') + ['_'] * is_package
        base = '.'.join([*package[: -node.level], *filter(None, [base])])
      for alias in node.names:
        deeper = f'{base}.{alias.name}'
        names.add(deeper if deeper in MODULES | TESTS else base)
  return names


def imports(module):
  path = MODULES[module]
  return imports_of(path.read_text(), module, path.name == '__init__.py')


def room(module):
  """'data' for prm_jax.data.readers.trees, '' for the package itself."""
  return [*module.split('.'), ''][1]


def test_the_reader_of_imports():
  source = (
    'import os, jax.numpy as jnp\n'
    'from prm_jax.training import losses\n'
    'from prm_jax.inference.score import aggregate\n'
    'from . import steps\n'
    'def f():\n  from ..training.loop import fit\n'
  )
  assert imports_of(source, 'prm_jax.evals.suite') == {
    'os',
    'jax.numpy',
    'prm_jax.training.losses',
    'prm_jax.inference.score',
    'prm_jax.evals.steps',
    'prm_jax.training.loop',
  }
  assert imports_of('from . import steps', 'prm_jax.evals', True) == {
    'prm_jax.evals.steps'
  }


def test_every_room_is_on_one_floor():
  assert sum(map(len, FLOORS)) == len(LEVEL)
  assert {room(module) for module in MODULES} - {''} == LEVEL.keys()
  assert 1 + len(LEVEL) <= MOST_ENTRIES


def test_no_file_is_long():
  lengths = {
    name: len(path.read_text().splitlines()) for name, path in MODULES.items()
  }
  assert {name for name, n in lengths.items() if n > MOST_LINES} == set()


@pytest.mark.parametrize('module', MODULES)
def test_a_room_imports_only_from_floors_below(module):
  own = [name for name in imports(module) if name.split('.')[0] == PACKAGE]
  if module == PACKAGE:
    assert {room(name) for name in own} <= PUBLIC
    return
  # Importing the package itself would import its public names.
  assert PACKAGE not in own
  above = sorted(
    name
    for name in own
    if room(name) != room(module) and LEVEL[room(name)] >= LEVEL[room(module)]
  )
  assert not above, f'{module} imports {above}, which are not below it'


def test_no_circles():
  graph = {
    module: imports(module) & MODULES.keys() - {module} for module in MODULES
  }
  order = list(graphlib.TopologicalSorter(graph).static_order())
  assert set(order) == set(MODULES)


@functools.cache
def sources(folder):
  """Every Python file of a folder with the packages that it imports."""
  return [
    (
      path.relative_to(ROOT),
      {name.split('.')[0] for name in imports_of(path.read_text(), '')},
    )
    for path in sorted((ROOT / folder).rglob('*.py'))
  ]


def test_nothing_imports_what_the_project_does_without():
  for path, packages in sources(PACKAGE) + sources('configs'):
    assert not packages & NOWHERE, path


def test_orbax_is_imported_in_one_file():
  found = [str(path) for path, used in sources(PACKAGE) if 'orbax' in used]
  assert found == ['prm_jax/runtime/checkpoints.py']


def test_flax_is_imported_in_models_only():
  found = [path for path, packages in sources(PACKAGE) if 'flax' in packages]
  assert found
  assert all(path.parts[:2] == (PACKAGE, 'models') for path in found)


def test_configs_import_only_ml_collections_and_what_they_share():
  found = dict(sources('configs'))
  common = found.pop(pathlib.Path('configs/common.py'))
  standard = {'collections', 'functools', 'typing'}
  assert common - standard == {'ml_collections', 'prm_jax'}
  assert found
  for path, packages in found.items():
    assert packages - standard == {'ml_collections', 'configs'}, path


def test_the_package_stands_on_its_own():
  for path, packages in sources(PACKAGE):
    assert not packages & {'experiments', 'colab', 'configs', 'tests'}, path


def imported_tests(source, module):
  """Returns the test modules that a module of the tests imports."""
  names = imports_of(source, module)
  return sorted(
    name
    for name in names & TESTS.keys()
    if name.rpartition('.')[2].startswith('test_')
  )


@pytest.mark.parametrize(
  'source',
  [
    'from tests.jobs.test_main import HUMAN',
    'from tests.jobs import test_main',
    'import tests.jobs.test_main',
    'def f():\n  from .test_main import HUMAN',
    'from . import test_main',
  ],
)
def test_an_import_of_a_test_module_is_found(source):
  source += '\nfrom tests.shared import command_line\n'
  assert imported_tests(source, 'tests.jobs.test_x') == ['tests.jobs.test_main']


def test_no_module_imports_a_test_module():
  """What several tests share is in a plainly named module beside them."""
  found = {
    name: imported_tests(path.read_text(), name) for name, path in TESTS.items()
  }
  assert {name: tests for name, tests in found.items() if tests} == {}

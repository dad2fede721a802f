"""The one-way order of imports, read from the syntax trees.

DESIGN.md, section 2: left may never import right. Within a layer modules may
import each other, but never in a circle.
"""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = 'prm_jax'
# Left to right; a module or folder below prm_jax is in exactly one of them.
LAYERS = (
  {
    'chains',
    'checkpoints',
    'compiled',
    'encoding',
    'errors',
    'finite',
    'manifest',
    'metrics',
    'optim',
    'paths',
    'policy',
    'profiling',
    'processes',
    'sharding',
    'stopping',
    'tokenizer',
    'verify',
  },
  {'models'},
  {
    'batching',
    'cache_shardings',
    'chain_scorer',
    'chat_template',
    'data',
    'domains',
    'endpoint',
    'generate',
    'generator',
    'kept_chains',
    'loading',
    'losses',
    'prefix_store',
    'pretrained',
    'published',
    'published_formats',
    'recorded_policy',
    'remote',
    'replies',
    'score',
    'scorer',
    'train_state',
    'tree_scorer',
    'usage',
  },
  {'labels', 'objective', 'rounds', 'search', 'train'},
  {'rl'},
  {'evals'},
  {'report'},
  {
    'abstain',
    'aot',
    'aot_programs',
    'aot_rl',
    'export',
    'hacking_watch',
    'label_job',
    'main',
    'policies',
    'policy_job',
    'prm_job',
    'rl_job',
    'rl_meshes',
    'rl_rating',
    'rl_settings',
    'sample_job',
    'search_job',
    'selections',
    'settings',
    'step_scorers',
    'training',
  },
)
LEVEL = {name: i for i, layer in enumerate(LAYERS) for name in layer}
# What the package itself hands out at its front door: `prm_jax.load`.
FRONT_DOOR = {'loading', 'report', 'scorer'}
NOWHERE = {'clu', 'pickle', 'tensorflow', 'torch', 'transformers', 'dill'}


def modules():
  """Dotted names of every module of the package, with their files."""
  found = {}
  for path in sorted((ROOT / PACKAGE).rglob('*.py')):
    parts = path.relative_to(ROOT).with_suffix('').parts
    found['.'.join(p for p in parts if p != '__init__')] = path
  return found


MODULES = modules()


def imports_of(source, module, is_package=False):
  """Dotted names that a module imports, also inside functions.

  `from a import b` gives a.b where that is a module of the package, else a.
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
        names.add(deeper if deeper in MODULES else base)
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
    'from prm_jax import losses\n'
    'from prm_jax.score import aggregate\n'
    'from . import steps\n'
    'def f():\n  from ..train import fit\n'
  )
  assert imports_of(source, 'prm_jax.evals.suite') == {
    'os',
    'jax.numpy',
    'prm_jax.losses',
    'prm_jax.score',
    'prm_jax.evals.steps',
    'prm_jax.train',
  }
  assert imports_of('from . import steps', 'prm_jax.evals', True) == {
    'prm_jax.evals.steps'
  }


def test_every_module_is_in_one_layer():
  assert sum(map(len, LAYERS)) == len(LEVEL)
  rooms = {room(module) for module in MODULES} - {''}
  assert rooms <= LEVEL.keys(), f'in no layer: {rooms - LEVEL.keys()}'
  assert {'chains', 'models', 'score', 'train', 'main'} <= rooms


@pytest.mark.parametrize('module', MODULES)
def test_left_never_imports_right(module):
  own = [name for name in imports(module) if name.split('.')[0] == PACKAGE]
  if module == PACKAGE:
    assert {room(name) for name in own} <= FRONT_DOOR
    return
  # Importing the package itself would import its front door.
  assert PACKAGE not in own
  level = LEVEL[room(module)]
  later = sorted(name for name in own if LEVEL[room(name)] > level)
  assert not later, f'{module} imports {later}, which come after it'


def test_no_circles():
  graph = {
    module: imports(module) & MODULES.keys() - {module} for module in MODULES
  }
  order = list(graphlib.TopologicalSorter(graph).static_order())
  assert set(order) == set(MODULES)


def sources(*folders):
  """Every Python file of some folders with the packages that it imports."""
  for folder in folders:
    for path in sorted((ROOT / folder).rglob('*.py')):
      names = imports_of(path.read_text(), '')
      yield path.relative_to(ROOT), {name.split('.')[0] for name in names}


def test_nothing_imports_what_the_project_does_without():
  for path, packages in sources(PACKAGE, 'configs'):
    assert not packages & NOWHERE, path


def test_orbax_is_imported_in_one_file():
  found = [str(path) for path, used in sources(PACKAGE) if 'orbax' in used]
  assert found == ['prm_jax/checkpoints.py']


def test_flax_is_imported_in_models_only():
  found = [path for path, packages in sources(PACKAGE) if 'flax' in packages]
  assert found
  assert all(path.parts[:2] == (PACKAGE, 'models') for path in found)


def test_configs_import_only_ml_collections():
  found = list(sources('configs'))
  assert found
  for path, packages in found:
    assert packages <= {'ml_collections'}, path


def test_the_package_stands_on_its_own():
  for path, packages in sources(PACKAGE):
    assert not packages & {'experiments', 'colab', 'configs', 'tests'}, path

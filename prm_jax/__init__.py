"""Process reward models in JAX: score every step of a reasoning chain.

    import prm_jax
    prm = prm_jax.load('/tmp/prm_math')
    prm.score('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])

This is the package's front door: it hands out the names that a user of a
trained model needs, and the rooms `prm_jax.search` and `prm_jax.rl`, which are
imported when they are first used.
"""

import importlib
import types

from prm_jax.inference.loading import load, load_policy
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.scorer import Scorer
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.report.notebook import show

__all__ = [
  'SamplingConfig',
  'Scorer',
  'TreeScorer',
  'load',
  'load_policy',
  'show',
]
_ROOMS = ('rl', 'search')


def __getattr__(name: str) -> types.ModuleType:
  """Imports one of the rooms when it is first asked for."""
  if name in _ROOMS:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

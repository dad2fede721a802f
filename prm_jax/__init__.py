"""Process reward models in JAX: score every step of a reasoning chain.

    import prm_jax
    prm = prm_jax.load('/tmp/prm_math')
    prm.score('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])

These are the public names for users of a trained model. The subpackages
`prm_jax.search` and `prm_jax.rl` are imported when they are first used.
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
_SUBPACKAGES = ('rl', 'search')


def __getattr__(name: str) -> types.ModuleType:
  """Imports a subpackage at its first use."""
  if name in _SUBPACKAGES:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

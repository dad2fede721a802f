"""Process reward models in JAX: score every step of a reasoning chain.

import prm_jax
prm = prm_jax.load('/tmp/prm_math')
prm.score('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])
"""

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

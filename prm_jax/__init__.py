"""Process reward models in JAX: score every step of a reasoning chain.

import prm_jax
prm = prm_jax.load('/tmp/prm_math')
prm.score('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])
"""

from prm_jax.loading import load
from prm_jax.report.notebook import show
from prm_jax.scorer import Scorer

__all__ = ['Scorer', 'load', 'show']

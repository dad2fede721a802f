"""Test-time search: `run` searches problems with any policy and any PRM."""

from prm_jax.search.run import Found, run

__all__ = ['Found', 'run']

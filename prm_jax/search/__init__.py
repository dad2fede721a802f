"""Searches for the best chain at test time, with any policy and any PRM.

`run` searches problems from Python. A method (`beam`, `best_of_n`, `mcts`, ...)
proposes steps with the policy and chooses by the scores of the PRM;
docs/search.md lists them all.
"""

from prm_jax.search.method import Task
from prm_jax.search.run import Found, RunConfig, run

__all__ = ['Found', 'RunConfig', 'Task', 'run']

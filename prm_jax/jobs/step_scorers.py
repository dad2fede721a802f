"""Opens the PRM that a job asks, by the prm section of a config.

    PrmConfig -> StepScorer (inference/protocols.py), or None

A search scores chains as they grow, and each process asks for its own. RL
scores whole chains, and all processes ask for them together.
"""

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference import loading
from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import StepScorer
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.jobs.settings.models import GrowingPrmConfig, PrmConfig
from prm_jax.runtime.sharding import flat_mesh


def open_tree_scorer(
  config: GrowingPrmConfig, solver: ArithmeticConfig
) -> StepScorer | None:
  """Opens a PRM for chains that grow, in every process a copy of its own.

  Args:
    solver: the arithmetic domain, whose values the exact PRM gives.

  Returns:
    None where the config says that there is no PRM.
  """

  def load() -> TreeScorer:
    mesh = flat_mesh(jax.local_devices())
    scorer = loading.load(config.path, style=config.style, mesh=mesh)
    return TreeScorer(scorer, config.rows, scorer.name)

  return _open(config, solver, load)


def open_chain_scorer(
  config: PrmConfig, solver: ArithmeticConfig, mesh: Mesh, dtype: str = ''
) -> StepScorer | None:
  """Opens a PRM for whole chains, which all processes of a mesh ask alike.

  Args:
    solver: the arithmetic domain, whose values the exact PRM gives.
    dtype: what its backbone is kept and computed in; '' is a run's own, and
      float32 for a published PRM.

  Returns:
    None where the config says that there is no PRM.
  """

  def load() -> ChainScorer:
    return ChainScorer(
      loading.load(config.path, style=config.style, mesh=mesh, dtype=dtype)
    )

  return _open(config, solver, load)


def _open(
  config: PrmConfig,
  solver: ArithmeticConfig,
  load: Callable[[], StepScorer],
) -> StepScorer | None:
  if config.kind == 'exact':
    return ExactScorer(solver, config.exact)
  return load() if config.kind == 'workdir' else None

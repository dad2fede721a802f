"""Opens the PRM that a search or an evaluation asks.

    settings.prm -> open_prm -> StepScorer (inference/protocols.py)

`policies.py` does the same for policies, and `rl_rating.py` for RL, whose PRM
may learn.
"""

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference import loading
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import StepScorer
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.jobs import policies
from prm_jax.jobs.critics import open_generative
from prm_jax.jobs.meshes import own_mesh
from prm_jax.jobs.settings.evaluate import EvaluateSettings
from prm_jax.jobs.settings.search import SearchSettings
from prm_jax.runtime.workdir import Workdir


def open_prm(
  settings: SearchSettings | EvaluateSettings,
  solver: ArithmeticConfig,
  workdir: Workdir,
) -> StepScorer:
  """Opens a copy of the PRM in each process.

  Processes ask independently, each for its own problems.

  Args:
    solver: the solver whose values an exact PRM knows.
  """
  prm = settings.prm
  if prm.kind == 'exact':
    return ExactScorer(solver, prm.exact)
  if prm.kind == 'endpoint':
    return policies.open_remote_prm(prm.endpoint, workdir)
  if prm.kind == 'generative':
    mesh = own_mesh(settings.mesh)
    return open_generative(prm.generative, settings.seed, mesh, workdir)
  scorer = loading.load(
    prm.path,
    style=prm.style,
    mesh=own_mesh(settings.mesh),
    dtype=prm.dtype,
  )
  return TreeScorer(scorer, prm.rows, scorer.name)

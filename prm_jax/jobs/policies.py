"""Opens the policy or judge that a job of many items asks.

    ItemSettings -> open_policy -> Policy or Judge (inference/protocols.py)

`settings/policies.py` has the section, with the checks that open nothing.
"""

from jax.sharding import Mesh

from prm_jax.inference import loading
from prm_jax.inference.protocols import Policy, StepScorer
from prm_jax.inference.recorded_policy import RecordedPolicy, open_recorded
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.jobs.meshes import own_mesh
from prm_jax.jobs.settings.items import ItemSettings
from prm_jax.jobs.settings.policies import PolicyConfig
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir

# Folders of a workdir, as `usage.read` takes them.
USAGE, PRM_USAGE = 'usage', 'prm_usage'


def open_policy(settings: ItemSettings, workdir: Workdir) -> Policy:
  """Opens the policy that a job asks; a server is a Judge, too.

  Raises:
    UserError: the policy is missing, or is not a policy.
  """
  config, seed = settings.policy, settings.seed
  if config.kind == 'solver':
    return SolverPolicy(config.solver, seed)
  if config.kind == 'workdir':
    return open_trained(config, seed, own_mesh(settings.mesh))
  if config.kind == 'recorded':
    return open_recording(config)
  return open_endpoint(config, seed, workdir)


def open_trained(config: PolicyConfig, seed: int, mesh: Mesh) -> Policy:
  """Opens a copy of a trained policy in each process.

  Processes ask independently, each for its own items.
  """
  return loading.load_policy(
    config.workdir, config.sampling, seed=seed, mesh=mesh, dtype=config.dtype
  )


def open_recording(config: PolicyConfig) -> RecordedPolicy:
  """Opens the chains of a sampling job as a policy that replays them."""
  return open_recorded(config.workdir, 'policy.workdir')


def open_endpoint(
  config: PolicyConfig, seed: int, workdir: Workdir
) -> Endpoint:
  """Opens a client of a server, which is a Policy and a Judge.

  Its answers are kept in the job's workdir unless a cache is named: they cost
  money, and a process that is killed would lose a round of them.
  """
  return Endpoint(
    config.endpoint.to_config(seed),
    config.cache or workdir / 'replies',
    workdir / USAGE / f'process-{processes.index()}.jsonl',
  )


def open_remote_prm(config: PrmServerConfig, workdir: Workdir) -> StepScorer:
  """Opens a client of a server that scores steps.

  Args:
    workdir: where its calls are counted.

  Raises:
    UserError: a package or the key is missing, or the workdir is in a bucket.
  """
  workdir.check_local('a job with a PRM at a server')
  try:
    from prm_jax.inference.server.step_scores import (  # noqa: PLC0415
      RemotePrm,
    )
  except ModuleNotFoundError as error:
    raise UserError(
      f'config.prm.endpoint.base_url={config.base_url!r}: servers need the '
      f"package {error.name}: pip install 'openai>=3'"
    ) from error
  log = f'process-{processes.index()}.jsonl'
  return RemotePrm(config, workdir / PRM_USAGE / log)

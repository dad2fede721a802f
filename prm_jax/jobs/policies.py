"""Opens the policy or judge that a job asks, by the policy section of a config.

    PolicyConfig -> open_policy -> Policy or Judge (inference/protocols.py)

`settings/policies.py` has the section and checks what can be seen of it without
opening anything.
"""

import jax

from prm_jax.inference import loading
from prm_jax.inference.protocols import Policy
from prm_jax.inference.recorded_policy import RecordedPolicy, open_recorded
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.jobs.settings.policies import PolicyConfig
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.runtime.workdir import Workdir

USAGE = 'usage'  # folder of a workdir, as `usage.read` takes it


def open_policy(config: PolicyConfig, seed: int, workdir: Workdir) -> Policy:
  """Opens the policy that a config describes; a server is a Judge, too.

  Args:
    seed: seed of its samples.
    workdir: that of the job that asks it.

  Raises:
    UserError: the policy is not where the config says, or is no policy.
  """
  if config.kind == 'solver':
    return SolverPolicy(config.solver, seed)
  if config.kind == 'workdir':
    return open_trained(config, seed)
  if config.kind == 'recorded':
    return open_recording(config)
  return open_endpoint(config, seed, workdir)


def open_trained(config: PolicyConfig, seed: int) -> Policy:
  """Opens a trained policy, in every process a copy of its own.

  Each process asks what its own items want, and others ask something else.
  """
  mesh = flat_mesh(jax.local_devices())
  return loading.load_policy(
    config.workdir, config.sampling, seed=seed, mesh=mesh
  )


def open_recording(config: PolicyConfig) -> RecordedPolicy:
  """Opens the chains of a sampling job, which answer as a policy would."""
  return open_recorded(config.workdir, 'policy.workdir')


def open_endpoint(
  config: PolicyConfig, seed: int, workdir: Workdir
) -> Endpoint:
  """Opens a client of a server, which is a Policy and a Judge.

  Its answers are kept in the job's workdir unless a cache is named: they were
  paid for, and a process that is killed loses a round of them.
  """
  return Endpoint(
    config.endpoint.to_config(seed),
    config.cache or workdir / 'replies',
    workdir / USAGE / f'process-{processes.index()}.jsonl',
  )

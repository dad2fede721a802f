"""From a config's `policy` section to a Policy or Judge, for jobs that ask one.

The section has `kind` and, for each kind, what it needs; what it asks for is
the same in every job.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference import loading
from prm_jax.inference.driver import AT_ONCE
from prm_jax.inference.protocols import Policy
from prm_jax.inference.recorded_policy import RecordedPolicy, open_recorded
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.server.endpoint import Endpoint, EndpointConfig
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.jobs import engine
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import flat_mesh

CALLS_A_CONNECTION = 8
SAMPLES_A_SLOT = 16


def open_solver(
  config: Mapping[str, Any], seed: int, workdir: paths.Path
) -> SolverPolicy:
  """The solver of the arithmetic domain."""
  del workdir
  return SolverPolicy(ArithmeticConfig(**config['solver']), seed)


def open_workdir(
  config: Mapping[str, Any], seed: int, workdir: paths.Path
) -> Policy:
  """A trained model."""
  del workdir
  if not config['workdir']:
    raise UserError(
      'policy.workdir is empty; name the --workdir of a trained policy '
      '(configs/policy_math.py)'
    )
  sampling = SamplingConfig(**config['sampling'])
  # Each process has a copy, as each asks what its own items want.
  mesh = flat_mesh(jax.local_devices())
  return loading.load_policy(config['workdir'], sampling, seed=seed, mesh=mesh)


def open_endpoint(
  config: Mapping[str, Any], seed: int, workdir: paths.Path
) -> Endpoint:
  """A server, which is a Policy and a Judge.

  Its answers are kept in the job's workdir, unless a cache is named: they were
  paid for, and a round of them may be lost with its process.
  """
  given = dict(config['endpoint'])
  for name in ('extra', 'extra_after_steps'):
    given[name] = _read_object(f'policy.endpoint.{name}', given[name])
  settings = EndpointConfig(**given, seed=seed)
  log = workdir / engine.USAGE / f'process-{processes.index()}.jsonl'
  return Endpoint(settings, config['cache'] or workdir / 'replies', log)


def _read_object(flag: str, text: str) -> dict[str, Any]:
  """What a flag says: the command line sets only fields that are there."""
  try:
    value = json.loads(text)
  except ValueError:
    value = None
  if not isinstance(value, dict):
    raise UserError(
      f'{flag}={text!r}: expected a JSON object, such as \'{{"top_k": 20}}\''
    )
  return value


def open_recording(
  config: Mapping[str, Any], seed: int, workdir: paths.Path
) -> RecordedPolicy:
  """What a sampling job wrote."""
  del seed, workdir
  if not config['workdir']:
    raise UserError(
      'policy.workdir is empty; name the --workdir of a sampling job '
      '(configs/sample_math.py)'
    )
  return open_recorded(config['workdir'], 'policy.workdir')


KINDS = {
  'solver': open_solver,
  'workdir': open_workdir,
  'endpoint': open_endpoint,
  'recorded': open_recording,
}
# Who can be asked as what. What labels and samples wants something new.
ASKED_AS = {
  'policy': ('solver', 'workdir', 'endpoint'),
  'policy to search with': tuple(KINDS),
  'judge': ('endpoint',),
}


def check(config: Mapping[str, Any], asks: str = 'policy') -> None:
  """Raises UserError for what can be seen without opening anything.

  Args:
    asks: one of ASKED_AS.
  """
  if config['kind'] not in ASKED_AS[asks]:
    raise UserError(
      f'policy.kind={config["kind"]!r}: as a {asks} expected one of '
      f'{", ".join(ASKED_AS[asks])}'
    )


def open_policy(
  config: Mapping[str, Any], seed: int, workdir: paths.Path
) -> Policy:
  """The policy that a config describes.

  Args:
    config: the policy section.
    seed: of its samples.
    workdir: of the job that asks it.
  """
  return KINDS[config['kind']](config, seed, workdir)


def at_once(config: Mapping[str, Any]) -> int:
  """Samples to ask for in one round.

  Few take seconds where many would take hours, and they still keep slots and
  connections busy: only the last to each of them leaves others waiting.
  """
  if config['kind'] == 'endpoint':
    return CALLS_A_CONNECTION * config['endpoint']['concurrency']
  if config['kind'] == 'workdir':
    return SAMPLES_A_SLOT * config['sampling']['slots']
  return AT_ONCE

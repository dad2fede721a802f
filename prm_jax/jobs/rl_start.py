"""Opens the policy that an RL job starts from.

Only its description is read here; its parameters come later, from `Start.load`.
"""

import dataclasses
from typing import Any, NamedTuple

from jax.sharding import Mesh

from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.runtime import checks, paths
from prm_jax.runtime.errors import UserError

BEST_METRIC = 'eval/accuracy'


class Start(NamedTuple):
  """Describes a trained policy from which training starts.

  Attributes:
    folder: the workdir of its run.
    was: its description as it was trained.
    described: its description as it is computed and trained from now on.
    step: step of its checkpoint.
  """

  folder: paths.Path
  was: ModelDescription
  described: ModelDescription
  step: int

  @property
  def name(self) -> str:
    """Returns the name of its run and checkpoint."""
    return loading.run_name(self.folder, self.step)

  def load(self, mesh: Mesh, param_dtype: str = '') -> Any:
    """Loads its backbone onto the mesh, with adapters merged.

    Args:
      param_dtype: dtype of the parameters; '' is as it was trained.
    """
    was = self.was
    if param_dtype:
      was = was.with_model(param_dtype=param_dtype)
    params, _, _ = loading.open_checkpoint(
      self.folder, was, self.step, mesh=mesh
    )
    return params['backbone']

  def load_to_train(self, mesh: Mesh) -> Any:
    """Loads what training starts from: float32, unless adapters learn alone."""
    return self.load(mesh, '' if self.described.lora.rank else 'float32')


def open_start(name: str, settings: RlSettings) -> Start:
  """Reads how a policy was trained; `load` reads its parameters.

  Args:
    name: its workdir.

  Raises:
    UserError: there is no policy.
  """
  if not name:
    checks.fail(
      'config.policy.workdir',
      name,
      'expected the --workdir of a trained policy (configs/policy_math.py)',
    )
  folder = paths.open_path(name)
  if not loading.is_run(folder):
    raise UserError(
      f'{folder} holds no model.json of a training run; name the workdir of a '
      'policy, as configs/policy_math.py trains one'
    )
  was = loading.read_description(folder)
  if was.head is not None or was.format.end is None:
    raise UserError(
      f'{folder} holds a reward model, which writes nothing; name the workdir '
      'of a policy'
    )
  described = dataclasses.replace(
    was.with_model(**settings.model.given(was.model.dtype)),
    lora=settings.lora,
    best_metric=BEST_METRIC,
  )
  return Start(folder, was, described, loading.best_step(folder, was))

"""Defines how every job that asks a PRM names it."""

import dataclasses
from typing import Annotated

from prm_jax.inference.published import STYLES
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.jobs.settings.critics import GenerativeConfig
from prm_jax.models.config import DTYPES
from prm_jax.runtime import checks
from prm_jax.runtime.checks import one_of


@dataclasses.dataclass(frozen=True)
class AskedPrmConfig:
  """Says which PRM is asked; jobs add kinds and settings of their own.

  Attributes:
    kind: 'workdir', a trained or published PRM; 'endpoint', one at a server;
      'generative', a critic that writes.
    path: the workdir of a trained PRM, the folder of a published one, or
      hf://owner/name.
    style: prompt style of a published PRM whose files do not name one.
    dtype: dtype of its parameters and computation; '' is bfloat16 on a TPU or
      GPU; on a CPU as it was trained, but float32 where bfloat16 is slow.
    endpoint: the server of kind 'endpoint'.
    generative: the critic of kind 'generative'.
  """

  kind: Annotated[str, one_of('workdir', 'endpoint', 'generative')] = 'workdir'
  path: str = ''
  style: Annotated[str, one_of('', *STYLES)] = ''
  dtype: Annotated[str, one_of('', *DTYPES)] = ''
  endpoint: PrmServerConfig = PrmServerConfig()
  generative: GenerativeConfig = GenerativeConfig()

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def trained(self) -> tuple[str, ...]:
    """Returns the models that give the scores, as `check_unseen` takes them."""
    of_kind = {
      'workdir': (self.path,),
      'generative': (self.generative.trained,),
    }
    return of_kind.get(self.kind, ())

  def check_use(self, described: bool = False) -> None:
    """Checks that its kind has what it needs.

    Args:
      described: whether the config describes it, so that it needs no path.

    Raises:
      Faults: values that its kind needs are missing.
    """
    if self.kind == 'workdir' and not (self.path or described):
      checks.fail(
        'path',
        '',
        'expected the --workdir of a trained PRM (configs/prm_math.py), or a '
        'published PRM',
      )
    if self.kind == 'generative':
      with checks.below('generative'):
        self.generative.check_use()

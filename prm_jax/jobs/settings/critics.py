"""Defines the config section of a PRM that writes critiques."""

import dataclasses
import json
from typing import Annotated

from prm_jax.data.critiques.styles import STYLES
from prm_jax.inference.generative_prm import CritiqueConfig
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs.settings.policies import EndpointSection
from prm_jax.models.config import DTYPES
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.runtime.workdir import OF_SERVERS

CRITICS = ('workdir', 'base', 'endpoint')


@dataclasses.dataclass(frozen=True)
class GenerativeConfig(CritiqueConfig):
  """Says which critic writes the critiques, and how it is asked.

  Attributes:
    critic: 'workdir' is one that was trained here (configs/verifier_math.py);
      'base' a language model as it is; 'endpoint' one at a server.
    path: the workdir; for 'base' what config.base takes: a folder,
      hf://owner/name, a .gguf file or 'smollm2'.
    dtype: dtype of its parameters and computation; '' is bfloat16 on a TPU or
      GPU; on a CPU as it was trained, but float32 where bfloat16 is slow.
    sampling: how it is sampled.
    separator, end: for 'base': the tokens that end a line and a critique, as
      data.separator and data.end.
    max_length: for 'base': tokens of a question and its critique.
    endpoint: the server of kind 'endpoint'.
    cache: folder of its answers; '' is WORKDIR/critiques.
  """

  critic: Annotated[str, one_of(*CRITICS)] = 'workdir'
  path: str = ''
  dtype: Annotated[str, one_of('', *DTYPES)] = ''
  sampling: SamplingConfig = SamplingConfig()
  separator: str = ''
  end: str = ''
  max_length: Annotated[int, at_least(1)] = 2048
  endpoint: EndpointSection = EndpointSection(system='', prompt='{problem}')
  cache: str = ''

  @property
  def identity(self) -> str:
    """Returns what determines its scores, as JSON."""
    values = dataclasses.asdict(self)
    for name in ('slots', 'kept', 'spread'):
      del values['sampling'][name]
    for name in OF_SERVERS:  # they change no answer
      del values['endpoint'][name]
    del values['cache']
    return json.dumps(values, sort_keys=True)

  @property
  def trained(self) -> str:
    """Returns the workdir of a critic that was trained here; '' for others."""
    return self.path if self.critic == 'workdir' else ''

  def check_use(self) -> None:
    """Raises Faults unless there is a critic."""
    if self.critic == 'endpoint':
      with checks.below('endpoint'):
        config = self.endpoint.to_config(seed=0)
      if STYLES[self.style].runs_code and not config.goes_on:
        checks.fail(
          'style',
          self.style,
          'continues after the Python it writes; this server may not: set '
          'endpoint.api=completions, endpoint.continues or '
          'endpoint.extra_after_steps',
        )
    elif not self.path:
      checks.fail(
        'path',
        '',
        'expected the --workdir of a critic (configs/verifier_math.py), or '
        "with critic='base' a language model",
      )
    at_server = self.critic == 'endpoint'
    drawn = self.endpoint if at_server else self.sampling
    if self.samples > 1 and not drawn.temperature:
      checks.fail(
        'endpoint.temperature' if at_server else 'sampling.temperature',
        0.0,
        f'samples={self.samples} critiques would be equal: expected above 0',
      )
    if self.critic != 'workdir' and self.plain:
      checks.fail(
        'plain',
        True,
        f'critic={self.critic!r} was not trained on plain questions: expected '
        'False',
      )
    for name in ('separator', 'end'):
      if self.critic == 'base' and not getattr(self, name):
        checks.fail(
          name, '', "expected a token of the model's, such as '<|im_end|>'"
        )

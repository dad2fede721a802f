"""Defines the config section for the policy or judge of a job."""

import dataclasses
import json
from typing import Annotated, Any

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.driver import SAMPLES_PER_ROUND
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.server.config import EndpointConfig
from prm_jax.models.config import DTYPES
from prm_jax.runtime import checks
from prm_jax.runtime.checks import Rule, at_least, one_of

# Kind of policy -> the job that writes the workdir it is read from, if any.
POLICIES = {
  'solver': '',
  'workdir': 'a trained policy (configs/policy_math.py)',
  'endpoint': '',
  'recorded': 'a sampling job (configs/sample_math.py)',
}
# What a job uses a policy for -> the kinds that can do it.
USES = {
  'writes new chains': ('solver', 'workdir', 'endpoint'),
  'is searched with': tuple(POLICIES),
  'judges': ('endpoint',),
}
CALLS_PER_CONNECTION = 8
SAMPLES_PER_SLOT = 16


def _is_json_object(text: str) -> bool:
  try:
    return isinstance(json.loads(text), dict)
  except (ValueError, RecursionError):
    return False


JSON_OBJECT = Rule(
  _is_json_object, 'expected a JSON object, such as \'{"top_k": 20}\''
)


@dataclasses.dataclass(frozen=True)
class EndpointSection:
  """Describes a model on a server; `EndpointConfig` explains every value.

  Three things differ. `extra` and `extra_after_steps` are JSON texts, because
  flags can set only values that a config already has. All values have defaults,
  for jobs without a server. The seed is the job's.
  """

  base_url: str = EndpointConfig.base_url
  model: str = EndpointConfig.model
  api_key_variable: str = EndpointConfig.api_key_variable
  concurrency: Annotated[int, at_least(1)] = EndpointConfig.concurrency
  timeout: float = EndpointConfig.timeout
  attempts: int = EndpointConfig.attempts
  max_failed_in_a_row: int = EndpointConfig.max_failed_in_a_row
  max_reply_bytes: int = EndpointConfig.max_reply_bytes
  send_stop: bool = EndpointConfig.send_stop
  api: str = EndpointConfig.api
  continues: bool = EndpointConfig.continues
  system: str = EndpointConfig.system
  prompt: str = EndpointConfig.prompt
  separator: str = EndpointConfig.separator
  temperature: float = EndpointConfig.temperature
  top_p: float = EndpointConfig.top_p
  max_tokens: int = EndpointConfig.max_tokens
  send_seed: bool = EndpointConfig.send_seed
  extra: Annotated[str, JSON_OBJECT] = '{}'
  extra_after_steps: Annotated[str, JSON_OBJECT] = '{}'

  def __post_init__(self) -> None:
    checks.check(self)

  def to_config(self, seed: int) -> EndpointConfig:
    """Returns the settings of a client.

    Raises:
      Faults: values are missing or out of range.
    """
    values: dict[str, Any] = dataclasses.asdict(self) | {'seed': seed}
    for name in ('extra', 'extra_after_steps'):
      values[name] = json.loads(values[name])
    return EndpointConfig(**values)


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
  """Says which policy or judge a job asks.

  Attributes:
    kind: 'solver' is the arithmetic domain's, which wrote the training chains;
      'workdir' a trained policy; 'endpoint' an OpenAI-compatible server;
      'recorded' replays the chains of a sampling job.
    workdir: workdir of the trained policy, or of the sampling job.
    sampling: how a trained policy samples.
    dtype: dtype of a trained policy's parameters and computation; '' is
      bfloat16 on a TPU or GPU; on a CPU as it was trained, but float32 where
      bfloat16 is slow.
    cache: folder of a server's answers; '' is WORKDIR/replies.
  """

  kind: Annotated[str, one_of(*POLICIES)] = 'solver'
  solver: ArithmeticConfig = ArithmeticConfig()
  workdir: str = ''
  sampling: SamplingConfig = SamplingConfig()
  dtype: Annotated[str, one_of('', *DTYPES)] = ''
  cache: str = ''
  endpoint: EndpointSection = EndpointSection()

  def __post_init__(self) -> None:
    checks.check(self)

  def check_use(self, use: str, described: bool = False) -> None:
    """Checks that a policy of this kind suits a job.

    Args:
      use: one of USES.
      described: whether the config describes it, so that it needs no workdir.

    Raises:
      Faults: it does not, or values that its kind needs are missing.
    """
    if self.kind not in USES[use]:
      kinds = ', '.join(USES[use])
      checks.fail(
        'kind', self.kind, f'expected one of {kinds}: this policy {use}'
      )
    if (job := POLICIES[self.kind]) and not (self.workdir or described):
      checks.fail('workdir', '', f'expected the --workdir of {job}')
    if self.kind == 'endpoint':
      with checks.below('endpoint'):
        self.endpoint.to_config(seed=0)

  def check_draws(self, samples: int) -> None:
    """Checks that several completions of the same can differ."""
    drawn = {'workdir': self.sampling, 'endpoint': self.endpoint}
    part = drawn.get(self.kind)
    if samples > 1 and part is not None and not part.temperature:
      name = 'sampling' if self.kind == 'workdir' else 'endpoint'
      checks.fail(
        f'{name}.temperature',
        0.0,
        f'{samples} completions would be equal: expected above 0',
      )

  @property
  def samples_per_round(self) -> int:
    """Returns how many samples a job asks for in one round.

    A round of few samples takes seconds, one of many takes hours. Few still
    keep slots and connections busy, because other items fill the gaps.
    """
    if self.kind == 'endpoint':
      return CALLS_PER_CONNECTION * self.endpoint.concurrency
    if self.kind == 'workdir':
      return SAMPLES_PER_SLOT * self.sampling.slots
    return SAMPLES_PER_ROUND

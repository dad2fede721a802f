"""Defines the settings of the sampling and labelling jobs.

The other jobs that work through many items, search and evaluation, have modules
of their own.
"""

import dataclasses
from typing import Annotated, Any

from prm_jax.data.config import (
  ON_ERROR,
  SampledDrawConfig,
  Source,
  SplitConfig,
)
from prm_jax.data.domains.known import DOMAINS
from prm_jax.inference.driver import Cost
from prm_jax.inference.server.usage import Usage
from prm_jax.jobs.settings.policies import PolicyConfig
from prm_jax.jobs.settings.prms import AskedPrmConfig
from prm_jax.jobs.settings.shared import (
  JobSettings,
  MeshConfig,
  OpenedAotConfig,
  ProblemsSection,
  check_arithmetic,
)
from prm_jax.labels.active import ActiveConfig
from prm_jax.labels.corruption import CorruptionConfig
from prm_jax.labels.judge import JudgeConfig
from prm_jax.labels.omega import OmegaConfig
from prm_jax.labels.rollouts import RolloutConfig
from prm_jax.labels.verifier import VerifierConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, from_to_below, one_of

# Source of labels -> what it uses the policy for, one of policies.USES, if any.
SOURCES = {
  'verifier': '',
  'rollouts': 'writes new chains',
  'omega': 'writes new chains',
  'judge': 'judges',
  'corruption': '',
  'given': '',
}
SELECTIONS = ('active', 'consensus')


@dataclasses.dataclass(frozen=True)
class PriceConfig:
  """Sets the price in US dollars per million tokens; 0 is free.

  The policy or judge and a PRM at a server have the same price.

  Attributes:
    tokens: price of tokens that the model writes.
    prompt_tokens: price of tokens that it reads.
  """

  tokens: Annotated[float, at_least(0)] = 0.0
  prompt_tokens: Annotated[float, at_least(0)] = 0.0

  def __post_init__(self) -> None:
    checks.check(self)

  def dollars(self, used: Cost | Usage) -> float:
    """Returns the cost of the tokens used, in US dollars."""
    paid = self.tokens * used.tokens + self.prompt_tokens * used.prompt_tokens
    return paid / 1e6


@dataclasses.dataclass(frozen=True)
class ItemSettings(JobSettings):
  """Holds the settings that all jobs of many items share.

  Attributes:
    mesh: the devices of each process, over which its models are split.
    concurrent: items that each process has in flight.
    price: price of a server's tokens.
    aot: what prm_jax.aot compiles for: the devices of one process.
  """

  mesh: MeshConfig = MeshConfig()
  policy: PolicyConfig = PolicyConfig()
  concurrent: Annotated[int, at_least(1)] = 64
  price: PriceConfig = PriceConfig()
  aot: OpenedAotConfig = OpenedAotConfig()

  def check_policy(
    self, use: str, section: ProblemsSection, samples: int
  ) -> None:
    """Checks that the policy suits a job, see `PolicyConfig.check_use`.

    Args:
      section: names the problems that it is asked about.
      samples: how often it is asked the same.
    """
    with checks.below('policy'):
      # A policy that only prm_jax.aot describes has no workdir yet.
      self.policy.check_use(use, described=bool(self.aot.model.given()))
      self.policy.check_draws(samples)
    if self.policy.kind == 'solver':
      check_arithmetic('policy.kind', 'solver', section)


@dataclasses.dataclass(frozen=True)
class SampleSettings(ItemSettings):
  """Holds the settings of configs/sample_math.py.

  Attributes:
    samples: number of chains per problem.
  """

  samples: Annotated[int, at_least(1)] = 64
  problems: SplitConfig = SplitConfig()

  def check_together(self) -> None:
    self.check_policy('writes new chains', self.problems, self.samples)


@dataclasses.dataclass(frozen=True)
class ChainsConfig(SampledDrawConfig):
  """Says which chains are labelled.

  Attributes:
    kind: the training chains of a domain whose truth is known; files; or the
      workdir of a sampling or labelling job.
    workdir: workdir of that job.
    root: folder of the files; '' is the environment variable PRM_JAX_DATA.
    files: files below it, each with its format.
    on_error: what a bad record does: 'stop' ends the job, 'quarantine' sets the
      record aside and counts it.
  """

  kind: Annotated[str, one_of(*DOMAINS, 'files', 'workdir')] = 'arithmetic'
  workdir: str = ''
  root: str = ''
  files: tuple[Source, ...] = (('gsm8k/train.jsonl', 'gsm8k'),)
  on_error: Annotated[str, one_of(*ON_ERROR)] = 'stop'


@dataclasses.dataclass(frozen=True)
class AgreementConfig:
  """Says how two labelling jobs are compared; see `labels.consensus`.

  Attributes:
    first: name of the source whose labels are kept; '' takes it from its job.
    second: name of the source that must agree; '' takes it from its job.
    hard_above: a step is right if its label is above this number.
  """

  first: str = ''
  second: str = ''
  hard_above: Annotated[float, from_to_below(0, 1)] = 0.0

  def __post_init__(self) -> None:
    checks.check(self)
    if self.first and self.first == self.second:
      checks.fail('second', self.second, 'expected another source than first')


@dataclasses.dataclass(frozen=True)
class LabelSettings(ItemSettings):
  """Holds the settings of configs/label_math.py.

  Attributes:
    select: which of the chains are labelled; '' labels all.
    source: where the labels come from; 'given' keeps the chains' own labels.
    verifier, rollouts, omega, judge, corruption: settings of each source.
    consensus: how to select chains that two jobs label alike.
    agrees_with: workdir of the other labelling job.
    active: how a PRM selects chains.
    prm: that PRM.
  """

  chains: ChainsConfig = ChainsConfig()
  select: Annotated[str, one_of('', *SELECTIONS)] = ''
  source: Annotated[str, one_of(*SOURCES)] = 'verifier'
  verifier: VerifierConfig = VerifierConfig()
  rollouts: RolloutConfig = RolloutConfig()
  omega: OmegaConfig = OmegaConfig()
  judge: JudgeConfig = JudgeConfig()
  corruption: CorruptionConfig = CorruptionConfig()
  consensus: AgreementConfig = AgreementConfig()
  agrees_with: str = ''
  active: ActiveConfig = ActiveConfig()
  prm: AskedPrmConfig = AskedPrmConfig()

  @property
  def source_config(self) -> Any:
    """Returns the settings of the source; None if it has none."""
    return getattr(self, self.source, None)

  @property
  def needs_prm(self) -> bool:
    """Says whether a PRM selects the chains."""
    return self.select == 'active' and self.active.method == 'active'

  def check_together(self) -> None:
    if self.chains.critiques.style:
      checks.fail(
        'chains.critiques.style',
        self.chains.critiques.style,
        "critiques get no labels: expected ''",
      )
    if use := SOURCES[self.source]:
      self.check_policy(use, self.chains, self.source_config.samples)
    if self.needs_prm:
      with checks.below('prm'):
        self.prm.check_use()

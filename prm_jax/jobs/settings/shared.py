"""Defines the sections that several jobs share."""

import dataclasses
from typing import Annotated, Any, Protocol

from prm_jax.data.critiques.examples import CritiquesConfig
from prm_jax.models.config import DTYPES, REMAT_POLICIES
from prm_jax.models.dtypes import AUTO, FAST
from prm_jax.runtime import checks
from prm_jax.runtime.checks import Rule, above, at_least, at_most, one_of

# Kinds of problems that may be of any domain.
_READ = ('file', 'files', 'workdir')


class ProblemsSection(Protocol):
  """Is a section of a config that says what problems are of."""

  @property
  def kind(self) -> str: ...

  @property
  def critiques(self) -> CritiquesConfig: ...


def check_arithmetic(name: str, value: str, section: ProblemsSection) -> None:
  """Checks that the solver, or exact scores, get arithmetic problems alone.

  Args:
    name: the setting whose value knows only arithmetic.
    section: names the problems.

  Raises:
    Faults: the problems are of another domain, or questions to a critic.
  """
  if section.kind not in ('arithmetic', *_READ):
    problems = f'of the domain {section.kind}'
  elif style := section.critiques.style:
    problems = f'questions to a critic, as critiques.style={style!r} says'
  else:
    return
  checks.fail(
    name,
    value,
    f'it knows arithmetic alone, and the problems are {problems}: expected '
    "'workdir' or 'endpoint'",
  )


def check_supervision(supervision: str) -> None:
  """Raises Faults for the targets of a policy, which a PRM does not have."""
  if supervision == 'completion':
    checks.fail(
      'targets.supervision',
      'completion',
      'is for policies: expected process or outcome; configs/policy_math.py '
      'trains a policy',
    )


@dataclasses.dataclass(frozen=True)
class JobSettings:
  """Holds the settings that every config has.

  Attributes:
    task: which of the seven jobs it is.
    name: the title of the run, in its results and its report.
    seed: seed of everything that is drawn at random.
    cpu_devices: run on this many devices of the CPU; 0 takes what JAX finds.
  """

  task: str = ''
  name: str = ''
  seed: Annotated[int, at_least(0), at_most(2**63 - 1)] = 0
  cpu_devices: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)

  def check_together(self) -> None:
    """Raises Faults for values of several sections that contradict."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sets the number of devices on each axis of the mesh.

  One of them may be -1: it takes the remaining devices.

  Attributes:
    replica: number of copies of everything.
    fsdp: devices that parameters, optimizer state and batches are split over.
    model: devices that heads and feed-forward units are split over.
  """

  replica: int = 1
  fsdp: int = -1
  model: int = 1

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def shape(self) -> dict[str, int]:
    """Returns the size of each axis by name, as `make_mesh` takes it."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
  """Says where metrics are written beside metrics.jsonl.

  Attributes:
    tensorboard: also write TensorBoard events; needs `tensorboardX`.
    wandb_project: also log to this Weights & Biases project; '' does not.
  """

  tensorboard: bool = False
  wandb_project: str = ''

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Describes a transformer; None takes the default or the base's value.

  A model from scratch needs at least `d_model`, `n_layers`, `n_heads`,
  `n_kv_heads` and `d_ff`. A pretrained base brings its own architecture, so
  only `dtype`, `param_dtype`, `remat` and `scan_unroll` may be set beside it.
  See `TransformerConfig`; a dtype may also be 'auto', which `jobs.dtypes`
  settles.
  """

  vocab_size: Annotated[int | None, at_least(1)] = None
  d_model: Annotated[int | None, at_least(1)] = None
  n_layers: Annotated[int | None, at_least(1)] = None
  n_heads: Annotated[int | None, at_least(1)] = None
  n_kv_heads: Annotated[int | None, at_least(1)] = None
  d_ff: Annotated[int | None, at_least(1)] = None
  head_dim: Annotated[int | None, at_least(0)] = None
  rope_theta: Annotated[float | None, above(0)] = None
  norm_eps: Annotated[float | None, above(0)] = None
  qkv_bias: bool | None = None
  qk_norm: bool | None = None
  tie_embeddings: bool | None = None
  dtype: Annotated[str | None, one_of(*DTYPES, AUTO)] = None
  param_dtype: Annotated[str | None, one_of(*DTYPES, AUTO)] = None
  remat: Annotated[str | None, one_of(*REMAT_POLICIES)] = None
  scan_unroll: Annotated[int | None, at_least(1)] = None

  def __post_init__(self) -> None:
    checks.check(self)

  def given(self, own: str = 'float32') -> dict[str, int | float | bool | str]:
    """Returns the values that are set, by name; see `_given`."""
    return _given(self, own)


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
  """Says how a trained policy is computed; '' and -1 keep its own values.

  Attributes:
    dtype, param_dtype: may also be 'auto', which `jobs.dtypes` settles.
    remat: which activations are recomputed in the backward pass.
    scan_unroll: number of layers that are unrolled in the scan over layers.
  """

  dtype: Annotated[str, one_of('', *DTYPES, AUTO)] = ''
  param_dtype: Annotated[str, one_of('', *DTYPES, AUTO)] = ''
  remat: Annotated[str, one_of('', *REMAT_POLICIES)] = ''
  scan_unroll: Annotated[
    int,
    Rule(
      lambda value: value == -1 or value >= 1,
      'expected >= 1, or -1 for the number that it was trained with',
    ),
  ] = -1

  def __post_init__(self) -> None:
    checks.check(self)

  def given(self, own: str = 'float32') -> dict[str, int | str]:
    """Returns the values that are set, by name; see `_given`."""
    return _given(self, own)


def _given(config: ModelConfig | ComputeConfig, own: str) -> dict[str, Any]:
  """Returns the values that are set, by name.

  A `dtype` of 'auto' is bfloat16, and such a `param_dtype` is the dtype in
  which the model computes.

  Args:
    own: in which it computes if the config does not say so.
  """
  values = {
    name: value
    for name, value in dataclasses.asdict(config).items()
    if value not in (None, '', -1)
  }
  if values.get('dtype') == AUTO:
    values['dtype'] = FAST
  if values.get('param_dtype') == AUTO:
    values['param_dtype'] = values.get('dtype', own)
  return values


@dataclasses.dataclass(frozen=True)
class AotConfig:
  """Says what prm_jax.aot compiles for.

  Attributes:
    topology: TPU chips, such as v5e:16x16, or the GPUs of a host: h100:8.
    model: the architecture of a base that is not on this machine.
  """

  topology: str = ''
  model: ModelConfig = ModelConfig()


@dataclasses.dataclass(frozen=True)
class OpenedAotConfig(AotConfig):
  """Says what prm_jax.aot compiles for, for a job that opens trained models.

  Without the workdir of a policy it compiles for the one that is described
  here, and without that of a PRM for one of the same size.

  Attributes:
    max_length: tokens of that policy's longest chain.
  """

  max_length: Annotated[int, at_least(1)] = 512

  def __post_init__(self) -> None:
    checks.check(self)

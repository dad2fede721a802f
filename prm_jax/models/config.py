"""Defines the configs of the backbone and of the step head.

They are frozen, so that jitted functions can take them as static arguments.
"""

import dataclasses
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.runtime.errors import UserError

HEADS = {'logit': 1, 'two_class': 2, 'three_class': 3, 'regression': 1}
REMAT_POLICIES = ('none', 'full', 'dots')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Stretches rotary positions beyond the length of pre-training, as Llama 3.

  Pairs that turn fewer than `low_freq_factor` times within `original_length`
  tokens turn `factor` times slower. Those that turn more than
  `high_freq_factor` times stay as they are; those between are interpolated.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_length: int

  def __post_init__(self) -> None:
    for name in ('factor', 'low_freq_factor', 'original_length'):
      if getattr(self, name) <= 0:
        raise UserError(
          f'model.rope_scaling.{name}={getattr(self, name)}: expected > 0'
        )
    if self.high_freq_factor <= self.low_freq_factor:
      raise UserError(
        f'model.rope_scaling.high_freq_factor={self.high_freq_factor} must '
        f'be above low_freq_factor={self.low_freq_factor}'
      )


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Describes a decoder of the Llama, Mistral, Qwen2 or Qwen3 shape.

  Attributes:
    head_dim: size of an attention head; 0 means d_model // n_heads.
    qkv_bias: whether the query, key and value projections have biases (Qwen2).
    qk_norm: whether each query and key head has an RMSNorm (Qwen3).
    dtype: type of activations and matrix products; norms, softmax and losses
      are always float32.
    param_dtype: type in which the backbone is stored, norm scales included, as
      published models are; heads and adapters are always float32. A trained
      backbone in 'bfloat16' has a float32 master beside it
      (train_state.WithMaster); a frozen one, under adapters, takes half the
      memory.
    remat: which activations of a layer the backward pass recomputes:
      'none' keeps all, 'full' keeps only the layer input, 'dots' keeps the
      results of matrix products with weights, and of attention by a kernel.
    scan_unroll: layers traced per step of the scan over layers; more layers
      run faster (mostly on CPU) and compile more slowly.
  """

  vocab_size: int
  d_model: int
  n_layers: int
  n_heads: int
  n_kv_heads: int
  d_ff: int
  head_dim: int = 0  # 0: d_model // n_heads
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  norm_eps: float = 1e-6
  qkv_bias: bool = False
  qk_norm: bool = False
  tie_embeddings: bool = True
  dtype: str = 'float32'
  param_dtype: str = 'float32'
  remat: str = 'none'
  scan_unroll: int = 1

  def __post_init__(self) -> None:
    positive = ('vocab_size', 'd_model', 'n_layers', 'n_heads', 'd_ff')
    for name in (*positive, 'scan_unroll'):
      if getattr(self, name) < 1:
        raise UserError(f'model.{name}={getattr(self, name)}: expected >= 1')
    if self.head_dim == 0:
      object.__setattr__(self, 'head_dim', self.d_model // self.n_heads)
    if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads:
      raise UserError(
        f'model.n_kv_heads={self.n_kv_heads} must divide '
        f'model.n_heads={self.n_heads}'
      )
    if self.head_dim < 2 or self.head_dim % 2:
      raise UserError(
        f'model.head_dim={self.head_dim}: rotary embeddings need an even '
        'number; set it, or choose d_model and n_heads to give one'
      )
    if self.remat not in REMAT_POLICIES:
      raise UserError(
        f'model.remat={self.remat!r}: expected one of {REMAT_POLICIES}'
      )
    for name in ('dtype', 'param_dtype'):
      if getattr(self, name) not in DTYPES:
        raise UserError(
          f'model.{name}={getattr(self, name)!r}: expected one of {DTYPES}'
        )


@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """Describes the head that scores a step from the hidden state at its end.

  Attributes:
    kind: what the outputs mean, see `heads.step_probabilities`.
    hidden: width of a ReLU layer before the outputs; 0 is a linear head.
    likelihood: whether the head also reads the probabilities that the backbone
      itself gives to a step's tokens (`likelihood.step_likelihood`). It then
      starts as a rule on these alone and learns from there. This is for
      backbones that are already language models.
  """

  kind: Annotated[str, one_of(*HEADS)] = 'logit'
  hidden: Annotated[int, at_least(0)] = 0
  likelihood: bool = False

  def __post_init__(self) -> None:
    checks.check(self)
    if self.likelihood and self.kind == 'regression':
      checks.fail(
        'likelihood',
        True,
        'gives log-odds, which kind=regression does not read; use logit, '
        'two_class or three_class',
      )

  @property
  def outputs(self) -> int:
    return HEADS[self.kind]

"""An implicit PRM: a language model whose log-ratio to a reference is reward.

    Rows with outcomes -> BCE of the chain's log-ratio -> phi learns
      -> beta * log pi_phi / pi_ref of each step's tokens

Trained on outcomes alone it tells steps apart (Yuan et al., 2024), so it can
learn from every batch that the policy writes (PRIME; Cui et al., 2025): first
it learns, then it scores.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.rl import rewards
from prm_jax.rl.episodes import Episode, Rows
from prm_jax.rl.objective import view_tokens
from prm_jax.rl.rating import Said
from prm_jax.rl.views import View, put_rows
from prm_jax.runtime.errors import UserError
from prm_jax.training.loop import Objective
from prm_jax.training.train_state import NO_LORA, TrainState

# What can be made of rewards; other forms want probabilities.
FORMS = ('raw', 'total', 'min_form', 'outcome')


@dataclasses.dataclass(frozen=True)
class ImplicitConfig:
  """What an implicit PRM is.

  Attributes:
    beta: of the log-ratio.
    online: whether it learns from the outcomes of every batch.
    lr: of that; the rest of the optimizer is the policy's.
  """

  beta: float = 0.05
  online: bool = True
  lr: float = 1e-4

  def __post_init__(self) -> None:
    if self.beta <= 0:
      raise UserError(f'prm.beta={self.beta}: expected above 0')
    if self.lr <= 0:
      raise UserError(
        f'prm.online.lr={self.lr}: expected above 0; a PRM that is to stay as '
        'it is has prm.online.on=False'
      )


class Outcomes(NamedTuple):
  """What the PRM learns from: a part of Rows."""

  tokens: jax.Array  # [B, T] int32
  segment_ids: jax.Array  # [B, T] int32
  written: jax.Array  # [B, T] bool
  reference_logprobs: jax.Array  # [B, T]
  outcomes: jax.Array  # [B] 1 right, 0 wrong


def make_objective(
  model: TransformerConfig, beta: float, lora: LoraConfig = NO_LORA
) -> Objective:
  """Binary cross-entropy of a chain's outcome, as the train step wants it.

  -r log s(q) - (1 - r) log(1 - s(q)) with q = beta * sum over all written
  tokens of log pi_phi / pi_ref; the mean over chains (PRIME's L_CE).
  `accuracy` is the share of chains with q > 0 exactly where they are right.
  """

  def norms(batch: Outcomes) -> jax.Array:
    return jnp.maximum(batch.written.any(1).sum(), 1)

  def loss(
    params: Any, batch: Outcomes, chains: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    seen = view_tokens(params, batch.tokens, batch.segment_ids, model, lora)
    ratio = seen.logprobs - batch.reference_logprobs
    logits = beta * jnp.where(batch.written, ratio, 0.0).sum(1)
    counted = batch.written.any(1)

    def mean(x: jax.Array) -> jax.Array:  # of all chains of all parts
      return jnp.where(counted, x, 0.0).sum() / chains

    total = mean(optax.sigmoid_binary_cross_entropy(logits, batch.outcomes))
    hit = (logits > 0) == (batch.outcomes > 0.5)
    return total, {'loss': total, 'accuracy': mean(hit)}

  return Objective(norms, loss)


class ImplicitPrm:
  """phi as it is: a `rating.ChainPrm` that does not learn.

  Args:
    params: of phi, as `view_tokens` takes them.
    view: log-probabilities under such parameters.
  """

  state: TrainState | None = None

  def __init__(self, name: str, params: Any, view: View, beta: float) -> None:
    self.name, self._params, self._view = name, params, view
    self._steps = jax.jit(functools.partial(rewards.implicit, beta=beta))

  def learn(self, rows: Rows) -> dict[str, float]:
    """Nothing."""
    del rows
    return {}

  def score(self, found: Sequence[Episode], rows: Rows) -> Said:
    """Rewards are the log-ratios of steps, times beta.

    The score of a step is s(q) of the log-ratio up to its end: the probability
    that the chain is right, had it ended there.
    """
    del found
    paid = np.asarray(
      self._steps(
        self._view(self._params, rows),
        rows.reference_logprobs,
        rows.step_ends,
        rows.step_mask,
        rows.written,
      )
    )
    q = np.cumsum(paid, 1, np.float64)
    return Said(0.5 + 0.5 * np.tanh(0.5 * q), paid)


class OnlinePrm(ImplicitPrm):
  """phi while it learns.

  Args:
    state: of now; its first one is that of make_init.
    step_fn: from `train.compile_train_step`, of Outcomes.
  """

  def __init__(
    self,
    name: str,
    state: TrainState,
    step_fn: Callable,
    view: View,
    beta: float,
    mesh: Mesh,
  ) -> None:
    super().__init__(name, state.params, view, beta)
    self.state, self._step, self._mesh = state, step_fn, mesh

  def learn(self, rows: Rows) -> dict[str, float]:
    """A step on chains that it has not seen; its metrics are of before."""
    batch = Outcomes(*(getattr(rows, name) for name in Outcomes._fields))
    with jax.set_mesh(self._mesh):
      self.state, told = self._step(self.state, put_rows(batch, self._mesh))
    self._params = self.state.params
    return {f'prm_{name}': float(value) for name, value in told.items()}

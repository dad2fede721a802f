"""Trains an implicit PRM: its reward is a log-ratio to a reference policy.

    EpisodeRows with outcomes -> BCE of the chain's log-ratio -> phi learns
      -> beta * log pi_phi / pi_ref of each step's tokens

Such a model is trained on outcomes alone, and still tells right steps from
wrong ones (Yuan et al., 2024). So it can learn from every batch that the policy
writes (PRIME; Cui et al., 2025): first it learns, then it scores.
"""

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
from prm_jax.rl.episodes import Episode, EpisodeRows
from prm_jax.rl.objective import view_tokens
from prm_jax.rl.rating import StepScores
from prm_jax.rl.trees import ONE_DEVICE, Layout, Trees, interleaved, lay_out
from prm_jax.rl.views import View, put_rows
from prm_jax.training.loop import Objective
from prm_jax.training.train_state import NO_LORA, TrainState

# Forms of reward that take any number; the others need probabilities.
REWARD_FORMS = ('raw', 'total', 'min_form', 'outcome')


class Outcomes(NamedTuple):
  """Holds the trees of chains, and what else of them the PRM learns from."""

  trees: Trees
  written: jax.Array  # [C, T] bool
  reference_logprobs: jax.Array  # [C, T]
  outcomes: jax.Array  # [C] 1 right, 0 wrong


def to_outcomes(
  rows: EpisodeRows, parts: int = 1, layout: Layout = ONE_DEVICE
) -> Outcomes:
  """Lays chains out in trees, for a train step of `parts` microbatches."""
  order = interleaved(len(rows.tokens), parts)
  rows = jax.tree.map(lambda x: x[order], rows)
  return Outcomes(
    lay_out(rows.tokens, rows.lengths, parts, layout),
    rows.written,
    rows.reference_logprobs,
    rows.outcomes,
  )


def make_objective(
  model: TransformerConfig, beta: float, lora: LoraConfig = NO_LORA
) -> Objective:
  """Returns the binary cross-entropy of a chain's outcome, for the train step.

  -r log s(q) - (1 - r) log(1 - s(q)) with q = beta * sum over all written
  tokens of log pi_phi / pi_ref; the mean over chains (PRIME's L_CE). The metric
  `accuracy` is the share of chains with q > 0 exactly where they are right.
  """

  def norms(batch: Outcomes) -> jax.Array:
    return jnp.maximum(batch.written.any(1).sum(), 1)

  def loss(
    params: Any, batch: Outcomes, chains: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    seen = view_tokens(params, batch.trees, model, lora)
    ratio = seen.logprobs - batch.reference_logprobs
    logits = beta * jnp.where(batch.written, ratio, 0.0).sum(1)
    counted = batch.written.any(1)

    def mean(x: jax.Array) -> jax.Array:  # over the chains of all microbatches
      return jnp.where(counted, x, 0.0).sum() / chains

    total = mean(optax.sigmoid_binary_cross_entropy(logits, batch.outcomes))
    hit = (logits > 0) == (batch.outcomes > 0.5)
    return total, {'loss': total, 'accuracy': mean(hit)}

  return Objective(norms, loss)


class ImplicitPrm:
  """Is a `rating.ChainPrm` that never changes.

  Args:
    params: parameters of phi, as `view_tokens` takes them.
    view: computes log-probabilities under such parameters.
  """

  state: TrainState | None = None

  def __init__(self, name: str, params: Any, view: View, beta: float) -> None:
    self.name, self._params, self._view = name, params, view
    self._steps = jax.jit(functools.partial(rewards.implicit, beta=beta))

  def learn(self, rows: EpisodeRows) -> dict[str, float]:
    """Does nothing and returns no metrics."""
    del rows
    return {}

  def score(self, episodes: Sequence[Episode], rows: EpisodeRows) -> StepScores:
    """Returns beta times the log-ratio of each step as its reward.

    The score of a step is s(q) of the log-ratio up to its end: the probability
    that the chain would be right if it ended there.
    """
    del episodes
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
    return StepScores(0.5 + 0.5 * np.tanh(0.5 * q), paid)


class OnlinePrm(ImplicitPrm):
  """Is an implicit PRM that learns from every batch.

  Args:
    state: the initial state, or a checkpoint's.
    step_fn: from `training.loop.compile_train_step`, for batches of Outcomes.
    parts: its number of microbatches.

  Attributes:
    state: the current state.
  """

  def __init__(
    self,
    name: str,
    state: TrainState,
    step_fn: Callable,
    view: View,
    beta: float,
    mesh: Mesh,
    parts: int,
  ) -> None:
    super().__init__(name, state.params, view, beta)
    self.state, self._step, self._mesh = state, step_fn, mesh
    self._parts = parts

  def learn(self, rows: EpisodeRows) -> dict[str, float]:
    """Takes a train step; its metrics are those before the update."""
    batch = to_outcomes(rows, self._parts, self._view.layout)
    with jax.set_mesh(self._mesh):
      self.state, metrics = self._step(self.state, put_rows(batch, self._mesh))
    self._params = self.state.params
    return {f'prm_{name}': float(value) for name, value in metrics.items()}

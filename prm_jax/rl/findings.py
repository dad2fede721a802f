"""Holds scores and outcomes of rated chains, and selects those to train on.

    scores and outcomes -> a group whose scores are finite -> the chains of it
      whose steps agree with their outcome -> credit.py

Groups are G chains of each problem, one after another. Every function checks
the shapes of its arguments, also under `jax.jit`, and raises AssertionError
with its own name.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from prm_jax.rl import advantages


class Findings(NamedTuple):
  """Holds the scores and outcomes of B rated chains."""

  scores: jax.Array  # [B, P] in [0, 1]; rewards, if the PRM is implicit
  step_mask: jax.Array  # [B, P] bool, steps come first
  step_ends: jax.Array  # [B, P] index of the token that ends each
  outcomes: jax.Array  # [B] 1 right, 0 wrong
  written: jax.Array  # [B, T] bool, tokens of the policy
  penalties: jax.Array  # [B, T] that are subtracted from the rewards (KL)


def check_findings(name: str, findings: Findings) -> None:
  """Raises AssertionError if the shapes do not match."""
  (B, P), T = findings.scores.shape, findings.written.shape[1]
  for field, shape in (
    ('step_mask', (B, P)),
    ('step_ends', (B, P)),
    ('outcomes', (B,)),
    ('written', (B, T)),
    ('penalties', (B, T)),
  ):
    chex.assert_shape(
      getattr(findings, field), shape, custom_message=f'{name}: {field}'
    )


def usable(
  findings: Findings,
  size: int,
) -> jax.Array:  # [B] bool
  """Says of each chain whether all scores of its group are finite.

  A group is used as a whole or not at all, because leaving out one of its
  chains would change the baseline.
  """
  check_findings('usable', findings)
  advantages.check_groups('usable', findings.scores, size)
  fine = jnp.isfinite(findings.scores) | ~findings.step_mask
  groups = advantages.group(fine.all(1), size).all(1)
  return jnp.repeat(groups, size)


def learned_from(
  findings: Findings, size: int, count: int
) -> jax.Array:  # [B] bool
  """Marks the `count` chains that are kept of each `usable` group."""
  fine = usable(findings, size)
  return fine if count == size else fine & consistent(findings, size, count)


def consistent(
  findings: Findings, size: int, count: int
) -> jax.Array:  # [B] bool
  """Marks in each group `count` chains whose steps agree with the outcome.

  PROF (Ye et al., 2025): right chains with the highest mean score of their
  steps and wrong chains with the lowest, equally many of both if there are
  enough. If `count` is odd, one more is wrong. A chain without steps has
  score 0.
  """
  check_findings('consistent', findings)
  advantages.check_groups('consistent', findings.scores, size)
  mask = findings.step_mask
  mean = jnp.where(mask, findings.scores, 0.0).sum(1)
  mean = advantages.group(mean / jnp.maximum(mask.sum(1), 1), size)
  right = advantages.group(findings.outcomes > 0.5, size)
  # From the most consistent chain to the least; NaN comes last.
  order = jnp.argsort(jnp.where(right, -mean, mean), axis=1)
  is_right = jnp.take_along_axis(right, order, 1)
  n_right = right.sum(1, keepdims=True)
  of_right = jnp.clip(count // 2, count - (size - n_right), n_right)
  taken = jnp.where(
    is_right,
    jnp.cumsum(is_right, 1) <= of_right,
    jnp.cumsum(~is_right, 1) <= count - of_right,
  )
  taken = jnp.take_along_axis(taken, jnp.argsort(order, axis=1), 1)
  return taken.reshape(-1)

"""Defines rows of trees, which one forward pass reads."""

from typing import NamedTuple

import jax


class Rows(NamedTuple):
  """Holds the trees of a batch: their tokens in depth-first order, and steps.

  Query i sees key j where j <= i <= last[j]: itself and the tokens before it in
  its chain. A chain is a tree without branches.
  """

  tokens: jax.Array  # [B, T] int32
  positions: jax.Array  # [B, T] int32 depths, prefix included; -1 is padding
  last: jax.Array  # [B, T] int32, last token of its subtree; padding: itself
  parents: jax.Array  # [B, T] int32, the token before; -1 if it is not in here
  kinds: jax.Array  # [B, T] int8, see `StepFormat.token_kinds`
  step_ends: jax.Array  # [B, P] int32
  step_begins: jax.Array  # [B, P] int32, position of the step's first token

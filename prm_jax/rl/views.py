"""Computes a model's log-probabilities or values of chains, onto the host.

EpisodeRows, any number -> a few of them at a time, spread over the mesh
  -> log-probabilities or values [B, T]
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.rl.episodes import EpisodeRows
from prm_jax.rl.objective import view_tokens
from prm_jax.runtime import processes
from prm_jax.runtime.sharding import batch_sharding
from prm_jax.training.train_state import NO_LORA


def put_rows(rows: Any, mesh: Mesh) -> Any:
  """Spreads arrays [B, ...] that every process has over the mesh."""
  placed = batch_sharding(mesh)
  if processes.count() == 1:
    return jax.device_put(rows, placed)
  return jax.tree.map(
    lambda x: jax.make_array_from_callback(x.shape, placed, x.__getitem__),
    rows,
  )


def jit_view(
  part: str, model: TransformerConfig, mesh: Mesh, lora: LoraConfig = NO_LORA
) -> Any:
  """Returns a jitted function: params, tokens, last -> a part.

  Args:
    part: the name of a field of `objective.TokenView`.
  """

  def read(params: Any, tokens: jax.Array, last: jax.Array) -> jax.Array:
    seen = view_tokens(params, tokens, last, model, lora)
    return getattr(seen, part)

  # Whole on every device, so that every process can read all of it.
  return jax.jit(read, out_shardings=NamedSharding(mesh, PartitionSpec()))


class View:
  """Computes one part of `objective.TokenView` for any number of rows.

  Args:
    part: 'logprobs' or 'values'; the other is not computed.
    rows: number of rows of a call; it must divide over the devices.
  """

  def __init__(
    self,
    part: str,
    model: TransformerConfig,
    mesh: Mesh,
    rows: int,
    lora: LoraConfig = NO_LORA,
  ) -> None:
    self._mesh, self._rows = mesh, rows
    self._read = jit_view(part, model, mesh, lora)

  def __call__(self, params: Any, rows: EpisodeRows) -> np.ndarray:  # [B, T]
    """Returns the part; `params` are as `view_tokens` takes them."""
    B, parts = len(rows.tokens), []
    for first in range(0, B, self._rows):
      some = slice(first, first + self._rows)
      given = rows.tokens[some], rows.last[some]
      missing = self._rows - len(given[0])
      padded = [np.pad(x, ((0, missing), (0, 0))) for x in given]
      with jax.set_mesh(self._mesh):
        parts.append(self._read(params, *put_rows(padded, self._mesh)))
    return np.concatenate([np.asarray(part) for part in parts])[:B]


class Reference:
  """Holds the fixed policy with which another is compared.

  Args:
    backbone: its parameters, on the mesh, sharded as a policy's are.
    offload: keeps them in the memory of the host, and on the devices only
      during use.
  """

  def __init__(self, backbone: Any, view: View, offload: bool = False) -> None:
    self._view = view
    self._placed = jax.tree.map(lambda x: x.sharding, backbone)
    kept = self._placed
    if offload:
      kept = jax.tree.map(
        lambda split: split.with_memory_kind('pinned_host'), kept
      )
    self.backbone = jax.device_put(backbone, kept)

  def read(self, rows: EpisodeRows) -> EpisodeRows:
    """Returns the rows with the reference's log-probabilities filled in."""
    params = {'backbone': jax.device_put(self.backbone, self._placed)}
    return rows._replace(reference_logprobs=self._view(params, rows))

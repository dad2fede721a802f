"""What a model says of chains that were written, read by the host.

Rows of any number -> a few of them at a time, spread over the mesh
  -> log-probabilities or values [B, T]
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.rl.episodes import Rows
from prm_jax.rl.objective import view_tokens
from prm_jax.runtime.sharding import batch_sharding
from prm_jax.training.train_state import NO_LORA


def put_rows(rows: Any, mesh: Mesh) -> Any:
  """Arrays [B, ...] that every process has, spread over the mesh."""
  placed = batch_sharding(mesh)
  return jax.tree.map(
    lambda x: jax.make_array_from_callback(x.shape, placed, x.__getitem__),
    rows,
  )


def jit_view(
  part: str, model: TransformerConfig, mesh: Mesh, lora: LoraConfig = NO_LORA
) -> Any:
  """A part of `view_tokens` jitted: of params, tokens and segment_ids."""

  def read(params: Any, tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
    seen = view_tokens(params, tokens, segment_ids, model, lora)
    return getattr(seen, part)

  # Whole on every device, so that every process can read all.
  return jax.jit(read, out_shardings=NamedSharding(mesh, PartitionSpec()))


class View:
  """One part of `objective.TokenView`, of as many rows as there are.

  Args:
    part: 'logprobs' or 'values'; what nobody asks for is not computed.
    rows: so many at a time; they divide over the devices.
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

  def __call__(self, params: Any, rows: Rows) -> np.ndarray:  # [B, T]
    """`params` as `view_tokens` takes them."""
    B, parts = len(rows.tokens), []
    for first in range(0, B, self._rows):
      some = slice(first, first + self._rows)
      given = rows.tokens[some], rows.segment_ids[some]
      missing = self._rows - len(given[0])
      padded = [np.pad(x, ((0, missing), (0, 0))) for x in given]
      with jax.set_mesh(self._mesh):
        parts.append(self._read(params, *put_rows(padded, self._mesh)))
    return np.concatenate([np.asarray(part) for part in parts])[:B]


class Reference:
  """A policy that stays as it is, with which another is compared.

  Args:
    backbone: its parameters, on the mesh, split as a policy's are.
    offload: whether they wait in the memory of the host and are on the devices
      only while they are read.
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

  def read(self, rows: Rows) -> Rows:
    """The rows with its log-probabilities."""
    params = {'backbone': jax.device_put(self.backbone, self._placed)}
    return rows._replace(reference_logprobs=self._view(params, rows))

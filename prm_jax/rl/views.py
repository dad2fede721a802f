"""Computes a model's log-probabilities or values of chains; returns NumPy.

EpisodeRows, any number -> trees of a few of them, spread over the mesh
  -> log-probabilities or values [B, T]
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prm_jax.models import LoraConfig, TransformerConfig
from prm_jax.rl.episodes import EpisodeRows
from prm_jax.rl.objective import view_tokens
from prm_jax.rl.trees import Trees, interleaved, lay_out, layout_for, part_of
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
  """Returns a jitted function: params, Trees -> a part.

  Args:
    part: the name of a field of `objective.TokenView`.
  """

  def read(params: Any, trees: Trees) -> jax.Array:  # [C, T]
    return getattr(view_tokens(params, trees, model, lora), part)

  # Whole on every device, so that every process can read all of it.
  return jax.jit(read, out_shardings=NamedSharding(mesh, PartitionSpec()))


class View:
  """Computes one part of `objective.TokenView` for any number of chains.

  Args:
    part: 'logprobs' or 'values'; the other is not computed.
    rows: number of chains of a call; it must divide over the devices.

  Attributes:
    layout: of the rows that it reads.
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
    self.layout = layout_for(model, mesh)
    self._read = jit_view(part, model, mesh, lora)

  def __call__(self, params: Any, rows: EpisodeRows) -> np.ndarray:  # [B, T]
    """Returns the part; `params` are as `view_tokens` takes them."""
    B, calls = len(rows.tokens), -(-len(rows.tokens) // self._rows)
    missing = calls * self._rows - B
    tokens = np.pad(rows.tokens, ((0, missing), (0, 0)))
    lengths = np.pad(rows.lengths, (0, missing))
    order = interleaved(B + missing, calls)
    trees = lay_out(tokens[order], lengths[order], calls, self.layout)
    parts = []
    for call in range(calls):
      given = part_of(trees, call, calls)
      with jax.set_mesh(self._mesh):
        parts.append(self._read(params, put_rows(given, self._mesh)))
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

"""Lowers the programs with which a policy is opened and samples, on shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.aot.shapes import Program, abstract_params, bytes_of, placed
from prm_jax.aot.useful_flops import reading
from prm_jax.inference.packing import bucket
from prm_jax.inference.sampler import SamplingConfig, Slots, Stops
from prm_jax.inference.writer import (
  PROMPT_TOKENS,
  SMALLEST_BUCKET,
  cache_bucket,
  jit_chunk,
  jit_read,
  jit_resize,
)
from prm_jax.models import (
  TransformerConfig,
  attention_flops,
  init_cache,
  init_params,
  product_flops,
  unstack_layers,
)
from prm_jax.models.cache_shardings import cache_sharding, decoding_shardings
from prm_jax.models.decoding_params import jit_unstack, kernels_of, parts_of


class Sampling(NamedTuple):
  """Describes the programs with which a policy samples.

  Attributes:
    length: tokens of its longest chain.
  """

  model: TransformerConfig
  config: SamplingConfig
  length: int
  mesh: Mesh

  def params(self) -> Any:
    """Returns the parameters' shapes, in the form that the sampler reads."""
    return self._unstacked(self.stacked())

  def _unstacked(self, stacked: Any) -> Any:
    spread = self.config.spread
    return placed(
      jax.eval_shape(lambda x: unstack_layers(x, self.model), stacked),
      decoding_shardings(stacked, self.model, self.mesh, spread),
    )

  def stacked(self) -> Any:
    """Returns the parameters' shapes as they are trained, in its dtype."""
    return jax.eval_shape(
      lambda key: init_params(key, self.model), jax.random.key(0)
    )

  def cache(self, length: int = 0) -> Any:
    """Returns the shapes of a cache, by default the largest that it needs."""
    return self._cache(self.config.slots, length or self.length)

  def prompts(self) -> Any:
    """Returns the shapes of the keys and values of prompts read in a call.

    They stay until other prompts are read.
    """
    return self._cache(*self._prompts())

  def _cache(self, rows: int, length: int) -> Any:
    split = cache_sharding(self.model, rows, self.mesh)
    shapes = jax.eval_shape(lambda: init_cache(self.model, rows, length))
    return placed(shapes, jax.tree.map(lambda _: split, shapes))

  def opening(self) -> Program:
    """Returns the part of `take_over` in which a device holds the most."""
    stacked = abstract_params(self.model, None, self.mesh)['backbone']
    parts = parts_of(stacked)
    before = [bytes_of(part) for part in parts]
    after = [bytes_of(self._unstacked(part)) for part in parts]
    # Embeddings and scales stay until the end.
    kept = [bytes_of(part) - bytes_of(kernels_of(part)) for part in parts]
    held = [
      sum(after[:k]) + sum(kept[:k]) + sum(before[k + 1 :])
      for k in range(len(parts))
    ]
    k = max(range(len(parts)), key=lambda k: held[k] + before[k] + after[k])
    take = jit_unstack(parts[k], self.model, self.mesh, self.config.spread)

    def lower() -> jax.stages.Lowered:
      with jax.set_mesh(self.mesh):
        return take.lower(parts[k])

    return Program(lower, self.mesh.size, beside=held[k])

  def resizing(self) -> Program | None:
    """Returns the last growth of the cache; None if it never grows."""
    lengths = {cache_bucket(n) for n in range(1, self.length + 1)}
    shorter = max((n for n in lengths if n < self.length), default=0)
    if not shorter:
      return None
    resize = jit_resize(self.model, self.mesh, self.config.slots)

    def lower() -> jax.stages.Lowered:
      with jax.set_mesh(self.mesh):
        return resize.lower(self.cache(shorter), self.length)

    beside = bytes_of(self.params()) + bytes_of(self.prompts())
    cache = bytes_of(self.cache(shorter))
    return Program(lower, self.mesh.size, cache=cache, beside=beside)

  def lower_read(self) -> jax.stages.Lowered:
    """Lowers the call in which `Writer` reads as many prompts as it can."""
    params = self.params()
    tokens = jax.ShapeDtypeStruct(self._prompts(), jnp.int32)
    with jax.set_mesh(self.mesh):
      return jit_read(self.model, self.config.spread).lower(params, tokens)

  def _prompts(self) -> tuple[int, int]:
    """Returns the largest prompt length that leaves room to write."""
    longest = max(1, self.length - self.config.max_tokens)
    T = bucket(longest, SMALLEST_BUCKET)
    return max(1, min(PROMPT_TOKENS // T, bucket(self.config.slots, 1))), T

  def lower_chunk(self) -> jax.stages.Lowered:
    """Lowers a chunk of `Writer`, with chains of the greatest length.

    The body of its loop over tokens counts once: the work is that of one token
    in every slot.
    """
    whole = NamedSharding(self.mesh, P())

    def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    B = self.config.slots
    slots = Slots(*(of(jnp.int32, B) for _ in range(4)), of(jnp.uint32, B, 2))
    # The shapes do not depend on which tokens stop a chain.
    stops = Stops(separator=2, end=3)
    chunk = jit_chunk(self.model, self.mesh, self.config, stops)
    params, cache = self.params(), self.cache()
    with jax.set_mesh(self.mesh):
      return chunk.lower(params, slots, cache, of(jnp.int32))

  def programs(self) -> dict[str, Program]:
    """Returns the programs: reading prompts, writing, and a longer cache.

    What the sampler holds counts beside them: its parameters, the cache of all
    slots while prompts are read for some, and afterwards these prompts. Copying
    them into slots takes less than writing.
    """
    B, size, model = self.config.slots, self.mesh.size, self.model
    rows, length = self._prompts()
    # Of the last layer keys and values alone.
    whole = reading(model, rows, length)
    share = (model.n_layers - 1) / model.n_layers
    last = 4 * rows * length * model.d_model * model.n_kv_heads * model.head_dim
    resize = self.resizing()
    return {
      'read': Program(
        self.lower_read,
        size,
        share * whole['products'] + last,
        share * whole['attention'],
        beside=bytes_of(self.cache()),
      ),
      # One token that sees a full cache, and its logits.
      'sample': Program(
        self.lower_chunk,
        size,
        product_flops(model, B, B),
        attention_flops(model, B * self.length),
        cache=bytes_of(self.cache()),
        beside=bytes_of(self.prompts()),
      ),
    } | ({'resize': resize} if resize else {})

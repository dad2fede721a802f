"""Samples from a transformer: pure functions that `Writer` (writer.py) jits.

    prompts -> read_prompts -> keys and values of each, read once
      -> insert into free slots, one for each sample
      -> sample_chunk: some tokens of every slot, with their log-probabilities

All shapes are static: B slots, a cache of S positions, prompts in buckets. A
token is drawn from its sample's own key and its position, so the result depends
neither on the other samples nor on the slot, but for bfloat16's rounding, which
depends on the shape of what is computed together.
"""

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.models import (
  Cache,
  TransformerConfig,
  decode,
  init_cache,
  lm_logits,
)
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above_up_to, at_least, from_to_below
from prm_jax.runtime.errors import UserError

PIECE = 256  # prompt tokens read at once; bounds the attention scores' memory


COLDEST = 1e-4  # logits divided by less overflow float32


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """Says how tokens are drawn, and for how many chains at once.

  Filters apply in the order of the attributes, each to what the ones before it
  left; equally likely tokens are kept or dropped together.

  Attributes:
    temperature: divides the logits, at least COLDEST; 0 takes the most likely
      token.
    top_k: keeps the k most likely tokens; 0 keeps all.
    top_p: keeps the fewest most likely tokens whose probabilities add up to
      this (Holtzman et al., 2020); 1 keeps all.
    min_p: keeps tokens with at least this share of the highest probability
      (Nguyen et al., 2024); 0 keeps all.
    slots: number of chains that are written at once.
    max_tokens: most tokens of one completion.
    spread: whether parameters are split over `fsdp` as well as `model`. For
      models that do not fit otherwise: slower, because devices then exchange
      hidden states within every layer.
    kept: size of the cache from which search continues partial chains, in
      chains of the longest length; their keys and values stay on the device
      between calls, and the least recently used are dropped.

  Raises:
    checks.Faults: values are out of range.
  """

  temperature: Annotated[float, from_to_below(0, math.inf)] = 1.0
  top_k: Annotated[int, at_least(0)] = 0
  top_p: Annotated[float, above_up_to(0, 1)] = 1.0
  min_p: Annotated[float, from_to_below(0, 1)] = 0.0
  slots: Annotated[int, at_least(1)] = 64
  max_tokens: Annotated[int, at_least(1)] = 256
  spread: bool = False
  kept: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)
    if 0 < self.temperature < COLDEST:
      checks.fail(
        'temperature',
        self.temperature,
        f'expected 0, which takes the most likely token, or >= {COLDEST}',
      )

  def check_devices(self, rows: int) -> None:
    """Raises UserError unless the slots divide over so many devices."""
    if self.slots % rows:
      raise UserError(
        f'sampling.slots={self.slots} does not divide over replica x fsdp = '
        f'{rows} devices; make it a multiple of {rows}'
      )


class Slots(NamedTuple):
  """Holds the chains being written; a slot with no tokens left is free."""

  token: jax.Array  # [B] int32, the last token, not yet read
  position: jax.Array  # [B] int32, position of that token
  tokens_left: jax.Array  # [B] int32, tokens that may still be written
  steps_left: jax.Array  # [B] int32, steps that may still be written
  key: jax.Array  # [B, 2] uint32, seeds the chain's tokens


class Stops(NamedTuple):
  """Holds the ids that end a step and a chain."""

  separator: int
  end: int


def read_prompts(
  params: Any,  # from `unstack_layers`
  tokens: jax.Array,  # [G, T], padded on the right; T < PIECE or a multiple
  config: TransformerConfig,
  spread: bool = False,  # see `decode`
) -> Cache:
  """Returns the keys and values of prompts, read PIECE tokens at a time."""
  G, T = tokens.shape
  first = jnp.zeros(G, jnp.int32)
  return read_on(
    params, tokens, first, init_cache(config, G, T), config, spread
  )


def read_on(
  params: Any,  # from `unstack_layers`
  tokens: jax.Array,  # [G, T] as of `read_prompts`
  first: jax.Array,  # [G] first positions; what precedes them is in the cache
  cache: Cache,
  config: TransformerConfig,
  spread: bool = False,  # see `decode`
) -> Cache:
  """Adds to a cache the tokens that follow what is already in it."""
  T = tokens.shape[1]
  size = min(T, PIECE)

  def read(i: jax.Array, cache: Cache) -> Cache:
    at = i * size
    piece = jax.lax.dynamic_slice_in_dim(tokens, at, size, 1)
    positions = first[:, None] + at + jnp.arange(size)
    return decode(params, config, piece, positions, cache, spread)[1]

  return jax.lax.fori_loop(0, T // size, read, cache)


def next_logprobs(
  params: Any,  # from `unstack_layers`
  tokens: jax.Array,  # [G, T] as of `read_prompts`: all but the last of each
  last: jax.Array,  # [G] the last token of each
  position: jax.Array,  # [G] its position
  options: jax.Array,  # [G, O] ids that may come next
  config: TransformerConfig,
  spread: bool = False,  # see `decode`
) -> jax.Array:  # [G, O] float32
  """Returns log-probabilities of the next token, at temperature 1."""
  cache = read_prompts(params, tokens, config, spread)
  # Room for the last token, where it is the first beyond the prompt.
  cache = resize(cache, tokens.shape[1] + 1)
  hidden, _ = decode(
    params, config, last[:, None], position[:, None], cache, spread
  )
  logits = lm_logits(params, config, hidden)[:, 0]
  return jnp.take_along_axis(jax.nn.log_softmax(logits), options, axis=1)


def insert(
  cache: Cache,
  prompts: Cache,  # from `read_prompts`
  rows: jax.Array,  # [B] prompts to copy
  slots: jax.Array,  # [B] slots to copy them to
  count: jax.Array,  # [] number of copies; later entries are ignored
) -> Cache:
  """Copies prompts into slots.

  A prompt may be longer than what the slot needs of it: attention never sees
  positions beyond the slot's own.
  """

  def copy(to: jax.Array, source: jax.Array, i: jax.Array) -> jax.Array:
    one = jax.lax.dynamic_slice_in_dim(source, rows[i], 1)
    one = one[tuple(slice(size) for size in to.shape)]
    return jax.lax.dynamic_update_slice_in_dim(to, one, slots[i], 0)

  def step(i: jax.Array, cache: Cache) -> Cache:
    return jax.tree.map(lambda a, b: copy(a, b, i), cache, prompts)

  return jax.lax.fori_loop(0, count, step, cache)


def resize(cache: Cache, length: int) -> Cache:
  """Cuts or pads a cache to positions 0 to `length` - 1."""

  def resize_one(x: jax.Array) -> jax.Array:  # [B, K, S, H]
    missing = max(0, length - x.shape[2])
    return jnp.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0)))[:, :, :length]

  return jax.tree.map(resize_one, cache)


def sample_chunk(
  params: Any,  # from `unstack_layers`
  slots: Slots,
  cache: Cache,
  enough: jax.Array,  # [] ends early once this many slots are free
  *,
  config: TransformerConfig,
  sampling: SamplingConfig,
  stops: Stops,
  length: int,
) -> tuple[jax.Array, jax.Array, Slots, Cache]:
  """Writes up to `length` tokens in every slot that is not free.

  A slot becomes free at the end of its chain, at its last step or token, or
  after an empty step. The cache needs room in every slot for `length` more
  positions, or for all that the slot may still write.

  Returns:
    Tokens [B, length] with -1 where none was written; their log-probabilities
    [B, length] under the model at temperature 1, unfiltered; slots; cache.
  """
  B = slots.token.shape[0]

  def continues(
    state: tuple[jax.Array, Slots, Cache, jax.Array, jax.Array],
  ) -> jax.Array:
    t, slots, *_ = state
    free = B - (slots.tokens_left > 0).sum()
    return (t < length) & (free < enough)

  def step(
    state: tuple[jax.Array, Slots, Cache, jax.Array, jax.Array],
  ) -> tuple[jax.Array, Slots, Cache, jax.Array, jax.Array]:
    t, slots, cache, tokens, logprobs = state
    hidden, cache = decode(
      params,
      config,
      slots.token[:, None],
      slots.position[:, None],
      cache,
      sampling.spread,
    )
    logits = lm_logits(params, config, hidden)[:, 0]
    token = draw(logits, slots.key, slots.position, sampling)
    chosen = jnp.take_along_axis(logits, token[:, None], 1)[:, 0]
    logprob = chosen - jax.nn.logsumexp(logits, -1)
    active = slots.tokens_left > 0
    tokens = tokens.at[:, t].set(jnp.where(active, token, -1))
    logprobs = logprobs.at[:, t].set(jnp.where(active, logprob, 0.0))
    slots = advance(slots, token, stops)
    return t + 1, slots, cache, tokens, logprobs

  tokens = jnp.full((B, length), -1, jnp.int32)
  state = 0, slots, cache, tokens, jnp.zeros((B, length))
  _, slots, cache, tokens, logprobs = jax.lax.while_loop(continues, step, state)
  return tokens, logprobs, slots, cache


def advance(slots: Slots, token: jax.Array, stops: Stops) -> Slots:
  """Returns the slots after one more token [B]; free slots do not change."""
  active = slots.tokens_left > 0
  ends_step = active & (token == stops.separator)
  # The built-in tokenizers end a problem, and a chain, with the end's id.
  begins = (slots.token == stops.separator) | (slots.token == stops.end)
  is_empty = ends_step & begins
  steps_left = slots.steps_left - ends_step
  stops_here = (token == stops.end) | is_empty | (steps_left <= 0)
  return Slots(
    jnp.where(active, token, slots.token),
    slots.position + active,
    jnp.where(active & ~stops_here, slots.tokens_left - 1, 0),
    steps_left,
    slots.key,
  )


def draw(
  logits: jax.Array,  # [B, V]
  keys: jax.Array,  # [B, 2] uint32
  positions: jax.Array,  # [B]
  sampling: SamplingConfig,
) -> jax.Array:  # [B] int32
  """Draws a token of each row from the filtered distribution.

  Inverts the distribution function at two levels: a block of about sqrt(V)
  tokens by its mass, then a token in the block. Only sums go over all of V.
  """
  if sampling.temperature == 0:
    return logits.argmax(-1).astype(jnp.int32)
  V = logits.shape[1]
  scaled = logits / sampling.temperature
  highest = scaled.max(-1, keepdims=True)
  least = least_logit(scaled, sampling)

  def mass(x: jax.Array) -> jax.Array:  # [B, n] logits
    return jnp.where(x >= least, jnp.exp(x - highest), 0.0)

  def choose(masses: jax.Array, uniform: jax.Array) -> jax.Array:
    reached = masses.cumsum(-1)
    # Rounding must not choose a token without mass.
    wanted = uniform[:, None] * reached[:, -1:]
    return ((reached > wanted) & (masses > 0)).argmax(-1)

  size = math.isqrt(V - 1) + 1
  whole = jnp.pad(mass(scaled), ((0, 0), (0, -V % size)))
  uniform = jax.vmap(_two_uniforms)(keys, positions)
  block = choose(whole.reshape(len(logits), -1, size).sum(-1), uniform[:, 0])
  indices = block[:, None] * size + jnp.arange(size)
  inside = jnp.take_along_axis(
    scaled, indices, 1, mode='fill', fill_value=-jnp.inf
  )
  inside = jnp.where(indices < V, mass(inside), 0.0)
  token = block * size + choose(inside, uniform[:, 1])
  return token.astype(jnp.int32)


def _two_uniforms(key: jax.Array, position: jax.Array) -> jax.Array:  # [2]
  key = jax.random.wrap_key_data(key, impl='threefry2x32')
  return jax.random.uniform(jax.random.fold_in(key, position), (2,))


def least_logit(
  logits: jax.Array,  # [B, V], divided by the temperature
  sampling: SamplingConfig,
) -> jax.Array:  # [B, 1]
  """Returns the smallest logit that passes all filters, -inf without any."""
  highest = logits.max(-1, keepdims=True)
  least = jnp.full_like(highest, -jnp.inf)
  if 0 < sampling.top_k < logits.shape[1]:
    ones = jnp.ones_like(logits)
    least = threshold(logits, ones, jnp.float32(sampling.top_k))
  if sampling.top_p < 1:
    mass = jnp.where(logits >= least, jnp.exp(logits - highest), 0.0)
    target = sampling.top_p * mass.sum(-1, keepdims=True)
    least = jnp.maximum(least, threshold(logits, mass, target))
  if sampling.min_p > 0:
    least = jnp.maximum(least, highest + math.log(sampling.min_p))
  return least


def threshold(
  x: jax.Array,  # [B, V] float32
  weights: jax.Array,  # [B, V] >= 0
  target: jax.Array,  # [B, 1], at most the sum of the weights
) -> jax.Array:  # [B, 1]
  """Returns the largest t for which the weights of x >= t reach the target.

  Searches bit by bit over integers that are ordered as the floats are, which
  takes 32 sums and no sort, and is exact.
  """
  sign = jnp.uint32(1 << 31)
  x = jnp.where(x == 0, 0.0, x)  # -0.0 has other bits
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  order = jnp.where(bits & sign, ~bits, bits | sign)

  def try_bit(i: jax.Array, found: jax.Array) -> jax.Array:
    higher = found | (sign >> i.astype(jnp.uint32))
    total = jnp.where(order >= higher, weights, 0.0).sum(-1, keepdims=True)
    return jnp.where(total >= target, higher, found)

  found = jnp.zeros((len(x), 1), jnp.uint32)
  found = jax.lax.fori_loop(0, 32, try_bit, found)
  bits = jnp.where(found & sign, found & ~sign, ~found)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)

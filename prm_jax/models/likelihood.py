"""Log-probabilities that the backbone gives to the tokens it reads.

The LM loss, RL and its metrics read them, and one of them is a signal without
step labels: a step with a number that the backbone did not expect is wrong more
often than other steps. A head with `HeadConfig.likelihood` reads
`step_likelihood` beside the hidden state.

The logits of all tokens would be the largest arrays of a train step: 20 GB for
16,384 tokens and 152,000 words, with their gradient. So they are computed part
by part, and again for the gradient, which is written out.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec as P

from prm_jax.data.encoding import DIGITS, WORDS
from prm_jax.models.config import TransformerConfig
from prm_jax.models.rows import Rows
from prm_jax.models.take import add_at
from prm_jax.models.transformer import output_embedding
from prm_jax.runtime.sharding import BATCH, fitting_axes

# Tokens of a device whose logits for all words are in memory at the same time.
# With a share of the words they are as many more.
TOKENS_PER_PART = 512


class TokenTerms(NamedTuple):
  """Holds what the backbone says of each token; 0 where it is not wanted."""

  logprobs: jax.Array  # [B, T] float32, log p(token | those before it) in nats
  entropy: jax.Array  # [B, T] float32, of the distribution it is drawn from


class _Sums(NamedTuple):
  """Holds what the gradient of a token's terms needs; 0 where not wanted."""

  normaliser: jax.Array  # [B, T] log of the sum of all words' exp(logit)
  mean: jax.Array  # [B, T] mean of the logits under their softmax


class _Shares(NamedTuple):
  """Says how devices share the work: names of mesh axes, None for no axis."""

  rows: Any  # devices along these axes have their own rows
  words: Any  # along this axis, their own part of the vocabulary
  width: Any  # along this axis of `rows`, their own part of its vectors

  @property
  def tokens(self) -> int:
    """Number of tokens whose logits a device computes at the same time."""
    split = jax.lax.axis_size(self.words) if self.words else 1
    return TOKENS_PER_PART * split

  def sum_words(self, x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, self.words) if self.words else x

  def whole_vectors(self, table: jax.Array) -> jax.Array:
    """Gathers the vectors of the words that a device has."""
    if not self.width:
      return table
    return jax.lax.all_gather(table, self.width, axis=1, tiled=True)

  def sum_rows(self, summed: jax.Array) -> jax.Array:  # [V, D]
    """Adds up gradients of the vectors; a device gets those of its part."""
    if not self.rows:
      return summed
    rest = self.rows
    if self.width:
      summed = jax.lax.psum_scatter(
        summed, self.width, scatter_dimension=1, tiled=True
      )
      rest = tuple(axis for axis in rest if axis != self.width)
    return jax.lax.psum(summed, rest)


def token_terms(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D] from `forward`
  tokens: jax.Array,  # [B, T]
  parents: jax.Array,  # [B, T], see `Rows`
  wanted: jax.Array,  # [B, T] bool; tokens without a parent are never wanted
) -> TokenTerms:
  """Returns log-probabilities and entropies of the wanted tokens.

  A device sorts its wanted tokens to the front and computes their logits part
  by part; parts that it does not want cost nothing.
  """
  chex.assert_rank(tokens, 2, custom_message='token_terms: tokens')
  chex.assert_shape(
    [parents, wanted, hidden[..., 0]],
    tokens.shape,
    custom_message='token_terms: parents, wanted and hidden',
  )
  table = output_embedding(backbone, model)
  wanted = wanted & (parents >= 0)
  return _terms(hidden, table, tokens, parents, wanted, model.dtype)


def token_logprobs(*args: Any) -> jax.Array:  # [B, T] float32
  """Returns the log-probabilities of `token_terms`, without the entropies."""
  return token_terms(*args).logprobs


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _terms(
  hidden: jax.Array,
  table: jax.Array,  # [V, D]
  tokens: jax.Array,
  parents: jax.Array,
  wanted: jax.Array,
  dtype: str,
) -> TokenTerms:
  return _read_all((hidden, table, tokens, parents, wanted), dtype)[0]


def _read_all(
  inputs: tuple[jax.Array, ...], dtype: str
) -> tuple[TokenTerms, _Sums]:
  read = functools.partial(_read_words, dtype=dtype)
  return _on_devices(read, inputs, (), lambda shares: P(shares.rows))


def _terms_forward(
  hidden: Any,  # each holds a `value`, and whether it has a gradient
  table: Any,
  tokens: Any,
  parents: Any,
  wanted: Any,
  dtype: str,
) -> tuple[TokenTerms, tuple[Any, ...]]:
  inputs = tuple(x.value for x in (hidden, table, tokens, parents, wanted))
  terms, sums = _read_all(inputs, dtype)
  # A frozen table needs no gradient, which would be a third of the work.
  return terms, (inputs, sums, () if table.perturbed else None)


def _terms_backward(
  dtype: str, saved: tuple[Any, ...], grads: TokenTerms
) -> tuple[jax.Array | None, ...]:
  inputs, sums, learned = saved
  zero = functools.partial(jnp.zeros, inputs[2].shape)
  grads = TokenTerms(
    *(zero() if isinstance(g, SymbolicZero) else g for g in grads)
  )
  hidden, table = _on_devices(
    functools.partial(
      _words_gradient, dtype=dtype, of_table=learned is not None
    ),
    inputs,
    (sums, grads),
    lambda s: (P(s.rows), P(s.words, s.width)),
  )
  return hidden, table, None, None, None


_terms.defvjp(_terms_forward, _terms_backward, symbolic_zeros=True)


def _on_devices(
  function: Callable[..., Any],
  inputs: tuple[jax.Array, ...],  # those of `_terms`
  more: tuple[Any, ...],  # arrays [B, T]
  out_specs: Callable[[_Shares], Any],
) -> Any:
  """Calls function(inputs, more, shares) on each device with its share."""
  if jax.sharding.get_abstract_mesh().empty:
    return function(inputs, more, _Shares(None, None, None))
  hidden, table = inputs[:2]
  sizes = len(hidden), *table.shape
  shares = _Shares(*fitting_axes(sizes, (BATCH, 'model', 'fsdp')))
  if not shares.rows:
    shares = shares._replace(width=None)
  rows, vectors = P(shares.rows), P(shares.words, shares.width)
  return jax.shard_map(
    functools.partial(function, shares=shares),
    in_specs=((rows, vectors, rows, rows, rows), rows),
    out_specs=out_specs(shares),
    # What is equal on all devices of an axis was summed over it here.
    check_vma=False,
  )(inputs, more)


class _Parts(NamedTuple):
  """Holds the wanted tokens of some rows in parts of equal size."""

  places: jax.Array  # [N, M] int32, index of the token among all of the rows;
  # no two are equal, as padding has those that follow the last token
  before: jax.Array  # [N, M] int32, index of its parent
  ids: jax.Array  # [N, M] int32, its index in this device's part of the words
  taken: jax.Array  # [N, M] bool, False for what is not wanted


def _make_parts(
  tokens: jax.Array,
  parents: jax.Array,
  wanted: jax.Array,
  first_word: Any,
  shares: _Shares,
) -> _Parts:
  B, T = tokens.shape
  size = min(B * T, shares.tokens)
  order = jnp.argsort(~wanted.ravel(), stable=True)
  # Padding has places of its own, beyond all tokens.
  beyond = B * T + jnp.arange(-B * T % size, dtype=order.dtype)
  places = jnp.append(order, beyond).reshape(-1, size)
  taken = jnp.minimum(places, B * T - 1)
  before = jnp.maximum(parents, 0) + T * jnp.arange(B)[:, None]
  count = jnp.arange(places.size).reshape(places.shape) < wanted.sum()
  return _Parts(
    places, before.ravel()[taken], tokens.ravel()[taken] - first_word, count
  )


def _first_word(table: jax.Array, shares: _Shares) -> Any:
  """Returns the id of the first word that this device has."""
  if not shares.words:
    return 0
  return jax.lax.axis_index(shares.words) * len(table)


def _logits(states: jax.Array, table: jax.Array) -> jax.Array:
  return jnp.einsum(
    'MD,VD->MV', states, table, preferred_element_type=jnp.float32
  )


def _scan_parts(
  part_of: Callable[[_Parts], Any], parts: _Parts, carry: Any = None
) -> tuple[Any, Any]:
  """Runs a function of carry and part; skips parts without wanted tokens."""

  def step(carry: Any, part: _Parts) -> tuple[Any, Any]:
    shapes = jax.eval_shape(part_of, carry, part)[1]

    def skip(carry: Any, _: _Parts) -> tuple[Any, Any]:
      zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
      return carry, zeros

    return jax.lax.cond(part.taken.any(), part_of, skip, carry, part)

  return jax.lax.scan(step, carry, parts)


def _read_words(
  inputs: tuple[jax.Array, ...], more: tuple, shares: _Shares, dtype: str
) -> tuple[TokenTerms, _Sums]:
  """Returns the terms of a device's rows, and the sums behind them."""
  del more
  hidden, table, tokens, parents, wanted = inputs
  table = shares.whole_vectors(table.astype(dtype))
  flat = hidden.reshape(-1, hidden.shape[-1])
  first = _first_word(table, shares)
  parts = _make_parts(tokens, parents, wanted, first, shares)

  def read(_: None, part: _Parts) -> tuple[None, tuple[jax.Array, ...]]:
    logits = _logits(flat[part.before], table)
    highest = logits.max(-1)
    if shares.words:
      highest = jax.lax.pmax(highest, shares.words)
    weights = jnp.exp(logits - highest[:, None])
    total = shares.sum_words(weights.sum(-1))
    normaliser = highest + jnp.log(total)
    mean = shares.sum_words((weights * logits).sum(-1)) / total
    own = part.ids[:, None] == jnp.arange(len(table))
    chosen = shares.sum_words(jnp.where(own, logits, 0.0).sum(-1))
    found = chosen - normaliser, normaliser - mean, normaliser, mean
    return None, tuple(jnp.where(part.taken, x, 0.0) for x in found)

  _, found = _scan_parts(read, parts)

  def put_back(values: jax.Array) -> jax.Array:  # [N, M] -> [B, T]
    found = jnp.zeros(tokens.size)
    found = found.at[parts.places].set(values, mode='drop', unique_indices=True)
    return found.reshape(tokens.shape)

  logprobs, entropy, normaliser, mean = map(put_back, found)
  return TokenTerms(logprobs, entropy), _Sums(normaliser, mean)


def _words_gradient(
  inputs: tuple[jax.Array, ...],
  more: tuple[_Sums, TokenTerms],
  shares: _Shares,
  dtype: str,
  of_table: bool,
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the gradients of a device's hidden states and of its words.

  With p the softmax of the logits z, m their mean under it and y the token,
  d log p_y / dz = 1_y - p and d entropy / dz = -p (z - m).
  """
  hidden, table, tokens, parents, wanted = inputs
  sums, grads = more
  rounded = shares.whole_vectors(table.astype(dtype))
  flat = hidden.reshape(-1, hidden.shape[-1])
  first = _first_word(table, shares)
  parts = _make_parts(tokens, parents, wanted, first, shares)

  def read(summed: Any, part: _Parts) -> tuple[Any, jax.Array]:
    def at(values: jax.Array) -> jax.Array:  # [B, T] -> [M, 1]
      picked = values.ravel().at[part.places].get(mode='clip')
      return jnp.where(part.taken, picked, 0.0)[:, None]

    states = flat[part.before]
    logits = _logits(states, rounded)
    p = jnp.exp(logits - at(sums.normaliser))
    own = part.ids[:, None] == jnp.arange(len(table))
    of_logprob, of_entropy = at(grads.logprobs), at(grads.entropy)
    slope = jnp.where(own, of_logprob, 0.0) - p * (
      of_logprob + of_entropy * (logits - at(sums.mean))
    )
    slope = jnp.where(part.taken[:, None], slope, 0.0).astype(dtype)
    if of_table:
      summed += jax.lax.dot_general(
        slope,
        states,
        (((0,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
      )
    return summed, slope @ rounded

  start = jnp.zeros(rounded.shape) if of_table else None
  summed, slopes = _scan_parts(read, parts, start)
  slopes = shares.sum_words(slopes)
  # Several tokens may follow one; the others of a part add nothing.
  slopes = slopes.reshape(-1, slopes.shape[-1]).astype(flat.dtype)
  back = add_at(len(flat), parts.before.ravel(), slopes).reshape(hidden.shape)
  if not of_table:
    return back, None
  return back, shares.sum_rows(summed).astype(table.dtype)


def step_likelihood(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D]
  rows: Rows,
) -> jax.Array:  # [B, P, 2] float32
  """Sums the log-probabilities of each step's tokens, of each kind.

  Returns:
    The sums in nats over tokens with a digit and over others, as
    `StepFormat.step_kinds` tells them apart; 0 for a step without such tokens.
  """
  values = token_logprobs(
    backbone, model, hidden, rows.tokens, rows.parents, rows.kinds > 0
  )
  places, ends = jnp.arange(rows.tokens.shape[1]), rows.step_ends[..., None]
  # The tokens that a step's end sees, from the step's first one on.
  own = (places <= ends) & (ends <= rows.last[:, None])
  own &= rows.positions[:, None] >= rows.step_begins[..., None]  # [B, P, T]
  kinds, values = rows.kinds[:, None], values[:, None]
  sums = [
    jnp.where(own & (kinds == kind), values, 0.0).sum(-1)
    for kind in (DIGITS, WORDS)
  ]
  return jnp.stack(sums, -1)

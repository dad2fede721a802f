"""Scores text with a trained PRM: problems and steps in, step scores out.

    (problem, steps) -> StepFormat -> packed rows -> score.py, jitted -> scores

loading.py makes a `Scorer` of a training run, published.py of a published PRM.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.data import tries
from prm_jax.data.encoding import StepFormat
from prm_jax.inference import score as score_lib
from prm_jax.inference.packing import (
  LONGEST,
  EncodedChain,
  Layout,
  Packing,
  bucket,
  pack_rows,
)
from prm_jax.models import HeadConfig, Rows, TransformerConfig
from prm_jax.models.attention import AT_ONCE
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import batch_sharding

# Real tokens of one device in one call; the rest allows for gaps of packing.
CALL_FILL = int(0.95 * score_lib.MAX_TOKENS_PER_CALL)
# The candidate axis only gathers scores, so padding it costs nothing and saves
# compiled programs.
SMALLEST_CANDIDATES = 16
# Of parameters and rows, values [B, P, ...] at the step ends.
Read = Callable[[Any, Rows], tuple[jax.Array, ...]]


@dataclasses.dataclass
class ScoringStats:
  """Counts what a scorer computed, to show padding and recompilation."""

  programs: set[tuple] = dataclasses.field(default_factory=set)
  # Without padding; what chains of a row share counts once.
  tokens: int = 0
  padded_tokens: int = 0  # with padding


class StepFeatures(NamedTuple):
  """Holds what a head reads of the R steps of a chain; see `row_features`."""

  states: np.ndarray  # [R, D] float32
  likelihood: np.ndarray  # [R, 2] float32


class Scorer:
  """Scores steps with a trained PRM; `prm_jax.load` returns one.

  Attributes:
    params: {'backbone', 'head'}, as trained.
    model: the backbone's architecture.
    head: the head's configuration.
    format: how problems and steps become ids.
    name: identifies the PRM.
    mesh: devices that hold the parameters.
    stats: counts of what was scored so far.
  """

  def __init__(
    self,
    params: Any,
    model: TransformerConfig,
    head: HeadConfig,
    fmt: StepFormat,
    mesh: Mesh,
    name: str = 'prm',
  ) -> None:
    self.name = name
    self.params, self.model, self.head, self.format = params, model, head, fmt
    self.stats = ScoringStats()
    self.mesh = mesh
    self._row_multiple = mesh.shape['replica'] * mesh.shape['fsdp']
    self._row_scores = jit_row_scores(model, head, mesh)
    self._row_features = jit_row_features(model, mesh)
    self._best_of_n = jax.jit(
      functools.partial(score_lib.best_of_n, model=model, head=head),
      static_argnames='how',
      out_shardings=NamedSharding(mesh, P()),
    )

  @property
  def head_flops(self) -> float:
    """Returns the floating point operations of the head for one step."""
    head = self.params['head'].items()
    return 2.0 * sum(x.size for name, x in head if 'kernel' in name)

  def score(self, problem: str, steps: Sequence[str]) -> np.ndarray:
    """Returns the probability that each step is right, [P] in [0, 1]."""
    return self.score_many([(problem, steps)])[0]

  def score_many(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[np.ndarray]:
    """Returns `score` of many (problem, steps) pairs, packed together.

    Raises:
      UserError: a chain has no steps or does not fit the model's window.
    """
    return [
      scores
      for (scores,) in self._read_many(
        'scoring', chains, lambda *rows: (self._row_scores(*rows),)
      )
    ]

  def features_many(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[StepFeatures]:
    """Returns what heads read of many (problem, steps) pairs.

    Raises:
      UserError: as `score_many`.
    """
    found = self._read_many('reading', chains, self._row_features)
    return [StepFeatures(*each) for each in found]

  def _read_many(
    self,
    what: str,
    chains: Sequence[tuple[str, Sequence[str]]],
    read: Read,
  ) -> list[tuple[np.ndarray, ...]]:  # [R, ...] of each chain
    """Packs chains together, and reads values [B, P, ...] at step ends.

    What overflows gives NaN to its step and to those after it, and to nothing
    else.
    """
    encoded = self._encode(chains)
    found: list[Any] = [None] * len(encoded)
    problems = [problem for problem, _ in chains]
    heartbeat, done = Heartbeat(f'{what} chains', len(encoded)), 0
    for group in _groups(problems, encoded, CALL_FILL * self._row_multiple):
      values = self._read_group(what, [encoded[i] for i in group], read)
      for i, own in zip(group, values, strict=True):
        broken = _is_broken(own)
        found[i] = self._read_alone(what, encoded[i], read) if broken else own
      done += len(group)
      heartbeat.at(done)
    return found

  def _read_group(
    self, what: str, chains: Sequence[EncodedChain], read: Read
  ) -> list[tuple[np.ndarray, ...]]:
    """Reads the chains of one call."""
    rows, layout, _ = self._pack(chains)
    with jax.set_mesh(self.mesh):
      values = read(self.params, self._put(rows))
    self._count((what,), rows)
    flat = [np.asarray(x).reshape(-1, *x.shape[2:]) for x in values]
    slots = [layout.slots[n, layout.step_mask[n]] for n in range(len(chains))]
    return [tuple(x[own] for x in flat) for own in slots]

  def _read_alone(
    self, what: str, chain: EncodedChain, read: Read
  ) -> tuple[np.ndarray, ...]:
    """Reads a chain up to the step that overflows; the rest is NaN.

    Masked keys have weight 0, but 0 times NaN is NaN: what overflows spoils all
    of its row, also the chains beside it and the steps before it.
    """
    tokens, ends, kinds = chain
    found: list[np.ndarray] = []
    sound, broken, steps = 0, len(ends) + 1, len(ends)
    while sound + 1 < broken:
      stop = ends[steps - 1] + 1
      part = tokens[:stop], ends[:steps], kinds[:stop]
      [values] = self._read_group(what, [part], read)
      if not found:
        found = [np.full_like(x, np.nan) for x in values]
      if _is_broken(values):
        broken = steps
      else:
        sound = steps
        for x, own in zip(found, values, strict=True):
          x[:steps] = own
      steps = (sound + broken) // 2
    return tuple(found)

  def best_of_n(
    self,
    problem: str,
    candidates: Sequence[Sequence[str]],
    aggregate: str = 'min',
  ) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Scores all candidates for one problem and picks the best.

    Args:
      candidates: N chains, each a sequence of steps.
      aggregate: how step scores become a chain score, see `score.aggregate`.

    Returns:
      The index of the best candidate (the first of equals), the chain scores
      [N], and the step scores of each candidate, [P] each.

    Raises:
      UserError: there are no candidates, one has no steps or does not fit the
        window, the aggregate is unknown, or a score is NaN and cannot be
        compared.
    """
    if not candidates:
      raise UserError('best_of_n without candidates: expected at least one')
    encoded = self._encode([(problem, steps) for steps in candidates])
    rows, layout, _ = self._pack(encoded)
    # The last candidate is repeated to fill the candidate axis to its bucket.
    fill = bucket(len(encoded), SMALLEST_CANDIDATES) - len(encoded)
    padded = Layout(*(np.pad(x, ((0, fill), (0, 0)), 'edge') for x in layout))
    with jax.set_mesh(self.mesh):
      best, chain_scores, step_scores = self._best_of_n(
        self.params, self._put(rows), padded, how=aggregate
      )
    self._count(('best_of_n', len(padded.slots), aggregate), rows)
    step_scores = np.asarray(step_scores)
    chain_scores = np.asarray(chain_scores)[: len(encoded)]
    if broken := int(np.isnan(chain_scores).sum()):
      raise UserError(
        f'{self.name}: the scores of {broken} of {len(encoded)} candidates for '
        f'{problem[:60]!r} are NaN: one of them overflows, and may spoil those '
        "that are read with it; load the model with dtype='float32', or score "
        'them one by one and leave that one out'
      )
    return (
      int(best),
      chain_scores,
      [step_scores[n, layout.step_mask[n]] for n in range(len(encoded))],
    )

  def _encode(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[EncodedChain]:
    encoded = []
    for problem, steps in chains:
      encoding = self.format.encode(problem, steps)
      if len(encoding.step_ends) < len(steps):
        raise UserError(
          f'chain of {len(steps)} steps does not fit '
          f'max_length={self.format.max_length}: only the first '
          f'{len(encoding.step_ends)} do; shorten it, or use a model with a '
          'longer window'
        )
      kinds = self.format.token_kinds(encoding)
      encoded.append((encoding.tokens, encoding.step_ends, kinds))
    return encoded

  def _pack(self, chains: Sequence[EncodedChain]) -> Packing:
    # A GPU computes attention between all tokens of a row, so sharing through
    # longer rows costs more there than it saves.
    on_gpu = self.mesh.devices.flat[0].platform == 'gpu'
    longest = AT_ONCE if on_gpu else LONGEST
    return pack_rows(chains, self._row_multiple, longest)

  def _put(self, rows: Rows) -> Rows:
    """Places each device's part of rows that every process holds in full."""
    placed = batch_sharding(self.mesh)
    return jax.tree.map(
      lambda rows: jax.make_array_from_callback(
        rows.shape, placed, rows.__getitem__
      ),
      rows,
    )

  def _count(self, program: tuple, rows: Rows) -> None:
    program += rows.tokens.shape
    if program not in self.stats.programs:
      logging.info('scoring: compiling %s', program)
    self.stats.programs.add(program)
    self.stats.tokens += int((rows.positions >= 0).sum())
    self.stats.padded_tokens += rows.tokens.size


def jit_row_scores(
  model: TransformerConfig, head: HeadConfig, mesh: Mesh
) -> Any:
  """Returns `score.row_scores` jitted, of params and rows."""
  return jax.jit(
    functools.partial(score_lib.row_scores, model=model, head=head),
    # Replicated, so that every process can read all scores.
    out_shardings=NamedSharding(mesh, P()),
  )


def jit_row_features(model: TransformerConfig, mesh: Mesh) -> Any:
  """Returns `score.row_features` jitted, of params and rows."""
  return jax.jit(
    functools.partial(score_lib.row_features, model=model),
    out_shardings=NamedSharding(mesh, P()),
  )


def _is_broken(values: Sequence[np.ndarray]) -> bool:
  return any(np.isnan(x).any() for x in values)


def _groups(
  problems: Sequence[str], encoded: Sequence[EncodedChain], fill: int
) -> list[list[int]]:
  """Groups chains into calls of about `fill` tokens each; returns indices.

  The chains of a problem stay together, as they share its tokens. Those of a
  call have one length bucket, or else all rows would be as long as the longest.
  """
  of_problem: dict[tuple[str, int], list[int]] = {}
  for i, problem in enumerate(problems):
    key = problem, bucket(len(encoded[i][0]))
    of_problem.setdefault(key, []).append(i)
  groups: list[list[int]] = []
  size, current = 0, 0
  for (_, length), members in sorted(
    of_problem.items(), key=lambda item: -item[0][1]
  ):
    unique = tries.unique_tokens([encoded[i][0] for i in members])
    if not groups or length != current or size + unique > fill:
      groups.append([])
      size, current = 0, length
    groups[-1] += members
    size += unique
  return groups

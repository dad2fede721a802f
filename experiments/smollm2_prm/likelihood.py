"""The log-probability that an untrained backbone gives each token of a chain.

    chains -> packed rows -> the cache on disk -> one step score per rule

All scores that need no training are made from these numbers, so they are
computed once and kept. An interrupted run resumes at the row where it stopped.
"""

import functools
import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import DoesNotFit, Encoding, StepFormat
from prm_jax.inference.packing import pack_rows
from prm_jax.models import Rows, TransformerConfig, forward, token_logprobs

ROWS_AT_ONCE = 4
DIGITS = '0123456789'


def row_logprobs(
  backbone: Any, rows: Rows, model: TransformerConfig
) -> jax.Array:  # [B, T] float32
  """Returns log p(token | earlier tokens of its chain), 0 for the first."""
  hidden = forward(backbone, model, *rows[:3])
  return token_logprobs(
    backbone, model, hidden, rows.tokens, rows.parents, rows.parents >= 0
  )


def encode(chain: Chain, fmt: StepFormat) -> Encoding | None:
  """Encodes a chain in the model's own format; None where no step fits."""
  try:
    return fmt.encode(chain.problem, chain.steps)
  except DoesNotFit:
    return None


def key_of(encoding: Encoding) -> str:
  """Returns the key of a chain in the cache."""
  return hashlib.sha256(encoding.tokens.tobytes()).hexdigest()[:24]


def _write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes the file as a whole or not at all."""
  part = path.with_suffix('.part.npz')
  np.savez(part, **arrays)
  os.replace(part, path)


def read_or_compute(
  encodings: Sequence[Encoding],
  path: pathlib.Path,
  load_backbone: Callable[[], Any],
  model: TransformerConfig,
  log: Callable[[str], None],
) -> dict[str, np.ndarray]:
  """Reads log-probabilities [T] by `key_of`; computes those not in the file.

  Args:
    path: an .npz that grows with every few rows; it belongs to one backbone,
      format and dtype.
    load_backbone: loads the parameters; called only if something is missing.
    log: prints one line.
  """
  known: dict[str, np.ndarray] = {}
  if path.exists():
    with np.load(path) as file:
      known = dict(file)
  missing = list({key_of(e): e for e in encodings}.items())
  missing = [(key, e) for key, e in missing if key not in known]
  if not missing:
    return known
  backbone = load_backbone()
  compute = jax.jit(functools.partial(row_logprobs, model=model))
  unmarked = [
    (e.tokens, e.step_ends, np.zeros(len(e.tokens), bool)) for _, e in missing
  ]
  rows, _, paths = pack_rows(unmarked, ROWS_AT_ONCE)
  length = rows.tokens.shape[1]
  row_of = np.array([path[0] for path in paths]) // length
  total = sum(len(e.tokens) for _, e in missing)
  done = 0
  for b in range(0, int(row_of.max()) + 1, ROWS_AT_ONCE):
    part = Rows(*(x[b : b + ROWS_AT_ONCE] for x in rows))
    found = np.asarray(compute(backbone, part))
    for n in np.flatnonzero((row_of >= b) & (row_of < b + ROWS_AT_ONCE)):
      key, encoding = missing[n]
      known[key] = found[row_of[n] - b, paths[n] % length]
      done += len(encoding.tokens)
    _write(path, known)
    log(f'{path.stem}: {done:,} of {total:,} tokens')
  return known


def step_scores(
  encoding: Encoding | None,
  logprobs: Mapping[str, np.ndarray],
  digit_tokens: frozenset[int],  # ids
  separator: int,
) -> dict[str, np.ndarray]:
  """Returns step scores [R] by each rule, from the tokens of the step alone.

  R steps fit the window; the others have no score. The separator belongs to the
  format and not to the step, so it is left out.

  Args:
    encoding: the chain; None where no step fits the window.
    logprobs: log-probabilities by `key_of`.
    digit_tokens: ids of the tokens that are digits.
    separator: number of tokens of the separator.
  """
  read = 0 if encoding is None else len(encoding.step_ends)
  scores = {name: np.zeros(read) for name in ('digits', 'mean', 'minimum')}
  if encoding is None:
    return scores
  values = logprobs[key_of(encoding)].astype(np.float64)
  is_digit = np.isin(encoding.tokens, [*digit_tokens])
  start = encoding.prompt_length
  for p, end in enumerate(encoding.step_ends):
    own = slice(start, end + 1 - separator)
    step = values[own]
    scores['digits'][p] = step[is_digit[own]].sum()
    scores['mean'][p] = step.mean()
    scores['minimum'][p] = step.min()
    start = end + 1
  return scores

"""What an untrained backbone thinks of a chain: a log-probability per token.

    chains -> packed rows -> the cache on disk -> one step score per rule

Every score that needs no training is made from these, so they are computed
once and kept; an interrupted run goes on at the row where it stopped.
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
from prm_jax.inference.score import Rows, pack_rows
from prm_jax.models import TransformerConfig, forward, token_logprobs

ROWS_AT_ONCE = 4
DIGITS = '0123456789'


def row_logprobs(
  backbone: Any, rows: Rows, model: TransformerConfig
) -> jax.Array:  # [B, T] float32
  """log p(token t | tokens of its segment before it), 0 for the first one."""
  hidden = forward(backbone, model, *rows[:3])
  return token_logprobs(
    backbone, model, hidden, rows.tokens, rows.positions > 0
  )


def encode(chain: Chain, fmt: StepFormat) -> Encoding | None:
  """The chain in the model's own format, None where no step fits."""
  try:
    return fmt.encode(chain.problem, chain.steps)
  except DoesNotFit:
    return None


def key_of(encoding: Encoding) -> str:
  return hashlib.sha256(encoding.tokens.tobytes()).hexdigest()[:24]


def _write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes all or nothing."""
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
  """Log-probabilities [T] by `key_of`, those not in the file computed now.

  Args:
    path: an .npz that grows with every few rows; belongs to one backbone,
      format and dtype.
    load_backbone: called only if something is missing.
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
  rows, layout = pack_rows(unmarked, 0, ROWS_AT_ONCE)
  firsts = rows.step_ends.reshape(-1)[layout.slots[:, 0]]
  row_of = layout.slots[:, 0] // rows.step_ends.shape[1]
  total = sum(len(e.tokens) for _, e in missing)
  done = 0
  for b in range(0, int(row_of.max()) + 1, ROWS_AT_ONCE):
    part = Rows(*(x[b : b + ROWS_AT_ONCE] for x in rows))
    found = np.asarray(compute(backbone, part))
    for n in np.flatnonzero((row_of >= b) & (row_of < b + ROWS_AT_ONCE)):
      key, encoding = missing[n]
      start = firsts[n] - encoding.step_ends[0]
      end = start + len(encoding.tokens)
      known[key] = found[row_of[n] - b, start:end]
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
  """Step scores [R] of each rule, from the tokens of the step alone.

  Of the R steps that fit the window; the others have none. The separator is the
  format's and not the step's: it is left out.

  Args:
    separator: how many tokens it has.
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

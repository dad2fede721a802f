"""Writes rows of chains, which are trees without branches, for tests."""

import numpy as np

from prm_jax.rl.trees import Trees


def last_of(segments: np.ndarray) -> np.ndarray:
  """Returns `last` of rows [B, T] whose chains are numbered; 0 is padding."""
  segments = np.asarray(segments)
  at = np.arange(segments.shape[1])
  same = segments[:, None] == segments[:, :, None]
  last = np.where(same, at, -1).max(-1)
  return np.where(segments > 0, last, at).astype(np.int32)


def parents_of(segments: np.ndarray) -> np.ndarray:
  """Returns `parents` of the same rows."""
  segments = np.asarray(segments)
  at = np.arange(segments.shape[1])
  first = np.ones(segments.shape, bool)
  first[:, 1:] = segments[:, 1:] != segments[:, :-1]
  return np.where(first | (segments == 0), -1, at - 1).astype(np.int32)


def trees_of(tokens: np.ndarray, lengths: np.ndarray) -> Trees:
  """Returns chains as rows of one chain each, which share nothing."""
  at = np.arange(tokens.shape[1])
  inside = at < np.asarray(lengths)[:, None]
  rows = np.arange(len(tokens))[:, None]
  return Trees(
    np.asarray(tokens),
    np.where(inside, at, -1).astype(np.int32),
    last_of(inside),
    parents_of(inside),
    np.where(inside, rows * tokens.shape[1] + at, -1).astype(np.int32),
  )

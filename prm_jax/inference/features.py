"""Keeps what a frozen backbone makes of chains, for heads that read it.

    chains -> Scorer.features_many -> one file for each part -> StepFeatures
    StepFeatures, a head -> step scores

The backbone reads every chain once, whatever is done with the features then. An
interrupted run goes on at the part where it stopped.
"""

import functools
import hashlib
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import DoesNotFit, Encoding, StepFormat
from prm_jax.inference.scorer import Scorer, StepFeatures
from prm_jax.models import HeadConfig, head_logits, step_probabilities
from prm_jax.models.heads import Params
from prm_jax.runtime.errors import UserError

# What NumPy raises at a file that is no archive of arrays.
BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
PART = 64  # chains of one file, which are read together


class Features:
  """Holds the features of chains; chains of equal tokens share them.

  Attributes:
    fmt: the format in which the chains were read.
  """

  def __init__(self, fmt: StepFormat, width: int) -> None:
    self.fmt, self._width = fmt, width
    self._known: dict[str, StepFeatures] = {}

  def of(self, problem: str, steps: Sequence[str]) -> StepFeatures:
    """Returns the features of the R steps that fit the window; R may be 0.

    Raises:
      UserError: the chain was not read.
    """
    encoding = _encode(self.fmt, problem, steps)
    if encoding is None:
      return StepFeatures(
        np.zeros((0, self._width), np.float32), np.zeros((0, 2), np.float32)
      )
    found = self._known.get(_key(encoding))
    if found is None:
      raise UserError(
        f'no features are kept of a chain of {len(steps)} steps for '
        f'{problem[:60]!r}; read it first'
      )
    return found

  def read(
    self,
    chains: Iterable[Chain],
    folder: pathlib.Path,
    scorer: Callable[[], Scorer],
    log: Callable[[str], None],
  ) -> None:
    """Reads chains, or finds in the folder what was read before.

    Args:
      folder: belongs to one backbone, in one type of numbers.
      scorer: returns the opened backbone; called only if something is missing.
    """
    different: dict[str, tuple[Encoding, Chain]] = {}
    for chain in chains:
      encoding = _encode(self.fmt, chain.problem, chain.steps)
      if encoding is not None:
        different.setdefault(_key(encoding), (encoding, chain))
    # Chains of a part have about one length, so that rows have little padding.
    ordered = sorted(
      different, key=lambda key: (len(different[key][0].tokens), key)
    )
    parts = [ordered[i : i + PART] for i in range(0, len(ordered), PART)]
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [sum(len(different[k][0].tokens) for k in keys) for keys in parts]
    for done, keys in enumerate(parts):
      digest = hashlib.sha256(''.join(keys).encode()).hexdigest()[:24]
      path = folder / f'{digest}.npz'
      if not path.exists():
        pairs = [
          (chain.problem, chain.steps[: len(encoding.step_ends)])
          for encoding, chain in (different[key] for key in keys)
        ]
        _write(path, scorer().features_many(pairs))
        log(
          f'features: {done + 1} of {len(parts)} parts, '
          f'{sum(tokens[: done + 1]):,} of {sum(tokens):,} tokens'
        )
      self._known |= zip(keys, _read(path, len(keys)), strict=True)


def _encode(
  fmt: StepFormat, problem: str, steps: Sequence[str]
) -> Encoding | None:
  """Encodes a chain; None where no step fits."""
  try:
    return fmt.encode(problem, steps)
  except DoesNotFit:
    return None


def _key(encoding: Encoding) -> str:
  ids = encoding.tokens.tobytes() + encoding.step_ends.tobytes()
  return hashlib.sha256(ids).hexdigest()[:24]


def _write(path: pathlib.Path, parts: Sequence[StepFeatures]) -> None:
  """Writes the file as a whole or not at all."""
  part = path.with_suffix('.part.npz')
  joined = {
    name: np.concatenate([getattr(each, name) for each in parts])
    for name in StepFeatures._fields
  }
  np.savez(part, steps=[len(each.states) for each in parts], **joined)
  os.replace(part, path)


def _read(path: pathlib.Path, count: int) -> list[StepFeatures]:
  """Reads what `_write` wrote.

  Raises:
    UserError: the file is damaged, or does not hold so many chains.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      stops = np.cumsum(file['steps'])
      parts = [
        np.split(file[name], stops[:-1]) for name in StepFeatures._fields
      ]
  except BROKEN as error:
    raise UserError(
      f'{path} is damaged ({type(error).__name__}: {error}); delete it, and '
      'the same command reads its chains again'
    ) from None
  if len(stops) != count:
    raise UserError(
      f'{path} has {len(stops)} chains, not {count}; delete it, and the same '
      'command reads its chains again'
    )
  return [StepFeatures(*each) for each in zip(*parts, strict=True)]


# The parameters are an argument: with a kernel of zeros as a constant, XLA's
# CPU compiler (jax 0.12) makes programs that read memory nobody has written.
@functools.partial(jax.jit, static_argnums=0)
def _read_out(
  head: HeadConfig, params: Params, *inputs: jax.Array
) -> jax.Array:
  return step_probabilities(head_logits(params, *inputs), head)


def make_scoring(
  features: Features, params: Params, head: HeadConfig
) -> Callable[[Sequence[Chain]], list[np.ndarray]]:
  """Returns a function that scores chains, whose features are kept, by a head.

  It returns the probability that each step is right, [R] of each chain, for the
  R steps that fit the window.
  """

  def score(chains: Sequence[Chain]) -> list[np.ndarray]:
    found = [features.of(chain.problem, chain.steps) for chain in chains]
    if not found:
      return []
    joined = (np.concatenate(x) for x in zip(*found, strict=True))
    (scores,) = _read_out(head, params, *(x[None] for x in joined))
    stops = np.cumsum([len(each.states) for each in found])
    return np.split(np.asarray(scores), stops[:-1])

  return score

"""Caches a frozen backbone's features of chains, for heads to read.

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
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import DoesNotFit, Encoding, StepFormat
from prm_jax.inference.scorer import Scorer, StepFeatures
from prm_jax.models import HeadConfig, head_logits, step_probabilities
from prm_jax.models.heads import Params
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import lock_folder

# What NumPy raises at a file that is no archive of arrays.
BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
PART = 64  # chains of one file, which are read together
UNFINISHED = '.part.npz'
DIGESTED = 1024  # so many numbers of each array tell backbones apart


class Features:
  """Holds the features of chains; chains of equal tokens share them.

  What earlier runs left in the folder is there from the beginning.

  Attributes:
    fmt: the format in which the chains are read.

  Args:
    width: size D of the backbone's hidden states.
    folder: belongs to one backbone in one dtype; see `claim`.

  Raises:
    UserError: a file in the folder is damaged, or of another backbone.
  """

  def __init__(self, fmt: StepFormat, width: int, folder: pathlib.Path) -> None:
    self.fmt, self._width, self._folder = fmt, width, folder
    self._known: dict[str, StepFeatures] = {}
    for path in sorted(folder.glob('*.npz')):
      if not path.name.endswith(UNFINISHED):
        self._known |= _read(path, width)

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
    scorer: Callable[[], Scorer],
    log: Callable[[str], None],
  ) -> None:
    """Reads the chains that are not read yet, and keeps what it finds.

    Args:
      scorer: returns the opened backbone; called only if something is missing.

    Raises:
      UserError: the folder has features of another backbone, or another job
        reads into it.
    """
    missing: dict[str, tuple[Encoding, Chain]] = {}
    for chain in chains:
      encoding = _encode(self.fmt, chain.problem, chain.steps)
      if encoding is not None and _key(encoding) not in self._known:
        missing.setdefault(_key(encoding), (encoding, chain))
    if not missing:
      return
    self._folder.mkdir(parents=True, exist_ok=True)
    held = lock_folder(self._folder, f'features in {self._folder}')
    try:
      backbone = scorer()
      self.claim(backbone)
      self._read_missing(missing, backbone, log)
    finally:
      os.close(held)

  def _read_missing(
    self,
    missing: Mapping[str, tuple[Encoding, Chain]],
    scorer: Scorer,
    log: Callable[[str], None],
  ) -> None:
    # Chains of a part have about one length, so that rows have little padding.
    sizes = {key: len(each.tokens) for key, (each, _) in missing.items()}
    ordered = sorted(missing, key=lambda key: (sizes[key], key))
    total = sum(sizes.values())
    done = 0
    for start in range(0, len(ordered), PART):
      keys = ordered[start : start + PART]
      pairs = [
        (chain.problem, chain.steps[: len(encoding.step_ends)])
        for encoding, chain in map(missing.get, keys)
      ]
      found = dict(zip(keys, scorer.features_many(pairs), strict=True))
      _write(self._folder, found)
      self._known |= found
      done += sum(sizes[key] for key in keys)
      log(
        f'features of {start + len(keys):,} of {len(ordered):,} chains, '
        f'{done:,} of {total:,} tokens'
      )

  def claim(self, scorer: Scorer) -> None:
    """Ties the folder to the weights and the dtype of a backbone.

    Raises:
      UserError: the folder has features of another backbone or dtype.
    """
    ours = hashlib.sha256(scorer.model.dtype.encode())
    backbone = scorer.params['backbone']
    for path, leaf in jax.tree_util.tree_leaves_with_path(backbone):
      # Of all layers, which may be stacked in one array.
      some = np.asarray(leaf.reshape(-1)[:: max(1, leaf.size // DIGESTED)])
      ours.update(f'{path} {leaf.shape} {leaf.dtype}'.encode())
      ours.update(some.tobytes())
    path = self._folder / 'backbone.txt'
    if path.exists() and path.read_text() != ours.hexdigest():
      raise _of_another_backbone(self._folder)
    self._folder.mkdir(parents=True, exist_ok=True)
    paths.write_text(path, ours.hexdigest())


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


def _write(folder: pathlib.Path, found: Mapping[str, StepFeatures]) -> None:
  """Writes a file as a whole or not at all, named after its chains."""
  name = hashlib.sha256(''.join(found).encode()).hexdigest()[:24]
  part = folder / f'{name}{UNFINISHED}'
  joined = {
    field: np.concatenate([getattr(each, field) for each in found.values()])
    for field in StepFeatures._fields
  }
  steps = [len(each.states) for each in found.values()]
  np.savez(part, keys=[*found], steps=steps, **joined)
  os.replace(part, folder / f'{name}.npz')


def _of_another_backbone(folder: pathlib.Path) -> UserError:
  return UserError(
    f'{folder} has features of another backbone than there is now; bring that '
    'one back, or start another workdir, with features of its own'
  )


def _read(path: pathlib.Path, width: int) -> dict[str, StepFeatures]:
  """Reads what `_write` wrote.

  Raises:
    UserError: the file is damaged, or has states of another width.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      stops = np.cumsum(file['steps'])[:-1]
      parts = [np.split(file[name], stops) for name in StepFeatures._fields]
      keys = file['keys'].tolist()
    found = {
      key: StepFeatures(*each) for key, *each in zip(keys, *parts, strict=True)
    }
  except BROKEN as error:
    raise UserError(
      f'{path} is damaged ({type(error).__name__}: {error}); delete it, and '
      'the same command reads its chains again'
    ) from None
  if {each.states.shape[1:] for each in found.values()} - {(width,)}:
    raise _of_another_backbone(path.parent)
  return found


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

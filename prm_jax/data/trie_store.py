"""Keeps merged tries as flat arrays, in memory or in the files of a folder.

    merged tries -> join -> TrieStore -> the trie with a number
                           -> save -> a folder -> read

Encoding text and merging chains take longer than packing, so they are done once
for a data set, and not again in every epoch and every run.
"""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# The packer measures how tightly a trie fits by the sum of its arrays' lengths,
# so their number decides where a trie goes. Columns share an array by type.
TOKEN_INTS = ('tokens', 'positions', 'last', 'parents', 'counts')
STEP_INTS = ('step_ends', 'step_begins', 'chains')
PER_TOKEN = ('token_ints', 'kinds', 'lm_weights')
PER_STEP = ('step_ints', 'step_labels', 'step_weights', 'step_trials')
STOPS = 'stops'  # name of the array of `TrieStore.stops`


def to_pack(merged: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Joins the integer arrays of `merge_examples` for the packer."""
  merged = dict(merged)
  token_ints = np.stack([merged.pop(name) for name in TOKEN_INTS], 1)
  step_ints = np.stack([merged.pop(name) for name in STEP_INTS], 1)
  return merged | {'token_ints': token_ints, 'step_ints': step_ints}


class TrieStore(Sequence[dict[str, np.ndarray]]):
  """Gives random access to tries, each as the arrays that are packed.

  Args:
    arrays: PER_TOKEN and PER_STEP of all tries, one after another.
    stops: [tries + 1, 2], index after the last token and after the last step of
      each trie; the first row is 0.
  """

  def __init__(
    self, arrays: Mapping[str, np.ndarray], stops: np.ndarray
  ) -> None:
    self.arrays, self.stops = arrays, stops

  def __len__(self) -> int:
    return len(self.stops) - 1

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    index = range(len(self))[index]
    (token, step), (token_stop, step_stop) = self.stops[index : index + 2]
    of_tokens = slice(token, token_stop)
    of_steps = slice(step, step_stop)
    return {name: self.arrays[name][of_tokens] for name in PER_TOKEN} | {
      name: self.arrays[name][of_steps] for name in PER_STEP
    }


def join(tries: Sequence[dict[str, np.ndarray]]) -> TrieStore:
  """Makes a store of tries, each as `to_pack` returns it.

  It takes the arrays out of them, so that they need not be there twice.
  """
  sizes = [[len(trie['kinds']), len(trie['step_labels'])] for trie in tries]
  arrays = {
    name: np.concatenate([trie.pop(name) for trie in tries])
    for name in (*PER_TOKEN, *PER_STEP)
  }
  return TrieStore(arrays, np.cumsum([[0, 0], *sizes], axis=0))


def save(
  folder: pathlib.Path,
  store: TrieStore,
  beside: Mapping[str, np.ndarray],
  about: Mapping[str, Any],
) -> None:
  """Writes a store; the folder gets its name when it is complete.

  Args:
    beside: arrays that are kept beside it.
    about: JSON that is kept beside it.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  part = pathlib.Path(tempfile.mkdtemp('.part', 'encoded.', folder.parent))
  try:
    for name, given in {**store.arrays, STOPS: store.stops, **beside}.items():
      array = np.asarray(given, order='C')
      with (part / f'{name}.npy').open('wb') as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        # NumPy's own writing does not say why it failed.
        file.write(array.data)
        os.fsync(file.fileno())
    paths.write_text(part / 'about.json', json.dumps(about))
    part.chmod(0o755)  # a folder of mkdtemp is its owner's alone
    part.rename(folder)
  except BaseException as error:
    shutil.rmtree(part, ignore_errors=True)
    if isinstance(error, OSError) and folder.is_dir():
      return  # another process was faster
    if isinstance(error, OSError):
      error.filename = error.filename or str(folder)
    raise


def read(
  folder: pathlib.Path, beside: Sequence[str], about: Sequence[str]
) -> tuple[TrieStore, dict[str, np.ndarray], dict[str, Any]]:
  """Opens what `save` wrote; the arrays stay on the disk.

  Args:
    beside, about: names of what was kept beside the store.

  Raises:
    UserError: a file is missing or damaged.
  """
  try:
    arrays = {
      path.stem: np.load(path, mmap_mode='r', allow_pickle=False)
      for path in folder.glob('*.npy')
    }
    values = json.loads((folder / 'about.json').read_text())
    told = {name: values[name] for name in about}
    stops = np.array(arrays[STOPS])
    mine = {name: arrays[name] for name in (*PER_TOKEN, *PER_STEP)}
    others = {name: arrays[name] for name in beside}
  except (EOFError, KeyError, OSError, TypeError, ValueError) as error:
    raise UserError(
      f'{folder} cannot be read ({type(error).__name__}: {error}); delete it, '
      'and it is made again'
    ) from None
  return TrieStore(mine, stops), others, told

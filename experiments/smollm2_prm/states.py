"""What a pretrained backbone makes of every step: its state, its likelihood.

    chains -> packed rows -> one file per part in the workdir -> features

The backbone is not trained, so every chain is read once for all heads and
seeds. An interrupted run resumes at the part where it stopped.
"""

import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.smollm2_prm import likelihood
from prm_jax.data.chains import Chain
from prm_jax.data.encoding import Encoding, StepFormat
from prm_jax.inference.packing import pack_rows
from prm_jax.models import Rows, TransformerConfig, forward, token_logprobs

PART = 16  # chains of one file, which are read together
RULES = ('digits', 'mean', 'minimum')  # of `likelihood.step_scores`


def read_rows(
  backbone: Any, rows: Rows, model: TransformerConfig
) -> tuple[jax.Array, jax.Array]:  # [B, P, D], [B, T]
  """Returns the state at every step end, and log p(token | what precedes)."""
  hidden = forward(backbone, model, *rows[:3])
  logs = token_logprobs(
    backbone, model, hidden, rows.tokens, rows.parents, rows.parents >= 0
  )
  return jnp.take_along_axis(hidden, rows.step_ends[..., None], 1), logs


def read_part(
  encodings: Sequence[Encoding],
  read: Callable[[Rows], tuple[jax.Array, jax.Array]],
  fmt: StepFormat,
) -> Iterator[np.ndarray]:  # [R, D + 3] of each chain
  """Yields the features of each chain's R steps: state, then `RULES`."""
  rows, layout, paths = pack_rows(
    [(e.tokens, e.step_ends, np.zeros(len(e.tokens), bool)) for e in encodings],
    1,
  )
  states, logs = map(np.asarray, read(rows))
  flat = states.reshape(-1, states.shape[-1])
  for encoding, slots, path in zip(encodings, layout.slots, paths, strict=True):
    own = slots[: len(encoding.step_ends)]
    scores = likelihood.step_scores(
      encoding,
      logs.reshape(-1)[path],
      fmt.digit_tokens,
      len(fmt.separator),
    )
    rules = np.stack([scores[name] for name in RULES], 1)
    yield np.hstack([flat[own], rules]).astype(np.float32)


def read_or_load(
  chains: Sequence[Chain],
  folder: pathlib.Path,
  opened: tuple[TransformerConfig, StepFormat],
  load_backbone: Callable[[], Any],
  log: Callable[[str], None],
) -> list[np.ndarray]:  # [R, D + 3] of each chain
  """Returns the features of the R steps of each chain that fit the window.

  Args:
    folder: one file for each part; it belongs to one backbone and format.
    load_backbone: loads the parameters; called only if something is missing.
    log: prints one line.
  """
  model, fmt = opened
  encodings = [likelihood.encode(chain, fmt) for chain in chains]
  different = {likelihood.key_of(e): e for e in encodings if e is not None}
  # Chains of a part have about one length, so that rows have little padding.
  ordered = sorted(different, key=lambda key: (len(different[key].tokens), key))
  parts = [ordered[i : i + PART] for i in range(0, len(ordered), PART)]
  folder.mkdir(parents=True, exist_ok=True)
  known: dict[str, np.ndarray] = {}
  backbone = read = None
  for done, keys in enumerate(parts, 1):
    digest = hashlib.sha256(''.join(keys).encode()).hexdigest()[:24]
    path = folder / f'{digest}.npz'
    if not path.exists():
      if read is None:
        backbone = load_backbone()
        read = jax.jit(read_rows, static_argnums=2)
      found = read_part(
        [different[key] for key in keys],
        lambda rows: read(backbone, rows, model),  # noqa: B023
        fmt,
      )
      _write(path, dict(zip(keys, found, strict=True)))
      log(f'part {done} of {len(parts)}: read')
    with np.load(path) as file:
      known |= dict(file)
  width = model.d_model + len(RULES)
  return [
    np.zeros((0, width), np.float32)
    if e is None
    else known[likelihood.key_of(e)]
    for e in encodings
  ]


def _write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes the file as a whole or not at all."""
  part = path.with_suffix('.part.npz')
  np.savez(part, **arrays)
  os.replace(part, path)

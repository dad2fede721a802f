"""Writes tests/models/hub/golden/: logits of transformers for our tiny models.

    python -m tests.parity.make_golden

Needs torch and transformers, and neither JAX nor this package. Run it again
only when `published_configs` changes.
"""

import pathlib
import tempfile

import numpy as np
import torch
import transformers

from tests.models.hub.published_configs import CONFIGS, TOKENS, write_published

GOLDEN = pathlib.Path(__file__).parents[1] / 'models' / 'hub' / 'golden'


def logits_of(directory: pathlib.Path) -> np.ndarray:
  """[2, 24, V] float32 of the model in a folder, on TOKENS."""
  model = transformers.AutoModelForCausalLM.from_pretrained(
    directory, dtype=torch.float32, attn_implementation='eager'
  )
  with torch.no_grad():
    return model.eval()(torch.from_numpy(TOKENS)).logits.numpy()


def main() -> None:
  GOLDEN.mkdir(exist_ok=True)
  for family in CONFIGS:
    with tempfile.TemporaryDirectory() as folder:
      logits = logits_of(write_published(pathlib.Path(folder), family))
    np.savez_compressed(
      GOLDEN / f'{family}.npz',
      logits=logits,
      transformers=transformers.__version__,
      torch=torch.__version__,
    )
    print(family, logits.shape, np.abs(logits).max())


if __name__ == '__main__':
  main()

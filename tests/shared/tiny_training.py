"""A model and batches so small that a train step compiles in a second."""

import grain
import numpy as np
import optax

from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.training.loop import make_train_step
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import make_init
from tests.shared.packed import last_of, parents_of

VOCAB, ROWS, LENGTH, STEPS_PER_ROW = 110, 16, 24, 6
MODEL = TransformerConfig(
  vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=64
)
HEAD = HeadConfig(likelihood=True)
LOSS = LossConfig(lm_weight=1.0)
OPTIM = OptimConfig(lr=3e-3, warmup=2)
TOTAL_STEPS = 20


def batch(seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
  """Packed rows of two chains and some padding, unequally full of labels."""
  rng = np.random.default_rng(seed)
  T, P = LENGTH, STEPS_PER_ROW
  cut = rng.integers(8, 13, rows)[:, None]  # where the second chain begins
  end = rng.integers(18, T + 1, rows)[:, None]
  at = np.arange(T)[None]
  segments = np.where(at < cut, 1, np.where(at < end, 2, 0)).astype(np.int32)
  step_ends = np.concatenate(
    [cut - [[5, 3, 1]], end - [[5, 3, 1]]], axis=1
  ).astype(np.int32)
  inside = np.concatenate([[5, 3, 1], [5, 3, 1]]) * -1
  lengths = np.concatenate([np.tile(cut, 3), np.tile(end - cut, 3)], axis=1)
  depths = lengths + inside  # of the step ends
  step_begins = np.pad(depths[:, :-1] + 1, ((0, 0), (1, 0)))
  step_begins[:, [0, 3]] = 0
  # A row has between none and all of its steps labelled.
  mask = rng.random((rows, P)) < rng.random((rows, 1))
  return {
    'tokens': np.where(
      segments > 0, rng.integers(4, VOCAB, (rows, T)), 0
    ).astype(np.int32),
    'positions': np.where(
      segments > 0, np.where(at < cut, at, at - cut), -1
    ).astype(np.int32),
    'last': last_of(segments),
    'parents': parents_of(segments),
    'lm_weights': (parents_of(segments) >= 0).astype(np.float32),
    'kinds': ((np.arange(rows)[:, None] + at) % 3).astype(np.int8),
    'step_ends': step_ends,
    'step_begins': step_begins.astype(np.int32),
    'step_mask': np.ones((rows, P), bool),
    'step_labels': rng.integers(0, 2, (rows, P)).astype(np.float32) * mask,
    'step_weights': mask.astype(np.float32),
    'step_trials': np.zeros((rows, P), np.float32),
    'chain_ids': np.tile(np.array([1, 1, 1, 2, 2, 2], np.int32), (rows, 1)),
    # As if every chain came twice.
    'flat_tokens': 2 * (segments > 0).sum(1, dtype=np.int32),
  }


def optimizer() -> optax.GradientTransformation:
  return make_optimizer(OPTIM, TOTAL_STEPS)


init = make_init(MODEL, HEAD, make_optimizer(OPTIM, TOTAL_STEPS))


def train_step(microbatches: int = 1, model: TransformerConfig = MODEL):
  schedule = make_schedule(OPTIM, TOTAL_STEPS)
  objective = ObjectiveConfig(model, HEAD, LOSS)
  return make_train_step(objective, optimizer(), schedule, microbatches)


def numbers():
  """Returns an input of whole numbers, whose position can be saved."""
  return iter(grain.MapDataset.range(100).to_iter_dataset())

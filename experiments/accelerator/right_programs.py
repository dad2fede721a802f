"""Reads and trains on the accelerator what the CPU reads and trains on.

Hidden states, gradients and train steps; each function runs
one program in one setting, and the cases compare what two settings give.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, reference, subjects
from experiments.accelerator.shapes import SMOLLM2_135M, TINY
from prm_jax.models import HeadConfig, TransformerConfig, forward
from prm_jax.training import objective
from prm_jax.training.loop import compile_train_step, make_train_step
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import init_state, make_init, make_params

LAYERS = 4  # of SmolLM2: the CPU is to be done in seconds
ROWS = 2
STEPS = 4
# All parts of the loss: step head, likelihood of steps, next tokens.
HEAD = HeadConfig('two_class', likelihood=True)
LOSS = LossConfig('cross_entropy', lm_weight=0.5)
OPTIM = OptimConfig(lr=1e-3, warmup=0)
TINY_MODEL = TransformerConfig(**TINY)
SMOLLM2 = TransformerConfig(**SMOLLM2_135M | {'n_layers': LAYERS})


def model_of(tiny: bool) -> TransformerConfig:
  """Returns the model of most cases."""
  return TINY_MODEL if tiny else SMOLLM2


def long_row(tiny: bool) -> int:
  """Returns the length of the longest rows in tokens."""
  return 256 if tiny else 1024


def typed(model: TransformerConfig, setting: Setting) -> TransformerConfig:
  """Returns the model with the dtype of a setting."""
  return dataclasses.replace(model, dtype=setting.dtype)


@functools.cache
def make_weights(model: TransformerConfig) -> Any:
  """Makes random parameters, float32, on the host.

  They are larger than those that training begins with, so that heads attend to
  few tokens, and logits differ: else a wrong mask would hardly show.
  """
  with reference().use():
    make = jax.jit(make_params, static_argnums=(1, 2))
    params = jax.device_get(make(jax.random.key(0), model, HEAD))
  rng = np.random.default_rng(0)

  def widen(path: tuple[Any, ...], x: np.ndarray) -> np.ndarray:
    names = [part.key for part in path]
    if {'q_proj', 'k_proj'} & set(names) and names[-1] == 'kernel':
      return 1.5 * x
    if names[-1] == 'embed_tokens':
      return x * (2.5 * model.d_model**-0.5 / 0.02)  # logits of about 2.5
    if names[0] == 'head':
      # Of both its inputs, so that scores are all over (0, 1).
      size = 0.02 if names[-1] == 'likelihood_kernel' else len(x) ** -0.5
      return rng.normal(0, size, x.shape).astype(np.float32)
    if names[-1] == 'bias':
      return rng.normal(0, 0.3, x.shape).astype(np.float32)
    return x

  return jax.tree.map_with_path(widen, params)


@functools.cache
def make_batch(
  vocab: int, rows: int, length: int, seed: int = 0
) -> dict[str, np.ndarray]:
  """Makes packed rows of three chains and padding, with step labels."""
  rng = np.random.default_rng(seed)
  at = np.broadcast_to(np.arange(length), (rows, length))
  # Where the second and third chain and the padding begin.
  starts = length * np.sort(rng.uniform(0.1, 0.95, (rows, 3)), axis=1)
  starts = np.pad(starts.astype(int), ((0, 0), (1, 0)))
  chains = (at[..., None] >= starts[:, None]).sum(-1)  # 1 to 4
  real = chains < 4
  after = np.pad(starts[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  positions = at - np.take_along_axis(starts, chains - 1, 1)
  P = length // 16
  ends = np.sort(rng.permuted(at, axis=1)[:, :P], axis=1)
  chain_ids = np.take_along_axis(np.where(real, chains, 0), ends, 1)
  mask = chain_ids > 0
  ints = {
    'tokens': np.where(real, rng.integers(4, vocab, at.shape), 0),
    'positions': np.where(real, positions, -1),
    'last': np.where(real, np.take_along_axis(after, chains - 1, 1) - 1, at),
    'parents': np.where(real & (positions > 0), at - 1, -1),
    'step_ends': np.where(mask, ends, 0),
    'step_begins': np.where(mask, step_begins(positions, ends, chain_ids), 0),
    'chain_ids': chain_ids,
  }
  floats = {
    'step_labels': rng.integers(0, 2, mask.shape) * mask,
    'step_weights': mask,
    'step_trials': np.zeros(mask.shape),
    'lm_weights': real & (positions > 0),
  }
  return (
    {name: x.astype(np.int32) for name, x in ints.items()}
    | {name: x.astype(np.float32) for name, x in floats.items()}
    | {
      'kinds': (real * (positions % 5 % 3)).astype(np.int8),
      'step_mask': mask,
    }
  )


def step_begins(
  positions: np.ndarray,  # [B, T]
  ends: np.ndarray,  # [B, P] ascending
  chain_ids: np.ndarray,  # [B, P]
) -> np.ndarray:  # [B, P]
  """Returns the position behind the end of the step before, or 0."""
  depths = np.take_along_axis(positions, ends, 1)
  same = chain_ids[:, 1:] == chain_ids[:, :-1]
  return np.pad(np.where(same, depths[:, :-1] + 1, 0), ((0, 0), (1, 0)))


_forward = jax.jit(forward, static_argnums=1)


def hidden_states(
  setting: Setting, model: TransformerConfig, batch: dict[str, np.ndarray]
) -> np.ndarray:  # [n, D] of the n tokens that are no padding
  """Returns the hidden states of packed rows."""
  rows = [batch[name] for name in ('tokens', 'positions', 'last')]
  weights = make_weights(model)['backbone']
  with setting.use():
    hidden = _forward(
      setting.put(weights), typed(model, setting), *setting.put(rows)
    )
  return np.asarray(hidden, np.float32)[batch['positions'] >= 0]


def compare_forward(model: TransformerConfig, length: int) -> dict[str, Any]:
  """Compares hidden states of packed rows."""
  batch = make_batch(model.vocab_size, ROWS, length)
  expected = hidden_states(reference(), model, batch)
  return checks.found(
    [
      checks.check(
        f'hidden states, {s.name}',
        checks.relative(hidden_states(s, model, batch), expected),
        checks.VALUES[s.rounding],
      )
      for s in subjects()
    ]
  )


@functools.partial(jax.jit, static_argnums=0)
def _gradients(config: ObjectiveConfig, params: Any, batch: Any) -> Any:
  norms = objective.norms(batch, config.loss)
  return jax.value_and_grad(objective.batch_loss, has_aux=True)(
    params, batch, *norms, config
  )


def gradients(
  setting: Setting, model: TransformerConfig, batch: dict[str, np.ndarray]
) -> tuple[float, Any]:
  """Returns the loss of a PRM, and its gradient."""
  config = ObjectiveConfig(typed(model, setting), HEAD, LOSS)
  params, batch = setting.put((make_weights(model), batch))
  with setting.use():
    (loss, _), grads = jax.device_get(_gradients(config, params, batch))
  return float(loss), grads


def compare_gradients(model: TransformerConfig, length: int) -> dict[str, Any]:
  """Compares the loss of a PRM and its gradients."""
  batch = make_batch(model.vocab_size, ROWS, length)
  loss, expected = gradients(reference(), model, batch)
  made = []
  for s in subjects():
    other, grads = gradients(s, model, batch)
    made += [
      checks.check(
        f'loss, {s.name}', abs(other / loss - 1), checks.LOSSES[s.rounding]
      ),
      checks.check(
        f'gradient, {s.name}',
        checks.relative(grads, expected),
        checks.GRADIENTS[s.rounding],
      ),
      checks.check(
        f'gradient of the worst parameter, {s.name}',
        checks.worst_relative(grads, expected),
        checks.WORST_GRADIENT[s.rounding],
      ),
    ]
  return checks.found(made)


def train_steps(
  setting: Setting, model: TransformerConfig, length: int
) -> dict[str, np.ndarray]:  # [STEPS] each
  """Takes some steps of AdamW; returns the losses and the gradients' norms.

  As in training on a chip, layers are computed again for the gradient, and a
  bfloat16 model is also stored in bfloat16, beside its float32 master.
  """
  weights = setting.put(make_weights(model)['backbone'])
  model = dataclasses.replace(
    typed(model, setting), remat='full', param_dtype=setting.dtype
  )
  optimizer = make_optimizer(OPTIM, STEPS)
  step = make_train_step(
    ObjectiveConfig(model, HEAD, LOSS), optimizer, make_schedule(OPTIM, STEPS)
  )
  kept = []
  with setting.use():
    init = make_init(model, HEAD, optimizer)
    state = init_state(init, setting.mesh, 0, weights)
    step = compile_train_step(step, state, setting.mesh)
    for seed in range(STEPS):
      batch = make_batch(model.vocab_size, ROWS, length, seed)
      state, metrics = step(state, setting.put(batch))
      kept.append(metrics)
    kept = jax.device_get(kept)
  return {
    name: np.array([metrics[name] for metrics in kept])
    for name in ('loss', 'grad_norm')
  }


def compare_train_steps(
  model: TransformerConfig, length: int
) -> dict[str, Any]:
  """Compares losses and norms of gradients over some train steps.

  Not the parameters: AdamW's first steps are the signs of gradients, and those
  of gradients near 0 are chance.
  """
  expected = train_steps(reference(), model, length)
  made = []
  for s in subjects():
    values = train_steps(s, model, length)
    made += [
      checks.check(
        f'{words} of {STEPS} steps, {s.name}',
        checks.largest(abs(values[name] / expected[name] - 1)),
        bounds[s.rounding],
      )
      for name, words, bounds in (
        ('loss', 'losses', checks.LOSSES),
        ('grad_norm', "gradients' norms", checks.GRADIENTS),
      )
    ]
  return checks.found(made)

"""A policy's loss on completions, packed or not, against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.chains import Chain
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import make_batches
from prm_jax.data.targets import TargetConfig
from prm_jax.models import (
  LoraConfig,
  TransformerConfig,
  forward,
  init_lora,
  init_params,
  lm_logits,
  merge,
)
from prm_jax.training.objective import (
  POLICY_LOSS,
  ObjectiveConfig,
  batch_loss,
  norms,
)
from prm_jax.training.train_state import NO_LORA

pytestmark = pytest.mark.once

FORMAT = make_format('arithmetic', 30)
COMPLETION = TargetConfig('completion')
MODEL = TransformerConfig(
  FORMAT.tokenizer.vocab_size, 16, 2, n_heads=2, n_kv_heads=1, d_ff=32
)
CHAINS = [
  Chain('mod 10 : 7 * 3', ('7 * 3 = 1',)),
  Chain('mod 10 : 2 + 3 - 4', ('2 + 3 = 5', '5 - 4 = 2')),
  Chain('mod 10 : 9', ('9 = 9', '9 + 1 = 0', '0 = 0')),
]


jit_loss = jax.jit(batch_loss, static_argnums=4)


@jax.jit
def next_token_logits(backbone, tokens):  # [1, T] -> [T, V]
  positions = jnp.arange(tokens.shape[1])[None]
  last = jnp.full_like(tokens, tokens.shape[1] - 1)
  hidden = forward(backbone, MODEL, tokens, positions, last)
  return lm_logits(backbone, MODEL, hidden)[0]


@pytest.fixture(scope='module')
def backbone():
  return jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)


def chain_losses(backbone, chain: Chain) -> list[float]:
  """-log p of every token after the problem, from an unpacked row, by numpy."""
  prompt = FORMAT.encode_prompt(chain.problem)
  ids = [*prompt]
  for i, step in enumerate(chain.steps):
    ids += FORMAT.encode_step(step, i == 0)
  ids.append(FORMAT.end)
  # Padded on the right, which changes no earlier token, to compile it once.
  tokens = np.pad(ids, (0, 30 - len(ids)))[None]
  logits = np.asarray(next_token_logits(backbone, tokens), np.float64)
  logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return [-logs[t - 1, ids[t]] for t in range(len(prompt), len(ids))]


def packed_batch(row_length: int, rows: int):
  """All chains in one batch."""
  config = BatchConfig(rows, row_length, max_steps_per_row=8, seed=0, epochs=1)
  census = take_census(CHAINS, FORMAT, COMPLETION, config)
  (batch,) = make_batches(census, config)
  return batch


def policy_loss(params, batch, lora=NO_LORA):
  divided_by = norms(batch, POLICY_LOSS)
  objective = ObjectiveConfig(MODEL, None, POLICY_LOSS, lora)
  loss, values = jit_loss(params, batch, *divided_by, objective)
  assert values.keys() == {'loss', 'lm_loss'}
  assert values['loss'] == values['lm_loss'] == loss
  return float(loss), float(divided_by[1])


@pytest.mark.parametrize(('row_length', 'rows'), [(90, 1), (30, 3)])
def test_the_loss_is_a_mean_over_completion_tokens(backbone, row_length, rows):
  expected = [loss for c in CHAINS for loss in chain_losses(backbone, c)]
  batch = packed_batch(row_length, rows)
  packed = (batch['positions'] == 0).sum() > rows
  assert packed == (rows == 1)
  loss, tokens = policy_loss({'backbone': backbone}, batch)
  # The steps have 6, 12 and 14 tokens, and each chain an end token.
  assert tokens == len(expected) == 35
  # float32 forward passes of rows of another length.
  np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)


def test_with_adapters_the_loss_is_the_merged_policys(backbone):
  lora = LoraConfig(2, 4.0, ('q_proj', 'down_proj'))
  adapters = init_lora(jax.random.key(1), backbone, lora)
  adapters = jax.tree.map(lambda x: x + 0.1, adapters)
  batch = packed_batch(90, 1)
  ours = policy_loss({'backbone': backbone, 'lora': adapters}, batch, lora)
  merged = policy_loss({'backbone': merge(backbone, adapters, lora)}, batch)
  assert ours == pytest.approx(merged, rel=1e-6)
  plain = policy_loss({'backbone': backbone}, batch)
  assert abs(ours[0] - plain[0]) > 1e-3

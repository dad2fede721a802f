"""What a train step of adapters costs beside one of the whole backbone."""

import dataclasses

import jax
import optax
import pytest

from prm_jax.aot.hlo import read_program
from prm_jax.aot.work import count_work
from prm_jax.models import HeadConfig, LoraConfig, TransformerConfig
from prm_jax.training.loop import make_train_step
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.train_state import NO_LORA, make_init
from tests.shared import tiny_training

ADAPTERS = LoraConfig(rank=2)
# So wide that products with kernels are most of the work.
MODEL = TransformerConfig(2000, 128, 4, 4, 4, 512, head_dim=32)
# A number of each entry of all layers' gate_proj.
WHOLE = 'tensor<4x128x512xf32>'


def lowered_step(lora, model, lm_weight):
  optimizer, head = optax.sgd(0.1), HeadConfig()
  objective = ObjectiveConfig(
    model, head, LossConfig(lm_weight=lm_weight), lora
  )
  step = make_train_step(objective, optimizer, optax.constant_schedule(1.0))
  init = make_init(model, head, optimizer, lora)
  state = jax.eval_shape(init, jax.random.key(0))
  return jax.jit(step).lower(state, tiny_training.batch(0))


@pytest.mark.parametrize('lm_weight', [0.0, 1.0])
def test_adapters_take_two_thirds_of_the_operations(lm_weight):
  """Without the gradients of the kernels, two products of three are left."""
  adapted, whole = (
    count_work(
      read_program(lowered_step(lora, MODEL, lm_weight).compile().as_text()), 1
    ).flops
    for lora in (ADAPTERS, NO_LORA)
  )
  assert 0.6 * whole < adapted < 0.72 * whole


def test_a_frozen_backbone_has_no_gradient_and_no_copy_in_float32():
  model = dataclasses.replace(MODEL, dtype='bfloat16', param_dtype='bfloat16')
  assert WHOLE in lowered_step(NO_LORA, model, 1.0).as_text()
  assert WHOLE not in lowered_step(ADAPTERS, model, 1.0).as_text()

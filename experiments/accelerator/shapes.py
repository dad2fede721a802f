"""The published shapes of the models, and the sizes of every part's work.

Both sides read them, so this module imports nothing but the standard library.
All weights are random.
"""

from typing import Any, NamedTuple

Shape = dict[str, Any]  # arguments of a TransformerConfig

# https://huggingface.co/HuggingFaceTB/SmolLM2-135M
SMOLLM2_135M: Shape = {
  'vocab_size': 49_152,
  'd_model': 576,
  'n_layers': 30,
  'n_heads': 9,
  'n_kv_heads': 3,
  'd_ff': 1536,
  'rope_theta': 100_000.0,
  'norm_eps': 1e-5,
}
# https://huggingface.co/Qwen/Qwen2.5-0.5B
QWEN_0_5B: Shape = {
  'vocab_size': 151_936,
  'd_model': 896,
  'n_layers': 24,
  'n_heads': 14,
  'n_kv_heads': 2,
  'd_ff': 4864,
  'rope_theta': 1_000_000.0,
  'qkv_bias': True,
}
# https://huggingface.co/Qwen/Qwen2.5-1.5B
QWEN_1_5B: Shape = {
  **QWEN_0_5B,
  'd_model': 1536,
  'n_layers': 28,
  'n_heads': 12,
  'd_ff': 8960,
}
TINY: Shape = {
  'vocab_size': 512,
  'd_model': 64,
  'n_layers': 2,
  'n_heads': 4,
  'n_kv_heads': 2,
  'd_ff': 128,
  'qkv_bias': True,
}
MODELS = {'1.5B': QWEN_1_5B, '135M': SMOLLM2_135M, '0.5B': QWEN_0_5B}
CLASSES = 2  # outputs of the step head


class Training(NamedTuple):
  """Sizes of a train step: full rows of one chain each.

  Attributes:
    rows, length: of a batch, in rows and tokens.
    step: tokens of a reasoning step.
    warmup, steps: updates before the measurement, and in it.
  """

  shape: Shape
  rows: int
  length: int
  step: int = 64
  warmup: int = 3
  steps: int = 10


class Scoring(NamedTuple):
  """Sizes of scoring the candidates of one problem.

  Attributes:
    prompt: tokens of the problem.
    steps, step: steps of a candidate, and tokens of a step.
    repeats: times that all candidates are scored.
  """

  shape: Shape
  candidates: int
  prompt: int
  steps: int
  step: int
  repeats: int = 5


class Sampling(NamedTuple):
  """Sizes of sampling: prompts of one length, and chains of different ones.

  Attributes:
    slots: chains that are written at once; the other side's batch.
    samples: chains in all, four of each prompt.
    prompt: tokens of a prompt.
    shortest, longest: tokens of a chain.
  """

  shape: Shape
  slots: int
  samples: int
  prompt: int
  shortest: int
  longest: int


def training(tiny: bool) -> dict[str, Training]:
  """Returns the train steps by name, the most wanted first."""
  if tiny:
    return {'tiny_64': Training(TINY, 2, 64, 16, 1, 2)}
  tokens = {'1.5B': 8192, '0.5B': 16_384, '135M': 32_768}
  return {
    f'{name}_{length}': Training(shape, tokens[name] // length, length)
    for length in (1024, 4096)
    for name, shape in MODELS.items()
  }


def scoring(tiny: bool) -> dict[str, Scoring]:
  """Returns the scoring tasks by name, the most wanted first."""
  if tiny:
    return {'tiny_short': Scoring(TINY, 4, 16, 2, 8, 2)}
  return {
    f'{name}_{prompt}': Scoring(MODELS[name], 64, length, 8, 40)
    for name in ('1.5B', '135M')
    for prompt, length in (('short', 96), ('long', 1024))
  }


def sampling(tiny: bool) -> dict[str, Sampling]:
  """Returns the sampling tasks by name, the most wanted first."""
  if tiny:
    return {'tiny_4': Sampling(TINY, 4, 8, 16, 4, 12)}
  return {
    f'{name}_{slots}': Sampling(MODELS[name], slots, 2 * slots, 128, 32, 384)
    for name in ('1.5B', '135M')
    for slots in (64, 512)
  }

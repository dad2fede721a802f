"""The published shapes of the models, and the sizes of every part's work.

Both sides read them, so this module imports nothing but the standard library.
All weights and all tokens are random.
"""

import random
import string
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


PAD, BOS, STEP_END, PROBLEM_END = range(4)  # of the tokenizer `bytes`


class Training(NamedTuple):
  """Sizes of a train step: full rows of one chain each.

  Attributes:
    rows, length: of a batch, in rows and tokens.
    step: tokens of a reasoning step.
    remat: what our backward pass recomputes, see `TransformerConfig`.
    warmup, steps: updates before the measurement, and in it.
  """

  shape: Shape
  rows: int
  length: int
  step: int = 64
  remat: str = 'none'
  warmup: int = 3
  steps: int = 10

  @property
  def tokens(self) -> int:
    """Returns the tokens of a batch."""
    return self.rows * self.length

  def useful_flops(self) -> float:
    """Counts what a train step must compute, as `prm_jax.models.flops` does.

    A gradient costs twice the forward pass. The head is left out: it reads one
    token of each step.
    """
    s = self.shape
    head = s['d_model'] // s['n_heads']
    heads = 2 * (s['n_heads'] + s['n_kv_heads']) * head
    weights = s['n_layers'] * s['d_model'] * (heads + 3 * s['d_ff'])
    pairs = self.tokens * (self.length + 1) / 2  # a token also sees itself
    attention = 4 * pairs * head * s['n_heads'] * s['n_layers']
    return 3 * (2 * self.tokens * weights + attention)


class Candidates(NamedTuple):
  """Holds a problem and candidates, as text of one byte a token.

  The tokenizer `bytes` and the project's own format read it:
  BOS, problem, PROBLEM_END, and then each step and its STEP_END.
  """

  problem: str
  chains: list[list[str]]


class Scoring(NamedTuple):
  """Sizes of scoring the candidates of one problem.

  Attributes:
    prompt: tokens of the problem.
    fewest, most: steps of a candidate; those of candidates differ.
    step: tokens of a step.
    growing: whether all candidates are scored after each of their steps, as in
      a beam search; then all have `most` steps.
    repeats: times that all candidates are scored.
  """

  shape: Shape
  candidates: int
  prompt: int
  fewest: int
  most: int
  step: int
  growing: bool = False
  repeats: int = 5

  def draw(self, seed: int) -> Candidates:
    """Draws new texts; their lengths are the same for every seed."""
    counts, letters = random.Random(0), random.Random(seed)

    def text(tokens: int) -> str:
      return ''.join(letters.choices(string.ascii_letters, k=tokens))

    problem = text(self.prompt - 2)  # BOS and PROBLEM_END are tokens, too
    fewest = self.most if self.growing else self.fewest
    return Candidates(
      problem,
      [
        [text(self.step - 1) for _ in range(counts.randint(fewest, self.most))]
        for _ in range(self.candidates)
      ],
    )

  def rounds(self, drawn: Candidates) -> list[list[list[str]]]:
    """Returns the chains of each call, all of them growing or whole."""
    if not self.growing:
      return [drawn.chains]
    grown = range(1, self.most + 1)
    return [[chain[:n] for chain in drawn.chains] for n in grown]


def encode(problem: str, steps: list[str]) -> tuple[list[int], list[int]]:
  """Returns the ids of a chain and its step ends, as prm_jax encodes it."""
  ids, ends = [BOS, *(byte + 4 for byte in problem.encode()), PROBLEM_END], []
  for step in steps:
    ids += [*(byte + 4 for byte in step.encode()), STEP_END]
    ends.append(len(ids) - 1)
  return ids, ends


class Sampling(NamedTuple):
  """Sizes of sampling: prompts of one length, and chains of different ones.

  Attributes:
    slots: chains that are written at once; the other side's batch.
    samples: chains in all, four of each prompt.
    prompt: tokens of a prompt.
    shortest, longest: tokens of a chain.
    repeats: times that all chains are written.
  """

  shape: Shape
  slots: int
  samples: int
  prompt: int
  shortest: int
  longest: int
  repeats: int = 2

  def prompts(self, seed: int) -> list[list[int]]:
    """Draws the prompts."""
    ids = range(4, self.shape['vocab_size'])
    draw = random.Random(seed)
    return [
      draw.choices(ids, k=self.prompt)
      for _ in range(self.samples // SAMPLES_OF_A_PROMPT)
    ]

  def lengths(self) -> list[int]:
    """Draws the tokens of each chain, those of one prompt side by side."""
    draw = random.Random(0)
    return [
      draw.randint(self.shortest, self.longest) for _ in range(self.samples)
    ]


SAMPLES_OF_A_PROMPT = 4


def training(tiny: bool) -> dict[str, Training]:
  """Returns the train steps by name, the most wanted first.

  A batch is as large as fits three quarters of 80 GB, ours and, by estimate,
  PyTorch's. With remat='dots' ours moves half the bytes of 'none', and a step
  is bound by memory traffic.
  """
  if tiny:
    return {'tiny_64': Training(TINY, 2, 64, 16, 'dots', warmup=1, steps=2)}
  tokens = {'1.5B': 16_384, '0.5B': 32_768, '135M': 65_536}
  return {
    f'{name}_{length}': Training(
      shape, tokens[name] // length, length, remat='dots'
    )
    for length in (1024, 4096)
    for name, shape in MODELS.items()
  }


def scoring(tiny: bool) -> dict[str, Scoring]:
  """Returns the scoring tasks by name, the most wanted first."""
  if tiny:
    case = Scoring(TINY, 4, 16, 1, 3, 8, repeats=2)
    return {'tiny_short': case, 'tiny_growing': case._replace(growing=True)}
  kinds = {'short': (96, False), 'long': (1024, False), 'growing': (96, True)}
  return {
    f'{name}_{kind}': Scoring(MODELS[name], 64, prompt, 4, 12, 40, growing)
    for name in ('1.5B', '135M')
    for kind, (prompt, growing) in kinds.items()
  }


def sampling(tiny: bool) -> dict[str, Sampling]:
  """Returns the sampling tasks by name, the most wanted first."""
  if tiny:
    return {'tiny_4': Sampling(TINY, 4, 8, 16, 4, 12, 1)}
  return {
    f'{name}_{slots}': Sampling(MODELS[name], slots, 2 * slots, 128, 32, 384)
    for name in ('1.5B', '135M')
    for slots in (64, 512)
  }

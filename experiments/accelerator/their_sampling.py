"""PyTorch's side of sampling: `transformers.generate` with a static cache.

    batches of prompts, each repeated four times -> generate -> tokens

On a GPU such a cache makes `generate` compile the step that writes a token. A
batch runs until its longest chain ends; only the tokens wanted are counted.
"""

import statistics
from typing import Any

import torch
import transformers

from experiments.accelerator import cases, shapes
from experiments.accelerator.shapes import SAMPLES_OF_A_PROMPT, Sampling
from experiments.accelerator.their_models import (
  DEVICE,
  clear,
  make_model,
  peak_bytes,
  seconds_of,
)


class Lengths(transformers.StoppingCriteria):
  """Ends every row after as many new tokens as the case says."""

  def __init__(self, prompt: int, lengths: list[int]):
    self.ends = prompt + torch.tensor(lengths, device=DEVICE)

  def __call__(self, input_ids, scores, **kwargs):
    return input_ids.shape[1] >= self.ends


def write(
  model: transformers.PreTrainedModel, case: Sampling, seed: int
) -> None:
  """Writes all chains, in batches of as many as our side has slots."""
  prompts, lengths = torch.tensor(case.prompts(seed)), case.lengths()
  for at in range(0, case.samples, case.slots):
    own = lengths[at : at + case.slots]
    first = at // SAMPLES_OF_A_PROMPT
    ids = prompts[first : first + len(own) // SAMPLES_OF_A_PROMPT].to(DEVICE)
    found = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=True,
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      num_return_sequences=SAMPLES_OF_A_PROMPT,
      # Not the batch's longest: one size of cache compiles one program.
      max_new_tokens=case.longest,
      stopping_criteria=[Lengths(case.prompt, own)],
      cache_implementation='static',
      eos_token_id=None,
      pad_token_id=shapes.PAD,
    )
    assert found.shape == (len(own), case.prompt + max(own))


def measure(case: Sampling) -> dict[str, Any]:
  """Measures wanted tokens per second."""
  clear()
  model = make_model(case.shape, 'ForCausalLM', torch.bfloat16).eval()
  with torch.inference_mode():
    first, *seconds = [
      seconds_of(write, model, case, seed) for seed in range(case.repeats + 1)
    ]
  typical = statistics.median(seconds)
  return {
    'tokens_per_second': sum(case.lengths()) / typical,
    'seconds': seconds,
    'compile_seconds': max(0.0, first - typical),
    'memory_bytes': peak_bytes(),
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.sampling)

"""Is every program right on this accelerator? Its results beside the CPU's.

    python -m experiments.accelerator.right --folder DIR --side ours [--tiny]

The CPU of the same machine computes in float32, with exact products and plain
attention. The accelerator computes the same in float32 with exact products, in
float32 as it comes (TF32 on GPUs, bfloat16 on TPUs), and in bfloat16. A case is
one program; a check is a difference and the bound that it may not exceed.
"""

import functools
import os
from typing import Any

from experiments.accelerator import (
  cases,
  right_attention,
  right_programs,
  right_sampling,
  right_scoring,
  right_smollm2,
)
from experiments.accelerator.right_checks import found
from prm_jax.models import TransformerConfig


def compare_resumed(model: TransformerConfig) -> dict[str, Any]:
  """Compares a run that was stopped with one that was not."""
  # It needs grain; where that is missing, this case alone fails.
  from experiments.accelerator import right_resume  # noqa: PLC0415

  return right_resume.compare_resumed(model)


def make_cases(tiny: bool) -> dict[str, cases.Case]:
  """Returns the cases by name, the most valuable first."""
  model = right_programs.model_of(tiny)
  long = right_programs.long_row(tiny)
  short = long // 4  # at the tiny size, all scores of a row at once
  # The gradient of long rows takes a CPU long to compile; `attention` has it.
  learned = short if tiny else long
  made = {
    f'forward_{long}': (right_programs.compare_forward, model, long),
    'attention': (right_attention.compare, right_attention.sizes(tiny)),
    'gradients': (right_programs.compare_gradients, model, learned),
    'scoring': (right_scoring.compare_scoring, model),
    'same_bits': (right_scoring.compare_twice, model, learned),
    'train_steps': (right_programs.compare_train_steps, model, short),
    'decoding': (right_sampling.compare_decoding, model),
    'sampling_greedy': (right_sampling.compare_greedy, model),
    'sampling_drawn': (right_sampling.compare_drawn, model),
    'rl_update': (right_sampling.compare_rl, model),
    'resume': (compare_resumed, model),
    'growing_chains': (right_scoring.compare_growing, model),
    f'forward_{short}': (right_programs.compare_forward, model, short),
  }
  if tiny:
    note = 'left out at this size: the CPU would only repeat itself'
    made['smollm2'] = found, [], note
  else:
    # Biases and few heads, as SmolLM2 has none.
    small = right_programs.TINY_MODEL
    made['forward_biases'] = right_programs.compare_forward, small, short
    made['smollm2'] = (right_smollm2.compare,)
  return {name: functools.partial(*call) for name, call in made.items()}


def main() -> None:
  # A process that takes all of a GPU's memory leaves none to other tests.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  setup = cases.read_arguments()
  if setup.tiny:
    # Programs compile in two thirds of the time, and compute little.
    os.environ.setdefault(
      'XLA_FLAGS',
      '--xla_backend_optimization_level=0 '
      '--xla_llvm_disable_expensive_passes=true',
    )
  cases.run(setup, make_cases(setup.tiny))


if __name__ == '__main__':
  main()

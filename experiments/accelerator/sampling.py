"""Our side of sampling: `Writer`, with as many slots as the other side's batch.

    prompts, four chains of each, a length for each chain -> Writer -> tokens

No token ends a chain, as the lengths are given.
"""

import statistics
import time
from typing import Any

import jax

from experiments.accelerator import cases, shapes
from experiments.accelerator.scoring import make_weights
from experiments.accelerator.shapes import Sampling
from prm_jax import SamplingConfig
from prm_jax.inference.sampler import Stops
from prm_jax.inference.writer import SampleRequest, SamplingStats, Writer
from prm_jax.models import TransformerConfig
from prm_jax.runtime.sharding import flat_mesh


def make_writer(case: Sampling) -> Writer:
  """Makes a sampler of a policy with random bfloat16 weights."""
  window = case.prompt + case.longest
  return Writer(
    make_weights(case.shape)['backbone'],
    TransformerConfig(**case.shape, dtype='bfloat16'),
    flat_mesh(jax.devices()[:1]),
    SamplingConfig(slots=case.slots, max_tokens=case.longest),
    Stops(-1, -1),
    window,
  )


def requests(case: Sampling, seed: int) -> list[SampleRequest]:
  """Draws new prompts; the lengths are the same for every seed."""
  prompts = case.prompts(seed)
  return [
    SampleRequest(
      tuple(prompts[i // shapes.SAMPLES_OF_A_PROMPT]),
      seed=seed * case.samples + i,
      max_tokens=length,
    )
    for i, length in enumerate(case.lengths())
  ]


def measure(case: Sampling) -> dict[str, Any]:
  """Measures wanted tokens per second."""
  writer = make_writer(case)
  lengths, times = case.lengths(), []
  for seed in range(case.repeats + 1):
    jobs = requests(case, seed)
    writer.stats = SamplingStats(programs=writer.stats.programs)
    began = time.perf_counter()
    written = writer.write(jobs)
    times.append(time.perf_counter() - began)
    assert [len(sample.tokens) for sample in written] == lengths
  first, *seconds = times
  typical = statistics.median(seconds)
  stats = writer.stats
  return {
    'tokens_per_second': sum(lengths) / typical,
    'seconds': seconds,
    'compile_seconds': max(0.0, first - typical),
    'programs': sorted(map(list, stats.programs)),
    'notes': [f'{100 * stats.tokens / stats.slot_steps:.0f}% of slots in use'],
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.sampling)

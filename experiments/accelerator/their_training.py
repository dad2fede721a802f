"""PyTorch's side of training: transformers, autocast and compiled layers.

    random tokens, labels at step ends -> forward, backward, AdamW -> seconds

Weights are float32 and products bfloat16, as on our side.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from experiments.accelerator import cases, shapes
from experiments.accelerator.shapes import Training
from experiments.accelerator.their_models import (
  DEVICE,
  clear,
  make_model,
  peak_bytes,
  synchronize,
)

IGNORED = -100  # label of tokens that end no step
CLIP = 1.0
# On a CPU only the capture of the graph is tried: its compiler takes minutes.
BACKEND = 'inductor' if DEVICE == 'cuda' else 'eager'


def batches(case: Training) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
  """Yields tokens and labels of each step, with labels at step ends."""
  random = torch.Generator().manual_seed(0)
  rows = case.rows, case.length
  ends = torch.arange(case.step - 1, case.length, case.step)
  for _ in range(case.warmup + case.steps):
    tokens = torch.randint(4, case.shape['vocab_size'], rows, generator=random)
    labels = torch.full(rows, IGNORED)
    labels[:, ends] = torch.randint(
      0, shapes.CLASSES, (case.rows, len(ends)), generator=random
    )
    yield tokens, labels


def mark() -> Callable[[], Any]:
  """Returns what waits for the work that was started before this call."""
  if DEVICE == 'cpu':
    return synchronize
  event = torch.cuda.Event()
  event.record()
  return event.synchronize


def measure(case: Training) -> dict[str, Any]:
  """Measures the train step, with half the rows if all take too much memory."""
  notes, rows = [], case.rows
  while True:
    try:
      found = measure_rows(case._replace(rows=rows))
      return found | {'rows': rows, 'notes': [*notes, f'{rows} rows']}
    except torch.OutOfMemoryError as error:
      if rows == 1:
        raise
      notes.append(f'out of memory with {rows} rows')
      print(f'{notes[-1]}: {error}', flush=True)
    rows //= 2


def measure_rows(case: Training) -> dict[str, Any]:
  """Measures the train step with as many rows as the case says."""
  clear()
  model = make_model(case.shape, 'ForTokenClassification', torch.float32)
  model.train()
  # One graph serves all layers, which takes seconds; the whole takes minutes.
  for layer in model.model.layers:
    layer.compile(backend=BACKEND, dynamic=False)
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, fused=True
  )

  def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
      found = model(input_ids=tokens, labels=labels, use_cache=False)
    found.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return found.loss.detach()

  began = time.perf_counter()
  ends, before = [], None
  for n, batch in enumerate(batches(case), 1):
    loss = step(*(x.to(DEVICE, non_blocking=True) for x in batch))
    # As on our side, a step is started while the one before it still runs.
    if before and n > case.warmup:
      before()
      ends.append(time.perf_counter())
    before = mark()
    if n == 1:
      synchronize()
      first = time.perf_counter() - began
    if n == case.warmup:
      synchronize()
      ends.append(time.perf_counter())
      before = None
  synchronize()
  ends.append(time.perf_counter())
  seconds = [b - a for a, b in itertools.pairwise(ends)]
  mean = statistics.mean(seconds)
  return {
    'tokens_per_second': case.tokens / mean,
    'seconds_per_step': mean,
    'seconds': seconds,
    'useful_flops_per_second': case.useful_flops() / mean,
    'memory_bytes': peak_bytes(),
    'compile_seconds': max(0.0, first - mean),
    'loss': float(loss),
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.training)

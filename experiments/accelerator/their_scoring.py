"""PyTorch's side of scoring: transformers' forward pass over padded batches.

    ids -> batches of similar lengths -> step scores

The prompt is repeated for each candidate, and a chain that grows is read from
its beginning, as this library's users do. Batch size, and whether padding is
masked (a causal model needs no mask for padding on the right), are those that
are fastest.
"""

import itertools
import statistics
from typing import Any, NamedTuple

import torch

from experiments.accelerator import cases, shapes
from experiments.accelerator.shapes import Scoring, encode
from experiments.accelerator.their_models import (
  DEVICE,
  clear,
  make_model,
  seconds_of,
)

SIZES = (64, 32, 16, 8)
Chain = tuple[list[int], list[int]]  # ids, step ends


class Batching(NamedTuple):
  """Says how chains are read: in batches of a size, with a mask or without."""

  size: int
  masked: bool


def encoded(case: Scoring, seed: int) -> list[list[Chain]]:
  """Returns the chains of each call."""
  drawn = case.draw(seed)
  return [
    [encode(drawn.problem, chain) for chain in chains]
    for chains in case.rounds(drawn)
  ]


def score(
  model: torch.nn.Module, chains: list[Chain], how: Batching
) -> list[list[float]]:
  """Returns the probability that a step is right, at the step ends."""
  order = sorted(range(len(chains)), key=lambda i: len(chains[i][0]))
  batches = [order[at : at + how.size] for at in range(0, len(order), how.size)]
  started = []
  for members in batches:
    ids = [torch.tensor(chains[i][0]) for i in members]
    padded = torch.nn.utils.rnn.pad_sequence(ids, True, shapes.PAD)
    # Of BOS, the bytes and the separators none is 0.
    mask = (padded != shapes.PAD).long().to(DEVICE) if how.masked else None
    logits = model(
      input_ids=padded.to(DEVICE), attention_mask=mask, use_cache=False
    ).logits
    started.append(logits.float().softmax(-1)[..., 1])
  scores: list[list[float]] = [[]] * len(chains)
  # The host waits only now.
  for members, right in zip(batches, started, strict=True):
    for row, i in zip(right.cpu(), members, strict=True):
      scores[i] = row[chains[i][1]].tolist()
  return scores


def measure(case: Scoring) -> dict[str, Any]:
  """Measures candidates per second; a growing chain counts after each step."""
  clear()
  model = make_model(case.shape, 'ForTokenClassification', torch.bfloat16)
  model.eval()

  def run(calls: list[list[Chain]], how: Batching) -> None:
    for chains in calls:
      score(model, chains, how)

  with torch.inference_mode():
    calls = encoded(case, 0)
    trials = {}
    sizes = [size for size in SIZES if size <= case.candidates] or SIZES[-1:]
    for how in itertools.starmap(
      Batching, itertools.product(sizes, (True, False))
    ):
      run(calls[-1:], how)
      trials[how] = seconds_of(run, calls[-1:], how)
    best = min(trials, key=trials.get)
    run(calls, best)
    seconds = [
      seconds_of(run, encoded(case, seed), best)
      for seed in range(1, case.repeats + 1)
    ]
  count = sum(map(len, calls))
  return {
    'candidates_per_second': count / statistics.median(seconds),
    'seconds': seconds,
    'notes': [f'batches of {best.size}{", masked" if best.masked else ""}'],
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.scoring)

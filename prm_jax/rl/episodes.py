"""Samples and grades the chains that a policy learns from.

    problems -> Generator.sample -> outcome by the verifier -> Episodes
      -> EpisodeRows, arrays of a few fixed shapes -> rating.py

A group is the chains of one problem; its chains follow one another.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Generator, Sample
from prm_jax.inference.grading import is_right
from prm_jax.inference.packing import bucket
from prm_jax.inference.protocols import Request
from prm_jax.inference.writer import cache_bucket
from prm_jax.runtime import processes

SMALLEST_STEPS = 8


class Episode(NamedTuple):
  """Holds one chain of the policy.

  Attributes:
    right: whether its final answer is right; False if the comparison took too
      long.
    scores: the PRM's scores of its steps, [P] in [0, 1]. NaN if the PRM's
      computation is not finite or the chain does not fit its window; 0 without
      a PRM, and before the PRM has scored it.
  """

  problem: Problem
  sample: Sample
  right: bool
  scores: np.ndarray

  @property
  def steps(self) -> tuple[str, ...]:
    """Returns the text of the steps that the policy finished."""
    return self.sample.completion.steps


def sample(
  policy: Generator, problems: Sequence[Problem], size: int, key: str
) -> list[list[Sample]]:
  """Samples `size` chains of each problem.

  Args:
    key: seeds the samples, together with the problem, the number of its earlier
      draws in this call, and the policy's seed.
  """
  # At the end of an epoch a batch may hold a problem twice; its chains differ.
  met: collections.Counter[str] = collections.Counter()
  requests = []
  for problem in problems:
    again = f'/{met[problem.id]}' if met[problem.id] else ''
    met[problem.id] += 1
    name = f'{key}/{problem.id}{again}'
    requests.append(Request(problem.text, (), name, size))
  return policy.sample(requests)


def verify(
  problems: Sequence[Problem], groups: Sequence[Sequence[Sample]]
) -> list[Episode]:
  """Grades each chain by its answer; the steps have no scores yet.

  All processes use the verdicts of the first one: some comparisons have a time
  limit, which one process may exceed alone.
  """
  chains = [
    (problem, one)
    for problem, group in zip(problems, groups, strict=True)
    for one in group
  ]
  verdicts = ''
  if processes.is_first():
    verdicts = ''.join(
      str(int(is_right(problem.text, one.completion, problem.truth) or 0))
      for problem, one in chains
    )
  verdicts = processes.broadcast('verdicts', verdicts)
  return [
    Episode(problem, one, verdict == '1', np.zeros(len(one.completion.steps)))
    for (problem, one), verdict in zip(chains, verdicts, strict=True)
  ]


class EpisodeRows(NamedTuple):
  """Holds episodes as arrays, one in each row."""

  tokens: np.ndarray  # [B, T] int32
  lengths: np.ndarray  # [B] int32, tokens of the chain; 0 is padding
  written: np.ndarray  # [B, T] bool, tokens that the policy wrote
  sampled_logprobs: np.ndarray  # [B, T] float32
  reference_logprobs: np.ndarray  # [B, T] float32, 0 until they are computed
  step_ends: np.ndarray  # [B, P] int32, index of the token that ends each
  step_mask: np.ndarray  # [B, P] bool, steps come first
  outcomes: np.ndarray  # [B] float32, 1 right, 0 wrong


def to_rows(episodes: Sequence[Episode], fmt: StepFormat) -> EpisodeRows:
  """Pads all episodes to the shortest of a few lengths that fits."""
  lengths = [len(e.sample.ids) + len(e.sample.written.tokens) for e in episodes]
  B, T = len(episodes), min(cache_bucket(max(lengths)), fmt.max_length)
  P = bucket(max(len(e.steps) for e in episodes) or 1, SMALLEST_STEPS)
  tokens = np.zeros((B, T), np.int32)
  sizes = np.array(lengths, np.int32)
  written, logprobs = np.zeros((B, T), bool), np.zeros((B, T), np.float32)
  ends, mask = np.zeros((B, P), np.int32), np.zeros((B, P), bool)
  for b, episode in enumerate(episodes):
    ids, new = episode.sample.ids, episode.sample.written
    start, end = len(ids), len(ids) + len(new.tokens)
    tokens[b, :start], tokens[b, start:end] = ids, new.tokens
    written[b, start:end] = True
    logprobs[b, start:end] = new.logprobs
    count = len(episode.steps)
    mask[b, :count] = True
    ends[b, :count] = start + step_ends(new.tokens, count, fmt)
  outcomes = np.array([e.right for e in episodes], np.float32)
  none = np.zeros((B, T), np.float32)
  return EpisodeRows(
    tokens, sizes, written, logprobs, none, ends, mask, outcomes
  )


def step_ends(tokens: np.ndarray, count: int, fmt: StepFormat) -> np.ndarray:
  """Returns the indices where the first `count` written steps end, [count].

  Steps are those of `generator.read_steps`: each ends with the next separator,
  the last one possibly with the end token.
  """
  stops = (tokens == fmt.separator[0]) | (tokens == fmt.end)
  return np.flatnonzero(stops)[:count]

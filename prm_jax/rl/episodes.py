"""Chains that a policy writes to learn from: sampled, judged, as arrays.

    problems -> Generator.sample -> outcome by the verifier, scores by the PRM
      -> Episodes -> arrays of a few fixed shapes

A group is the chains of one problem, one after another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.batching import cache_bucket
from prm_jax.data.problems import Problem
from prm_jax.encoding import StepFormat
from prm_jax.generator import Generator, Sample
from prm_jax.labels.labelling import is_right
from prm_jax.policy import Request, Scoring, StepScorer
from prm_jax.rl.credit import Findings
from prm_jax.score import bucket

SMALLEST_STEPS = 8


class Episode(NamedTuple):
  """One chain.

  Attributes:
    right: whether it ended with the right answer; what could not be compared
      in time is not right.
    scores: of its steps by the PRM, [P] in [0, 1]; NaN where the PRM is broken
      or the chain does not fit its window; 0 everywhere without a PRM.
  """

  problem: Problem
  sample: Sample
  right: bool
  scores: np.ndarray

  @property
  def steps(self) -> tuple[str, ...]:
    return self.sample.completion.steps


def gather(
  policy: Generator,
  prm: StepScorer | None,
  problems: Sequence[Problem],
  size: int,
  key: str,
) -> list[Episode]:
  """`size` chains of each problem.

  Args:
    key: what they are drawn from, with the problem and the policy's seed.
  """
  groups = sample(policy, problems, size, key)
  return judge(prm, problems, groups)


def sample(
  policy: Generator, problems: Sequence[Problem], size: int, key: str
) -> list[list[Sample]]:
  """The chains of each problem, not judged yet."""
  return policy.sample(
    [Request(p.text, (), f'{key}/{p.id}', size) for p in problems]
  )


def judge(
  prm: StepScorer | None,
  problems: Sequence[Problem],
  groups: Sequence[Sequence[Sample]],
) -> list[Episode]:
  """Outcomes and scores."""
  chains = [
    (problem, one)
    for problem, group in zip(problems, groups, strict=True)
    for one in group
  ]
  scores = iter(
    step_scores(prm, [(p.text, one.completion.steps) for p, one in chains])
  )
  return [
    Episode(
      problem,
      one,
      bool(is_right(problem.text, one.completion, problem.truth)),
      next(scores),
    )
    for problem, one in chains
  ]


def step_scores(
  prm: StepScorer | None, chains: Sequence[tuple[str, tuple[str, ...]]]
) -> list[np.ndarray]:
  """Of each chain [P]; one without steps is not asked about."""
  found = [np.zeros(len(steps)) for _, steps in chains]
  if prm is None:
    return found
  asked = [i for i, (_, steps) in enumerate(chains) if steps]
  said = prm.score([Scoring(*chains[i]) for i in asked])
  for i, [scored] in zip(asked, said, strict=True):
    # Steps that do not fit have no score, which is not a low one.
    scores = scored.scores or (np.nan,) * len(found[i])
    found[i] = np.asarray(scores, np.float64)
  return found


class Rows(NamedTuple):
  """Episodes as arrays, one a row."""

  tokens: np.ndarray  # [B, T] int32
  segment_ids: np.ndarray  # [B, T] int32, 1; 0 is padding
  written: np.ndarray  # [B, T] bool
  sampled_logprobs: np.ndarray  # [B, T] float32
  findings: Findings


def to_rows(episodes: Sequence[Episode], fmt: StepFormat) -> Rows:
  """Pads to the shortest of a few lengths that holds all."""
  lengths = [len(e.sample.ids) + len(e.sample.written.tokens) for e in episodes]
  B, T = len(episodes), min(cache_bucket(max(lengths)), fmt.max_length)
  P = bucket(max(len(e.steps) for e in episodes) or 1, SMALLEST_STEPS)
  tokens, segments = np.zeros((2, B, T), np.int32)
  written, logprobs = np.zeros((B, T), bool), np.zeros((B, T), np.float32)
  scores, ends = np.zeros((B, P), np.float32), np.zeros((B, P), np.int32)
  mask = np.zeros((B, P), bool)
  for b, episode in enumerate(episodes):
    ids, new = episode.sample.ids, episode.sample.written
    start, end = len(ids), len(ids) + len(new.tokens)
    tokens[b, :start], tokens[b, start:end] = ids, new.tokens
    segments[b, :end], written[b, start:end] = 1, True
    logprobs[b, start:end] = new.logprobs
    count = len(episode.steps)
    scores[b, :count], mask[b, :count] = episode.scores, True
    ends[b, :count] = start + step_ends(new.tokens, count, fmt)
  outcomes = np.array([e.right for e in episodes], np.float32)
  penalties = np.zeros((B, T), np.float32)
  findings = Findings(scores, mask, ends, outcomes, written, penalties)
  return Rows(tokens, segments, written, logprobs, findings)


def step_ends(tokens: np.ndarray, count: int, fmt: StepFormat) -> np.ndarray:
  """Where the first `count` steps of what a policy wrote end, [count].

  As `generator.read_steps` reads them: each ends with the next separator, or
  the last with the end.
  """
  stops = np.isin(tokens, [fmt.separator[0], fmt.end])
  return np.flatnonzero(stops)[:count]

"""Describes a policy's chains during training, in numbers and as records.

Length, repetition and trivial steps show earlier than accuracy that a PRM is
fooled: chains get more steps, shorter ones, the same ones again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.data import chains
from prm_jax.data.chains import Chain
from prm_jax.inference.grading import answer_of
from prm_jax.rl.episodes import Episode
from prm_jax.rl.objective import Experience


def find_repeats(steps: Sequence[str]) -> list[bool]:
  """Says of each step whether an earlier one is equal, spaces ignored."""
  seen: set[str] = set()
  marks = []
  for step in steps:
    text = ' '.join(step.split())
    marks.append(text in seen)
    seen.add(text)
  return marks


def is_empty_calculation(step: str) -> bool:
  """Says whether a step calculates nothing: no digit, or equal sides.

  "5 + 0 = 5" and "5 * 1 = 5" only return their first number, as does "7 = 7".
  """
  if not any(map(str.isdigit, step)):
    return True
  left, equals, right = step.rpartition('=')
  if not equals:
    return False
  sides = left.split(), right.split()
  if sides[0] == sides[1]:
    return True
  if len(sides[0]) != 3 or len(sides[1]) != 1:
    return False
  first, op, second = sides[0]
  neutral = {'+': '0', '-': '0', '*': '1', '/': '1'}.get(op)
  return second == neutral and first == sides[1][0]


def find_trivial(steps: Sequence[str]) -> list[bool]:
  """Says of each step whether it is a repetition or an empty calculation.

  A problem may ask for an empty calculation, so only a growing share of them
  means something.
  """
  repeated = find_repeats(steps)
  return [
    again or is_empty_calculation(step)
    for again, step in zip(repeated, steps, strict=True)
  ]


def chain_metrics(
  episodes: Sequence[Episode], has_prm: bool
) -> dict[str, float]:
  """Returns means over chains.

  Args:
    has_prm: whether a PRM scored them.

  Returns:
    `accuracy`; `steps`; `step_tokens`, tokens of a step; `repeated` and
    `trivial`, shares of steps; `unfinished` and `without_steps`, shares of
    chains; `unscored`, the number of chains with scores that are not finite;
    and with a PRM those of `score_metrics`.
  """
  steps = [e.steps for e in episodes]
  repeated = [mark for each in steps for mark in find_repeats(each)]
  trivial = [mark for each in steps for mark in find_trivial(each)]
  tokens = sum(len(e.sample.written.tokens) for e in episodes)
  metrics = {
    'accuracy': _mean([e.right for e in episodes]),
    'steps': _mean([len(each) for each in steps]),
    'step_tokens': tokens / max(len(trivial), 1),
    'repeated': _mean(repeated),
    'trivial': _mean(trivial),
    'unfinished': _mean([not e.sample.completion.finished for e in episodes]),
    'without_steps': _mean([not each for each in steps]),
    'unscored': float(sum(not np.isfinite(e.scores).all() for e in episodes)),
  }
  return metrics | (score_metrics(episodes) if has_prm else {})


def score_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
  """Returns means over a PRM's scores; those of no score are left out.

  Returns:
    `prm_score`, over all steps, and `chain_score`, over the lowest of each
    chain; `paid_by_trivial`, the share of chains more than half of whose scores
    are those of trivial steps.
  """
  written = [e for e in episodes if e.steps]
  flat = np.concatenate([e.scores for e in written] or [[]])
  lowest = [e.scores.min() for e in written]
  paid = [
    e.scores[np.array(find_trivial(e.steps))].sum() > 0.5 * e.scores.sum()
    for e in written
  ]
  means = {
    'prm_score': flat[np.isfinite(flat)],
    'chain_score': [x for x in lowest if np.isfinite(x)],
    'paid_by_trivial': paid,
  }
  return {name: _mean(each) for name, each in means.items() if len(each)}


def batch_metrics(
  episodes: Sequence[Episode], batch: Experience, size: int, has_prm: bool
) -> dict[str, float]:
  """Returns `chain_metrics`, and the share of groups without any advantage.

  No reward moves the policy in such groups: their chains have equal rewards,
  or scores that are not finite. Where all scores are finite, a KL or entropy
  term of the loss still does.
  """
  moved = (batch.advantages != 0).any(1).reshape(-1, size).any(1)
  idle = {'idle_groups': float(1 - moved.mean())}
  return chain_metrics(episodes, has_prm) | idle


def _mean(values: Sequence[float]) -> float:
  return float(np.mean(values)) if len(values) else 0.0


def to_chain(episode: Episode, when: str) -> Chain:
  """Returns an episode as a chain that can be read and shown."""
  completion = episode.sample.completion
  problem, steps = episode.problem.text, completion.steps
  return Chain(
    problem,
    steps,
    answer_of(problem, steps) if completion.finished else None,
    episode.right,
    meta={
      'id': f'{episode.problem.id} {when}',
      'dataset': episode.problem.dataset,
      'truth': episode.problem.truth,
      'when': when,
      'finished': completion.finished,
    },
  )


def to_records(
  episodes: Sequence[Episode], when: str, has_prm: bool
) -> list[dict[str, Any]]:
  """Returns the chains that have steps, with their scores, as JSON records.

  Args:
    has_prm: whether a PRM scored them; a score is None where there is none.
  """
  return [
    chains.to_dict(to_chain(episode, when))
    | {
      'scores': [
        float(s) if has_prm and np.isfinite(s) else None for s in episode.scores
      ]
    }
    for episode in episodes
    if episode.steps
  ]

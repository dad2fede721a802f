"""What a policy writes while it learns: length, repetition, trivial steps.

A PRM that is fooled shows here before accuracy tells: more steps, shorter
ones, the same ones again.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.data import chains
from prm_jax.data.chains import Chain
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.rl.episodes import Episode
from prm_jax.rl.objective import Experience
from prm_jax.runtime import paths


def repeats(steps: Sequence[str]) -> list[bool]:
  """Whether each step was there before in the chain, blanks aside."""
  seen: set[str] = set()
  found = []
  for step in steps:
    text = ' '.join(step.split())
    found.append(text in seen)
    seen.add(text)
  return found


def is_empty_calculation(step: str) -> bool:
  """Whether it calculates nothing: no digit, or both sides are the same.

  "5 + 0 = 5" and "5 * 1 = 5" come to their first number, "7 = 7" too.
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


def trivial(steps: Sequence[str]) -> list[bool]:
  """Steps that say nothing new: repeated ones, and empty calculations.

  A problem may ask for one of the latter; what tells is a share that grows.
  """
  again = repeats(steps)
  return [
    r or is_empty_calculation(step)
    for r, step in zip(again, steps, strict=True)
  ]


def of_chains(found: Sequence[Episode]) -> dict[str, float]:
  """Means over chains.

  Returns:
    `accuracy`; `prm_score`, of all steps, and `chain_score`, the lowest of a
    chain; `steps`; `step_tokens`, tokens of a step; `repeated` and `trivial`,
    shares of steps; `paid_by_trivial`, the share of chains more than half of
    whose PRM scores are those of trivial steps; `unfinished`, `without_steps`,
    shares of chains; `unscored`, chains with scores that are not finite.
  """
  steps = [e.steps for e in found]
  flat = np.concatenate([e.scores for e in found] or [[]])
  finite = flat[np.isfinite(flat)]
  again = [mark for each in steps for mark in repeats(each)]
  dull = [trivial(each) for each in steps]
  marks = [mark for each in dull for mark in each]
  paid = [
    float(e.scores[np.array(mark)].sum() > 0.5 * e.scores.sum())
    for e, mark in zip(found, dull, strict=True)
    if e.steps
  ]
  lowest = [e.scores.min() for e in found if e.steps]
  tokens = sum(len(e.sample.written.tokens) for e in found)
  return {
    'accuracy': _mean([e.right for e in found]),
    'prm_score': _mean(finite),
    'chain_score': _mean([x for x in lowest if np.isfinite(x)]),
    'steps': _mean([len(each) for each in steps]),
    'step_tokens': tokens / max(len(marks), 1),
    'repeated': _mean(again),
    'trivial': _mean(marks),
    'paid_by_trivial': _mean(paid),
    'unfinished': _mean([not e.sample.completion.finished for e in found]),
    'without_steps': _mean([not each for each in steps]),
    'unscored': float(sum(not np.isfinite(e.scores).all() for e in found)),
  }


def of_batch(
  found: Sequence[Episode], batch: Experience, size: int
) -> dict[str, float]:
  """`of_chains`, and the share of groups that nothing is learned from.

  Their chains have equal rewards, or scores that are not finite.
  """
  moved = (batch.advantages != 0).any(1).reshape(-1, size).any(1)
  return of_chains(found) | {'idle_groups': float(1 - moved.mean())}


def _mean(values: Sequence[float]) -> float:
  return float(np.mean(values)) if len(values) else 0.0


def to_chain(episode: Episode, when: str) -> Chain:
  """An episode as a chain, to be read and shown."""
  completion = episode.sample.completion
  ended = completion.finished and completion.steps
  return Chain(
    episode.problem.text,
    completion.steps,
    final_answer(completion.steps) if ended else None,
    episode.right,
    meta={
      'id': f'{episode.problem.id} {when}',
      'dataset': episode.problem.dataset,
      'truth': episode.problem.truth,
      'when': when,
      'finished': completion.finished,
    },
  )


def records(found: Sequence[Episode], when: str) -> list[dict[str, Any]]:
  """Chains that have steps, with their scores, as a report reads them."""
  return [
    chains.to_dict(to_chain(episode, when))
    | {'scores': [float(s) if np.isfinite(s) else None for s in episode.scores]}
    for episode in found
    if episode.steps
  ]


def write_episodes(
  path: paths.Path, found: Sequence[Episode], when: str
) -> None:
  """JSON lines of `records`."""
  lines = (
    json.dumps(record, ensure_ascii=False) for record in records(found, when)
  )
  paths.write_text(path, ''.join(f'{line}\n' for line in lines))

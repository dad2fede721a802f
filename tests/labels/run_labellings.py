"""Runs label coroutines against a policy, or against nobody, in memory."""

import pytest

from prm_jax.inference.driver import CannotDo


def run(labellings, policy):
  """Runs all coroutines together, as the driver does.

  Returns:
    What each returned (or its CannotDo), and what each asked: a list of rounds,
    each a list of requests.
  """
  results = [None] * len(labellings)
  asked = [[] for _ in labellings]
  answers = dict.fromkeys(range(len(labellings)))
  while answers:
    waiting = []
    for i, answer in answers.items():
      try:
        asked[i].append(list(labellings[i].send(answer)))
        waiting.append(i)
      except StopIteration as stop:
        results[i] = stop.value
      except CannotDo as error:
        results[i] = error
    flat = [request for i in waiting for request in asked[i][-1]]
    said = iter(policy.complete(flat))
    answers = {i: [next(said) for _ in asked[i][-1]] for i in waiting}
  return results, asked


def count_samples(rounds):
  """The number of completions that a labelling asked for."""
  return sum(request.samples for each in rounds for request in each)


def result(labelling):
  """The labelled chain of a coroutine that asks nobody."""
  with pytest.raises(StopIteration) as end:
    next(labelling)
  return end.value.value

"""Runs label coroutines together against a policy, all in memory."""

from prm_jax.inference.driver import CannotDo


def run(labellings, policy):
  """What each coroutine returned (or the CannotDo), and what it asked.

  The requests of a labelling are a list of rounds, each a list of requests.
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


def rollouts(rounds):
  """How many completions a labelling asked for."""
  return sum(request.samples for each in rounds for request in each)

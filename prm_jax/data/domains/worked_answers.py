"""Errors planted in worked answers that somebody wrote, such as GSM8K's.

    right chains (reader 'gsm8k') -> equations.parse -> Solution
      -> planting.chain_with_errors -> chains with labels

Where the words domain compares many texts of a template to see where a number
comes from, one text is all there is here: a number that was a result before
is taken to repeat it, one that the question gives to be copied from there.
Where that is mistaken, a number after the error is false or true by accident:
labels are exact up to the first error, and not to be trusted after it.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.domains import corruptions, equations
from prm_jax.data.domains.planting import chain_with_errors


def answer_step(answer: str) -> str:
  """A last step that states the answer."""
  return f'The answer is {answer}.'


def plant_errors(
  chains: Sequence[Chain],
  seed: int,
  error_share: float = 0.5,
  repeat_share: float = 0.05,
) -> list[Chain]:
  """Chains with an error in about `error_share` of them, the others as right.

  A step that states the answer is added. Left out are answers without an
  equation, with one that does not hold as written, or whose equations do not
  give the answer; and, where an error is wanted, that offer no place for it.

  Args:
    chains: right ones, with their answers.
    seed: of everything; a chain depends on it and on its own index only.
  """
  planted = []
  for i, chain in enumerate(chains):
    steps = (*chain.steps, answer_step(chain.answer))
    solution = equations.parse(steps)
    if not solution.equations or not equations.consistent(solution):
      continue
    links = infer_links(equations.numbers(chain.problem), solution)
    if len(solution.values) - 1 not in links.source:
      continue
    made = chain_with_errors(
      chain.problem,
      solution,
      links,
      corruptions.KINDS,
      error_share,
      repeat_share,
      {**chain.meta, 'dataset': 'planted'},
      np.random.default_rng((seed, i)),
    )
    if made is not None:
      planted.append(made)
  return planted


def infer_links(
  given: Sequence, solution: equations.Solution
) -> corruptions.Links:
  """Where the numbers of one solution come from, by their values.

  Args:
    given: the numbers of the question.
  """
  results = {e.result: e for e in solution.equations}
  operands = {n for e in solution.equations for n in e.operands}
  source, copied = {}, set()
  for n, value in enumerate(solution.values):
    if n in results:
      continue
    # An operand can repeat an earlier result only; a number in the prose may
    # announce the result of its own step.
    same = [
      r
      for r, e in results.items()
      if solution.values[r] == value
      and (r < n if n in operands else e.step <= solution.places[n][0])
    ]
    if same:
      source[n] = same[-1]
    if same or value in given:
      copied.add(n)
  return corruptions.Links(source, frozenset(copied))

"""Plants errors in worked answers that people wrote, such as GSM8K's.

    right chains (reader 'gsm8k') -> equations.parse -> Solution
      -> planting.chain_with_errors -> chains with labels

The words domain compares many texts of a template to find out where a number
comes from. Here there is only one text: a number that equals an earlier result
is taken to repeat it, and a number that the question gives is taken to be
copied from there. If that is wrong, a number after the error may be false or
true by accident. So labels are exact up to the first error only.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.domains import corruptions, equations
from prm_jax.data.domains.planting import PlantingConfig, chain_with_errors


def answer_step(answer: str) -> str:
  """Returns a last step that states the answer."""
  return f'The answer is {answer}.'


def plant_errors(
  chains: Sequence[Chain],
  seed: int,
  error_share: float = 0.5,
  repeat_share: float = 0.05,
) -> list[Chain]:
  """Plants errors in about `error_share` of the chains.

  A step that states the answer is added to every chain. A chain is left out if
  its answer is below 0, if it is too long or too nested to be parsed, if it has
  no equation, if an equation does not hold as written, if the equations do not
  give the answer, or if an error is wanted and none can be planted.

  Args:
    seed: seed of all random choices. A result depends only on the seed, the
      chain and its index.
    repeat_share: probability that a chain without error repeats a step.

  Returns:
    Chains with labels, in the order of `chains`.
  """
  config = PlantingConfig(corruptions.KINDS, error_share, repeat_share)
  planted = []
  for i, chain in enumerate(chains):
    steps = (*chain.steps, answer_step(chain.answer))
    if '-' in chain.answer:  # a sign is no part of the number that is changed
      continue
    if not equations.can_be_parsed(steps, [chain.problem]):
      continue
    solution = equations.parse(steps)
    if not solution.equations or not equations.consistent(solution):
      continue
    links = infer_links(equations.numbers(chain.problem), solution)
    if len(solution.values) - 1 not in links.source:
      continue
    with_error = chain_with_errors(
      chain.problem,
      solution,
      links,
      config,
      {**chain.meta, 'dataset': 'planted'},
      np.random.default_rng((seed, i)),
    )
    if with_error is not None:
      planted.append(with_error)
  return planted


def infer_links(
  given: Sequence, solution: equations.Solution
) -> corruptions.Links:
  """Infers from their values where the numbers of a solution come from.

  Args:
    solution: the solution; it holds exactly.
  """
  results = {e.result: e for e in solution.equations}
  operands = {n for e in solution.equations for n in e.operands}
  source, copied = {}, set()
  for n, value in enumerate(solution.values):
    if n in results:
      continue
    # An operand can repeat earlier results only. A number outside equations
    # may also announce the result of its own step.
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

"""Plants an error in half of the right chains, so that labels are known.

    right chain -> data/domains/arithmetic_corruptions or planting
      -> a chain whose first error is known

This source needs no policy. Labels are 1 before the error and 0 at it. After
the error, all labels are 0 in the arithmetic domain, where each step uses the
result before it. In written text, a later step is 0 if it states anything false
and unknown if all that it states is true, because it may or may not depend on
the error (see `data/domains/worked_answers.py`).
"""

import dataclasses
from typing import Annotated

import numpy as np

from prm_jax.data.chains import VERIFIED, Chain, first_error
from prm_jax.data.domains import (
  arithmetic_corruptions,
  arithmetic_text,
  corruptions,
  equations,
  planting,
)
from prm_jax.data.domains.arithmetic_corruptions import KINDS
from prm_jax.data.domains.worked_answers import answer_step, infer_links
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.grading import truth_of
from prm_jax.inference.protocols import sample_seed
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, each, one_of, within


@dataclasses.dataclass(frozen=True)
class CorruptionConfig:
  """Says which errors are planted, and in how many chains.

  Attributes:
    kinds: kinds of errors, from KINDS. They are equally likely in a chain that
      has a place for each.
    right_share: probability that a chain is kept unchanged.
    seed: random seed. The error of a chain depends on it and the chain's id.
  """

  kinds: Annotated[tuple[str, ...], each(one_of(*KINDS))] = KINDS
  right_share: Annotated[float, within(0, 1)] = 0.5
  seed: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)
    if not self.kinds:
      checks.fail('kinds', (), f'expected one or more of {", ".join(KINDS)}')


def label(chain: Chain, config: CorruptionConfig) -> Labelling:
  """Plants an error in one right chain, or keeps it; yields nothing.

  Chains without a place for an error are rejected even if they would be kept:
  otherwise a PRM could tell right chains from having no such place.

  Returns:
    A chain with labels, whose answer and outcome follow from its steps. Its
    `meta` has `kind` ('right' or the kind of error), `error_steps` (a list with
    the index of the step with the error, empty if there is none) and `truth`.

  Raises:
    CannotDo: The chain is not right, or no error can be planted in it.
  """
  yield from ()
  if not chain.outcome:
    raise CannotDo('only right chains are corrupted: this one is not')
  if first_error(chain.labels) >= 0:
    raise CannotDo('the answer is right, but a step is labelled wrong')
  # A corrupted chain no longer states the right answer, which rollouts need.
  meta = {**chain.meta, 'truth': truth_of(chain)}
  chain = dataclasses.replace(chain, meta=meta)
  key = str(chain.meta.get('id', chain.problem))
  rng = np.random.default_rng(sample_seed(config.seed, key, 0))
  keep = rng.random() < config.right_share
  if arithmetic_text.is_problem(chain.problem):
    return _corrupt_arithmetic(chain, config, keep, rng)
  return _corrupt_text(chain, config, keep, rng)


def _corrupt_arithmetic(
  chain: Chain, config: CorruptionConfig, keep: bool, rng: np.random.Generator
) -> Chain:
  """Plants an error in a chain of the arithmetic domain, unless `keep`."""
  if chain.steps != arithmetic_corruptions.right_steps(chain.problem):
    raise CannotDo('the answer is right, but not all steps are')
  for kind in rng.permutation(config.kinds).tolist():
    planted = arithmetic_corruptions.plant(chain.problem, kind, rng)
    if planted is None:
      continue
    if keep:
      return _label_right(chain, chain.steps)
    wrong = len(planted.steps) - planted.error
    return dataclasses.replace(
      chain,
      steps=planted.steps,
      answer=planted.answer,
      outcome=False,
      labels=(VERIFIED[True],) * planted.error + (VERIFIED[False],) * wrong,
      meta={**chain.meta, 'kind': kind, 'error_steps': [planted.error]},
    )
  raise CannotDo('the chain offers no place for an error')


def _corrupt_text(
  chain: Chain, config: CorruptionConfig, keep: bool, rng: np.random.Generator
) -> Chain:
  """Plants an error in a chain of written sentences, unless `keep`."""
  solution, links = _parse_solution(chain)
  always = planting.PlantingConfig(config.kinds, 1.0, 0.0)
  made = planting.chain_with_errors(
    chain.problem, solution, links, always, chain.meta, rng
  )
  if made is None:
    raise CannotDo('the chain offers no place for an error')
  if keep:
    return _label_right(chain, tuple(''.join(step) for step in solution.steps))
  return made


def _parse_solution(
  chain: Chain,
) -> tuple[equations.Solution, corruptions.Links]:
  """Parses the equations of a chain and how they use each other's results.

  The last step of the solution states the answer and nothing else; it is added
  to a chain that ends otherwise.

  Raises:
    CannotDo: The chain is too long, its answer is not one positive number, or
      its equations are wrong or do not lead to the answer.
  """
  others = (chain.problem, chain.answer or '')
  if not equations.can_be_parsed(chain.steps, others):
    raise CannotDo('the chain is too long or too nested to be parsed')
  answer = tuple(equations.numbers(chain.answer or ''))
  if len(answer) != 1 or '-' in chain.answer:
    raise CannotDo('the answer of the chain is not one number above 0')
  for steps in (chain.steps, (*chain.steps, answer_step(chain.answer))):
    solution = equations.parse(steps)
    links = infer_links(equations.numbers(chain.problem), solution)
    repeated = len(solution.values) - 1 in links.source
    # Were there an equation in the last step, skipping it as a planted error
    # would remove the answer, too.
    alone = all(e.step < len(steps) - 1 for e in solution.equations)
    if alone and repeated and solution.values[-1:] == answer:
      if not equations.consistent(solution):
        raise CannotDo('one equation of the chain does not hold as written')
      return solution, links
  raise CannotDo('the equations of the chain do not give its answer')


def _label_right(chain: Chain, steps: tuple[str, ...]) -> Chain:
  """Returns the unchanged chain with every step labelled right."""
  return dataclasses.replace(
    chain,
    steps=steps,
    labels=(VERIFIED[True],) * len(steps),
    meta={**chain.meta, 'kind': 'right', 'error_steps': []},
  )

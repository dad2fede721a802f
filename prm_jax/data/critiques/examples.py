"""Makes what a critic learns from: questions, and critiques that are right.

chains with labels -> questions -> exact critiques, some with a mistake
  -> those whose verdict is the label's -> chains of a critic
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, first_error
from prm_jax.data.critiques.questions import plain_question, read_question
from prm_jax.data.critiques.styles import STYLES
from prm_jax.data.critiques.writing import write
from prm_jax.data.domains.draws import make_generator
from prm_jax.runtime import checks
from prm_jax.runtime.checks import one_of, within
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class CritiquesConfig:
  """Says whether chains are replaced by critiques of them, and by which.

  Attributes:
    style: one of `STYLES`; '' leaves the chains as they are.
    mistaken: share of critiques whose author works out one step wrongly, drawn
      at random from those asked about. A critique that ends before that step
      does not show it. Critiques that contradict the label are left out.
  """

  style: Annotated[str, one_of('', *STYLES)] = ''
  mistaken: Annotated[float, within(0, 1)] = 0.1

  def __post_init__(self) -> None:
    checks.check(self)


class Examples(NamedTuple):
  """Holds critiques, and how many were written to get them."""

  chains: list[Chain]
  written: int


def make_examples(
  chains: Sequence[Chain], config: CritiquesConfig, seed: int
) -> Examples:
  """Writes critiques of chains, and keeps those that agree with the labels.

  A style that judges the last step alone asks about every step up to the first
  wrong one. One that judges all steps asks about the whole chain and about one
  of its beginnings, drawn at random, because a growing chain is asked about
  before it ends. One that judges the answer asks about the whole chain.

  Raises:
    UserError: a chain lacks the labels or the outcome that the style judges, or
      its domain is not known.
  """
  kept, written = [], 0
  for number, chain in enumerate(chains):
    rng = make_generator(seed, number)
    for steps, truth in _asked(chain, config.style, rng):
      text = plain_question(config.style, chain.problem, steps)
      question = read_question(text)
      wrong = rng.random() < config.mistaken
      at = int(rng.integers(len(steps))) if wrong else -1
      lines = write(question, at, rng, chain.meta.get('solution', ()))
      verdict = question.style.first_wrong(lines, len(steps))
      written += 1
      if verdict == truth:
        name = f'{chain.meta.get("id", number)} {len(steps)}'
        kept.append(_to_chain(text, lines, truth, name))
  return Examples(kept, written)


def _asked(
  chain: Chain, name: str, rng: np.random.Generator
) -> Iterator[tuple[tuple[str, ...], int]]:
  """Yields the steps that are asked about, with the true verdict."""
  style, steps = STYLES[name], chain.steps
  if style.of_outcome:
    if chain.outcome is None:
      raise UserError(f'critiques.style={name!r} judges outcomes: {_LACKS}')
    yield steps, -1 if chain.outcome else len(steps) - 1
    return
  if not chain.labels or chain.labels[0].value is None:
    raise UserError(f'critiques.style={name!r} judges steps: {_LACKS}')
  wrong = first_error(chain.labels)
  if style.whole:
    yield steps, wrong
    if len(steps) > 1:
      length = int(rng.integers(1, len(steps)))
      yield steps[:length], wrong if wrong < length else -1
    return
  for last in range(len(steps) if wrong < 0 else wrong + 1):
    yield steps[: last + 1], last if last == wrong else -1


_LACKS = 'a chain has none; name chains that have them'


def _to_chain(
  question: str, lines: Sequence[str], truth: int, name: str
) -> Chain:
  return Chain(
    question,
    tuple(lines),
    answer=str(truth),
    outcome=True,
    meta={
      'id': f'{question} # {name}',
      'dataset': 'critiques',
      'problem_id': question,
      'truth': str(truth),
    },
  )

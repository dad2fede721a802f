r"""Asks a language model for the first wrong step of a chain, by majority vote.

    chain -> Question to a judge -> replies -> vote -> labels

Uses the critic format of ProcessBench (Zheng et al., 2024): the steps are
numbered paragraphs, and the reply ends with the number of the first wrong one
in \boxed{}, or -1 if all are right.
"""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.critiques.styles import last_index
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Question
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least

_QUESTION = r"""Check the solution of a math problem, step by step.

[Problem]
{problem}

[Solution]
{solution}

The solution is cut into numbered paragraphs, from <paragraph_0> to
<paragraph_{last}>. Go through them in order and say of each whether it follows
from the problem and from the paragraphs before it. Stop at the first paragraph
with a mistake in it. End with the number of that paragraph in \boxed{}: for
example \boxed{2} if paragraphs 0 and 1 are right and paragraph 2 is not. If no
paragraph has a mistake, end with \boxed{-1}."""


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
  """Says how a judge is asked.

  Attributes:
    samples: number of replies that vote on one chain.
  """

  samples: Annotated[int, at_least(1)] = 1

  def __post_init__(self) -> None:
    checks.check(self)


def label(chain: Chain, config: JudgeConfig) -> Labelling:
  """Labels a chain by the majority of a judge's replies.

  Steps are right before the first error, wrong at it and unknown after it.
  `meta['judge']` records the vote: `votes` by index, how many replies were
  `unparseable` and how many `failed` to arrive. Neither of these votes. If two
  indices tie for the most votes, the chain gets no label: a tie broken at
  random would look like a judgement.

  Raises:
    CannotDo: No reply names a step, or the vote is tied.
  """
  text = make_question(chain.problem, chain.steps)
  # Keyed by the text, which is all that a judge sees: equal chains are asked
  # about once.
  key = f'judge/{hashlib.sha256(text.encode()).hexdigest()[:16]}'
  [replies] = yield [Question(text, key, config.samples)]
  named = [
    last_index(reply.text, len(chain.steps))
    for reply in replies
    if reply is not None
  ]
  votes = collections.Counter(index for index in named if index is not None)
  unparseable = named.count(None)
  failed = len(replies) - len(named)
  if not votes:
    raise CannotDo(
      f'judge: no index in any of {len(replies)} replies: {unparseable} '
      f'unparseable, {failed} failed'
    )
  (first, most), *others = votes.most_common()
  if others and others[0][1] == most:
    shown = ', '.join(f'{n} for {i}' for i, n in sorted(votes.items()))
    raise CannotDo(f'judge: the vote is tied: {shown}')
  record = {
    'votes': {str(index): n for index, n in sorted(votes.items())},
    'unparseable': unparseable,
    'failed': failed,
  }
  return dataclasses.replace(
    chain,
    labels=labels_of(first, len(chain.steps)),
    meta={**chain.meta, 'judge': record},
  )


def make_question(problem: str, steps: Sequence[str]) -> str:
  """Writes the question to the judge, with the steps as paragraphs."""
  solution = '\n\n'.join(
    f'<paragraph_{i}>\n{step}\n</paragraph_{i}>' for i, step in enumerate(steps)
  )
  # str.format would trip over the braces in problems and steps.
  values = {
    'problem': problem,
    'solution': solution,
    'last': str(len(steps) - 1),
  }
  return re.sub(
    r'\{(problem|solution|last)\}', lambda match: values[match[1]], _QUESTION
  )


def labels_of(first: int, steps: int) -> tuple[StepLabel, ...]:
  """Labels a chain by the index of its first wrong step; -1 if none is."""
  right = steps if first < 0 else first
  values = [1.0] * right + [0.0] * (first >= 0)
  values += [None] * (steps - len(values))
  return tuple(StepLabel(value, 'judge') for value in values)

r"""An LLM names the first wrong step, and a vote decides.

The critic form of ProcessBench (Zheng et al., 2024): the steps are numbered
paragraphs, the reply ends with the number of the first wrong one in \boxed{},
-1 where there is none.
"""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Sequence

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Question
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime.errors import UserError

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
_BOX = re.compile(r'\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}')
# Also as \text{paragraph_2}, or with the minus sign of typesetters.
_INDEX = re.compile(
  r'(?:\\text\s*\{)?\s*<?(?:paragraph)?[ _\\]*([-\u2212]?[0-9]{1,6})>?\}?\.?',
  re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
  """How a judge is asked.

  Attributes:
    samples: replies that vote on one chain.
  """

  samples: int = 1

  def __post_init__(self) -> None:
    if self.samples < 1:
      raise UserError(f'judge.samples={self.samples}: expected >= 1')


def label(chain: Chain, config: JudgeConfig) -> Labelling:
  """Labels a chain by the majority of a judge's replies.

  Right before the first error, wrong at it, unknown after it. The vote stands
  in `meta['judge']`: `votes` by index, how many replies were `unparseable` and
  how many `failed` to come. Neither votes. A tie between two indices is no
  majority: a coin's label would be taken for a judge's.

  Raises:
    CannotDo: no reply could be read, or the vote is tied.
  """
  text = question(chain.problem, chain.steps)
  # Equal chains are one request: their text is all that a judge sees.
  key = f'judge/{hashlib.sha256(text.encode()).hexdigest()[:16]}'
  [replies] = yield [Question(text, key, config.samples)]
  said = [
    parse(reply.text, len(chain.steps))
    for reply in replies
    if reply is not None
  ]
  votes = collections.Counter(index for index in said if index is not None)
  unparseable = said.count(None)
  failed = len(replies) - len(said)
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


def question(problem: str, steps: Sequence[str]) -> str:
  """What the judge is asked."""
  solution = '\n\n'.join(
    f'<paragraph_{i}>\n{step}\n</paragraph_{i}>' for i, step in enumerate(steps)
  )
  # Not str.format: problems and steps are full of braces.
  values = {
    'problem': problem,
    'solution': solution,
    'last': str(len(steps) - 1),
  }
  return re.sub(
    r'\{(problem|solution|last)\}', lambda match: values[match[1]], _QUESTION
  )


def parse(text: str, steps: int) -> int | None:
  r"""The index in the last \boxed{} of a reply.

  Returns:
    -1 to steps - 1; None where there is no box, or something else in it.
  """
  boxes = _BOX.findall(text)
  match = _INDEX.fullmatch(boxes[-1].strip()) if boxes else None
  if not match:
    return None
  index = int(match[1].replace('\u2212', '-'))
  return index if -1 <= index < steps else None


def labels_of(first: int, steps: int) -> tuple[StepLabel, ...]:
  """Labels of a chain whose first wrong step is known; -1: none is wrong."""
  right = steps if first < 0 else first
  values = [1.0] * right + [0.0] * (first >= 0)
  values += [None] * (steps - len(values))
  return tuple(StepLabel(value, 'judge') for value in values)

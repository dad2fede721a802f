r"""Compares final answers that are equal, or different, by construction.

Besides the verdict of each pair: the order of two answers does not matter, an
answer equals each of its spellings (blanks, \left, \dfrac, \text, boxes,
trailing points), every two of them are equal, and no pair takes more than a
second of this process and of math-verify's.

Left out is what is a convention and no mathematics: a unit on one side only,
conversions of units and bases (1 km and 1000 m), ratios that are not in lowest
terms, a percentage against a third number (50% equals both 1/2 and 50), a value
with a name against one without, and a space as thousands separator.
"""

import itertools
import os
import pathlib
import time

import numpy as np

from prm_jax.data.verify import answers, symbolic
from tests.campaigns.answer_algebra import SYMBOLIC
from tests.campaigns.answer_forms import FLAT, pick
from tests.campaigns.answer_parts import PARTS
from tests.campaigns.campaign import Campaign, run

FORMS = 8  # a case tries so many answers
SYMBOLIC_SHARE = 0.12  # these take a hundred times as long as others
CPU_SECONDS = 1.0
WALL_SECONDS = 60.0  # the clock of a busy machine proves nothing
_TICKS = os.sysconf('SC_CLK_TCK')


def dress(rng: np.random.Generator, form: str) -> str:
  r"""Respells a text without changing what it says: \left, blanks, boxes."""
  if rng.random() < 0.4:
    form = form.replace(r'\frac', pick(rng, (r'\dfrac', r'\tfrac')))
  # A comma with a blank behind it separates items, and no thousands.
  if rng.random() < 0.4 and form[:1] in ('(', '['):
    form = form.replace(', ', pick(rng, (r',\ ', r',\,', ',  ')))
  if rng.random() < 0.4 and form[:1] in ('(', '[') and form[-1:] in (')', ']'):
    form = rf'\left{form[:-1]}\right{form[-1]}'
  shapes = ['{}', '{}', ' {} ', '{}.', r'\boxed{{{}}}', r'$\boxed{{{}}}$.']
  shapes += [r'The answer is \boxed{{{}}}', r'\boxed {{ {} }}']
  if '$' not in form.replace(r'\$', '') and '**' not in form:
    shapes += ['${}$', r'\({}\)', r'\[ {} \]', '$${}$$', '${}$.']
  return pick(rng, shapes).format(form)


def child_seconds() -> float:
  """Returns the CPU time of math-verify's process so far; 0 before it runs."""
  child = symbolic.WORKER._process
  if child is None:
    return 0.0
  stat = pathlib.Path(f'/proc/{child.pid}/stat').read_text()
  return sum(map(int, stat.rpartition(')')[2].split()[11:13])) / _TICKS


def verdict(one: str, other: str) -> bool:
  """Compares two answers in both orders, each within CPU_SECONDS."""
  found = []
  for a, b in ((one, other), (other, one)):
    start = time.process_time() + child_seconds()
    found.append(answers.compare(a, b, WALL_SECONDS))
    used = time.process_time() + child_seconds() - start
    assert used <= CPU_SECONDS, f'{a!r} and {b!r} took {used:.2f} s'
  assert found[0] == found[1], f'{one!r} and {other!r}: {found}'
  return found[0].equal


def case(rng: np.random.Generator) -> int:
  """Tries FORMS answers; returns the number of pairs."""
  # The start of math-verify's process is no part of a verdict.
  symbolic.WORKER.equal('x', 'y', WALL_SECONDS)
  pairs = 0
  for _ in range(FORMS):
    kinds = SYMBOLIC if rng.random() < SYMBOLIC_SHARE else (*FLAT, *PARTS)
    kind = pick(rng, kinds)
    form = kind(rng)
    same = [dress(rng, pick(rng, form.same)) for _ in range(3)]
    other = [dress(rng, pick(rng, form.other)) for _ in range(2)]
    for a, b in itertools.combinations(same, 2):
      assert verdict(a, b), f'{kind.__name__}: {a!r} is {b!r}'
    for a, b in zip(same, other, strict=False):
      assert not verdict(a, b), f'{kind.__name__}: {a!r} is not {b!r}'
    pairs += 5
  return pairs


CAMPAIGN = Campaign(
  'answers', 'pairs of final answers, equal or not', 100_000, case
)
if __name__ == '__main__':
  run(CAMPAIGN)

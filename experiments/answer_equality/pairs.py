"""Pairs of answers that are equal or different by construction.

Each starts from the final answer of a MATH problem. Equal pairs have one or two
respellings, which keep the meaning (`respellings.py`). Different pairs have one
change, which alters it (`changes.py`), and perhaps a respelling; or they have
the answer of another problem, where both are numbers, words or points and
differ. No judge takes part in making them.
"""

import json
import pathlib
import random
import re
from collections import Counter
from typing import NamedTuple

from experiments.answer_equality.changes import DIFFERENT
from experiments.answer_equality.number_forms import value_of
from experiments.answer_equality.respellings import EQUAL

ANOTHER = "another problem's answer"
# These frames fit any text, so only they may follow another respelling.
FRAMES = ('in $, \\( or \\[', 'boxed', 'a full stop, bold or spaces')


class Pair(NamedTuple):
  """Two texts, whether they are equal, and how the second was made."""

  answer: str
  truth: str
  equal: bool
  kind: str


def read_answers(folder: pathlib.Path) -> list[str]:
  """Reads the different final answers of MATH's train and test problems."""
  rows = json.loads((folder / 'train_7500_problem_answer.json').read_text())
  found = [row['final_answer'] for row in rows]
  for line in (folder / 'test_5000.jsonl').read_text().splitlines():
    found.append(boxed(json.loads(line)['solution']))
  found = [' '.join(answer.split()) for answer in found]
  return sorted({answer for answer in found if answer})


def boxed(solution: str) -> str:
  """Returns the content of the last box of a solution; '' for none."""
  start = solution.rfind('\\boxed{') + len('\\boxed{')
  depth = 1
  for k in range(start, len(solution)):
    depth += (solution[k] == '{') - (solution[k] == '}')
    if not depth:
      return solution[start:k]
  return ''


def make_pairs(answers: list[str], count: int, seed: int) -> list[Pair]:
  """Makes pairs, about half of them equal, each kind about equally often.

  Args:
    answers: LaTeX, each answer once. Most problems of MATH have a small whole
      number for an answer, which would otherwise crowd out the others.
    count: number of pairs.
    seed: seed of all choices.
  """
  rng = random.Random(seed)
  made, kinds = [], Counter()
  order = list(answers)
  while len(made) < count:
    rng.shuffle(order)
    for truth in order:
      for equal in (True, False):
        pair = one_pair(truth, equal, answers, kinds, rng)
        if pair and pair not in made[-len(order) :]:
          made.append(pair)
          kinds[pair.kind, equal] += 1
  return made[:count]


def one_pair(
  truth: str,
  equal: bool,
  answers: list[str],
  kinds: Counter,
  rng: random.Random,
) -> Pair | None:
  """Makes a pair of the kind with the fewest pairs so far; None for none.

  Args:
    kinds: numbers of pairs so far, by kind and by whether they are equal.
  """
  ways = EQUAL if equal else DIFFERENT
  found = {name: way(truth, rng) for name, way in ways.items()}
  if not equal:
    found[ANOTHER] = another(truth, answers, rng)
  found = {name: text for name, text in found.items() if text}
  found = {name: text for name, text in found.items() if text != truth}
  if not found:
    return None
  kind = min(found, key=lambda name: (kinds[name, equal], rng.random()))
  text = found[kind]
  if kind not in FRAMES and rng.random() < 0.3:
    text = EQUAL[rng.choice(FRAMES)](text, rng)
  return Pair(text, truth, equal, kind)


def another(truth: str, answers: list[str], rng: random.Random) -> str | None:
  """Returns another problem's answer that surely differs; None for none."""
  other = rng.choice(answers)
  values = value_of(truth), value_of(other)
  if None not in values:
    return other if values[0] != values[1] else None
  word = r'\\text\{[A-Za-z]{3,}\}'
  if all(re.fullmatch(word, x) for x in (truth, other)):
    return other if truth.lower() != other.lower() else None
  point = r'(?:\\left)?\(\s*-?\d+(?:,\s*-?\d+)*\s*(?:\\right)?\)'
  if all(re.fullmatch(point, x) for x in (truth, other)):
    one, two = (re.findall(r'-?\d+', x) for x in (truth, other))
    return other if one != two else None
  # One of them is a number, the other one has a variable or is a point.
  algebra = r'[-+\dx^{} ]*x[-+\dx^{} ]*'
  if any(v is not None for v in values):
    text = other if values[0] is not None else truth
    return (
      other
      if re.fullmatch(algebra, text) or re.fullmatch(point, text)
      else None
    )
  return None

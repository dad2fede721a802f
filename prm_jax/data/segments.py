"""Splits steps into smaller ones: a chain's own lines, or its sentences.

A PRM judges steps like those it learned from. Where the chains that it meets
have longer ones, such as whole answers in one paragraph, splitting both alike
makes them comparable. A split step is as good as the worst of its pieces.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np

from prm_jax.data.chains import Chain, StepLabel, evenly_spaced

_ENOUGH = 1000  # chains, to see how long steps are
UNLIKE = 2.0  # times as many steps, or as long ones, are worth a warning
# What ends a sentence, with what may close it, and where the next one begins.
_END = re.compile(
  r'(?<=\S)[.!?]["\')\]]*\s+(?!\\[\])])(?=["\'(\[$\\]*[A-Z0-9\\$(])'
)
# Words before a full stop that is part of them, in lower case.
_ABBREVIATIONS = {
  *('mr', 'mrs', 'ms', 'dr', 'prof', 'st', 'vs', 'etc', 'e.g', 'i.e', 'cf'),
  *('no', 'nos', 'fig', 'eq', 'eqs', 'approx', 'resp'),
}


_LOOK_BACK = 40  # characters: no abbreviation or numbering is longer


def _lines(text: str) -> list[str]:
  return re.split(r'[\r\n]+', text)


def _sentences(text: str) -> list[str]:
  found, start = [], 0
  for end in _END.finditer(text):
    before = text[max(start, end.start() - _LOOK_BACK) : end.start()]
    word = before.split()[-1].lstrip('("\'[').lower() if before.split() else ''
    # '1. First' and 'Mr. Smith' go on; so does an initial, as in 'J. Doe'.
    numbering = before.strip().isdigit()
    initial = len(word) == 1 and word.isalpha() and before.strip()[-1].isupper()
    dotted = re.fullmatch(r'[a-z](\.[a-z])+', word)  # as in 'U.S. dollars'
    if numbering or initial or dotted or word in _ABBREVIATIONS:
      continue
    found.append(text[start : end.end()])
    start = end.end()
  return [*found, text[start:]]


SEGMENTS: dict[str, Callable[[str], list[str]]] = {
  'given': lambda text: [text],
  'lines': _lines,
  'sentences': lambda text: [
    sentence for line in _lines(text) for sentence in _sentences(line)
  ],
}


def split_step(text: str, how: str) -> tuple[str, ...]:
  """Returns the pieces of a step, without white space around them; never none.

  Args:
    how: a key of SEGMENTS.
  """
  pieces = (piece.strip() for piece in SEGMENTS[how](text))
  return tuple(piece for piece in pieces if piece) or (text,)


def split_chain(chain: Chain, how: str) -> Chain:
  """Returns the chain with its steps split.

  All pieces of a right step are right. The last piece of any other step (wrong,
  neutral, or labelled with a rate) gets the step's label; its other pieces are
  unknown, because the error may be in any of them.
  """
  if how == 'given':
    return chain
  pieces = [split_step(step, how) for step in chain.steps]
  if all(len(each) == 1 for each in pieces):
    return chain
  labels: list[StepLabel] = []
  for label, each in zip(chain.labels, pieces, strict=bool(chain.labels)):
    known = 1.0 if label.value == 1 and not label.neutral else None
    first = StepLabel(known, source=label.source)
    labels += [first] * (len(each) - 1) + [label]
  steps = tuple(piece for each in pieces for piece in each)
  return dataclasses.replace(chain, steps=steps, labels=tuple(labels))


def unlike(learned: Sequence[Chain], others: Sequence[Chain], how: str) -> str:
  """Says how the steps of chains differ from those of others; '' if little.

  Args:
    learned: chains that a model learns from, already split.
    others: chains that it is to judge, as they are given.
    how: how to split `others`.
  """
  if not learned or not others:
    return ''
  split = [split_chain(chain, how) for chain in evenly_spaced(others, _ENOUGH)]
  ours, theirs = _style(evenly_spaced(learned, _ENOUGH)), _style(split)
  ratios = (np.array(theirs) + 1e-9) / (np.array(ours) + 1e-9)
  if (ratios < UNLIKE).all() and (ratios > 1 / UNLIKE).all():
    return ''
  return (
    f'a median of {theirs[0]:.0f} steps, of {theirs[1]:.0f} characters, where '
    f'the chains learned from have {ours[0]:.0f}, of {ours[1]:.0f}'
  )


def _style(chains: Sequence[Chain]) -> tuple[float, float]:
  """Returns the median number of steps, and of characters of a step."""
  lengths = [len(step) for chain in chains for step in chain.steps]
  steps = [len(chain.steps) for chain in chains]
  return float(np.median(steps)), float(np.median(lengths))


def score_pieces(
  score: Callable[[Sequence[Chain]], list[np.ndarray]],
  how: str,
  last: bool = False,
) -> Callable[[Sequence[Chain]], list[np.ndarray]]:
  """Wraps a scoring function so that it scores the pieces of each step.

  Args:
    score: returns the scores of the R steps of each chain that were read.
    last: whether a step takes its last piece's score, for outcome models, which
      learned nothing of the others; if not, it takes the lowest.

  Returns:
    A function that returns the scores of each chain, [R] for the R steps of
    which all pieces were read.
  """

  def of_steps(chains: Sequence[Chain]) -> list[np.ndarray]:
    bare = [dataclasses.replace(chain, labels=()) for chain in chains]
    found = score([split_chain(chain, how) for chain in bare])
    lowest = []
    for chain, scores in zip(chains, found, strict=True):
      sizes = [len(split_step(step, how)) for step in chain.steps]
      stops = np.cumsum(sizes)
      stops = stops[stops <= len(scores)]
      parts = np.split(scores[: stops[-1]], stops[:-1]) if len(stops) else []
      values = [part[-1] if last else part.min() for part in parts]
      lowest.append(np.array(values, scores.dtype))
    return lowest

  return score if how == 'given' else of_steps

"""Compares step scores: of whole chains, of candidates, of growing chains.

Also asks whether a program that runs twice gives the same bits.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, reference, subjects
from experiments.accelerator.right_programs import (
  HEAD,
  ROWS,
  gradients,
  make_batch,
  make_weights,
  typed,
)
from prm_jax.data.encoding import make_format
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import TransformerConfig

FORMAT = make_format('bytes', 512)
WORDS = ('so', '12 + 7', '= 19', 'and half', 'of 40', 'is 20', 'we add 3')


def make_chains(lengths: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
  """Makes chains of random words; a step has at least so many bytes."""
  rng = np.random.default_rng(0)

  def step(length: int) -> str:
    text = ''
    while len(text) < length:
      text += f'{rng.choice(WORDS)} '
    return text.strip()

  return [tuple(map(step, chain)) for chain in lengths]


PROBLEM = 'What is 12 plus 7, and half of 40?'
# Rows of 256 bytes or more, which attend block by block, and short steps.
CHAINS = make_chains([(60, 90, 50), (80, 120), (30, 60, 70, 40), (150, 20)])


@functools.cache
def make_scorer(setting: Setting, model: TransformerConfig) -> Scorer:
  """Makes a scorer; its programs are compiled once for all cases."""
  return Scorer(
    setting.put(make_weights(model)),
    typed(model, setting),
    HEAD,
    FORMAT,
    setting.mesh,
  )


def scores(setting: Setting, model: TransformerConfig) -> list[np.ndarray]:
  """Scores whole chains."""
  with setting.use():
    scorer = make_scorer(setting, model)
    return scorer.score_many([(PROBLEM, steps) for steps in CHAINS])


def shared_scores(
  setting: Setting, model: TransformerConfig
) -> list[np.ndarray]:
  """Scores candidates that share the prompt's keys and values."""
  with setting.use():
    return make_scorer(setting, model).best_of_n(PROBLEM, CHAINS)[2]


def compare_scoring(model: TransformerConfig) -> dict[str, Any]:
  """Compares step scores: chains that are read whole, and best of N."""
  made = []
  for name, function in (('whole', scores), ('best of N', shared_scores)):
    expected = np.concatenate(function(reference(), model))
    made += [
      checks.check(
        f'step scores, {name}, {s.name}',
        checks.furthest(np.concatenate(function(s, model)), expected),
        checks.PROBABILITIES[s.rounding],
      )
      for s in subjects()
    ]
  return checks.found(made)


# Two chains with the same first step.
GROWING = [CHAINS[0], (CHAINS[0][0], *CHAINS[2][1:3])]


def growing_scores(setting: Setting, model: TransformerConfig) -> np.ndarray:
  """Scores chains as they grow, each time after what is cached of them."""
  with setting.use():
    scorer = TreeScorer(make_scorer(setting, model), rows=4)
    for length in (1, 3):  # a step, then two together
      answers = scorer.score(
        [Scoring(PROBLEM, chain[:length]) for chain in GROWING]
      )
  return np.concatenate([answer[0].scores for answer in answers])


def compare_growing(model: TransformerConfig) -> dict[str, Any]:
  """Compares scores of growing chains with those of whole ones on the CPU."""
  cpu = reference()
  with cpu.use():
    expected = make_scorer(cpu, model).score_many(
      [(PROBLEM, chain) for chain in GROWING]
    )
  return checks.found(
    [
      checks.check(
        f'step scores, {s.name}',
        checks.furthest(growing_scores(s, model), np.concatenate(expected)),
        checks.PROBABILITIES[s.rounding],
      )
      for s in subjects()
    ]
  )


def compare_twice(model: TransformerConfig, length: int) -> dict[str, Any]:
  """Runs a gradient and a scoring twice, and counts arrays that differ."""
  batch = make_batch(model.vocab_size, ROWS, length)
  return checks.found(
    [
      checks.check(
        f'arrays of {what} that differ, {s.name}',
        checks.other_bits(run(s), run(s)),
        0.0,
      )
      for s in subjects()
      for what, run in (
        ('a gradient', lambda s: gradients(s, model, batch)),
        ('scores', lambda s: scores(s, model)),
      )
    ]
  )

"""The claims of prm_vs_orm."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found, baseline, judge, lead
from prm_jax.evals.suite import NULL

# Votes over all chains help if they gain this much over a single chain.
WORTH = 0.02


def at(document: Mapping[str, Any], method: str, k: int = -1) -> list[float]:
  """Returns a method's accuracy at the k-th N, for each seed."""
  runs = [run['best_of_n'] for run in document['results'].values()]
  return [curves[method]['mean'][k] for curves in runs]


def null_intervals(
  document: Mapping[str, Any], method: str
) -> list[list[float]]:
  """Returns the interval of a method's lead over the null, at the last N."""
  runs = [run['best_of_n'] for run in document['results'].values()]
  return [curves[method]['over_null']['ci95'][-1] for curves in runs]


def steps_beat_answers(document: Mapping[str, Any]) -> Found:
  """Compares PRM and ORM at the largest N."""
  prm, orm, null = (at(document, it) for it in ('prm_min', 'orm', NULL))
  return judge([lead(prm, orm)], baseline('random per text', null))


def beats_null(method: str) -> Finder:
  """Makes a finder of whether a method beats the null at the largest N."""

  def find(document: Mapping[str, Any]) -> Found:
    null = at(document, NULL)
    paired = null_intervals(document, method)
    return judge(
      [lead(at(document, method), null, '', paired)],
      baseline('random per text', null),
    )

  return find


def votes_do_not_help(document: Mapping[str, Any]) -> Found:
  """Compares the majority vote of the largest N with a single chain."""
  one, many = (at(document, 'majority', k) for k in (0, -1))
  region = (-math.inf, WORTH)
  return judge([lead(many, one)], baseline('a single chain', one), region)


CLAIMS = (
  Claim(
    'Best of 64 by a PRM is right more often than best of 64 by an ORM',
    '78.2 to 72.4, MATH, best of 1,860 (Lightman et al., 2023)',
    steps_beat_answers,
  ),
  Claim(
    'Best of 64 by an ORM is right more often than by a random score of each '
    'text',
    'none',
    beats_null('orm'),
  ),
  Claim(
    'Where errors are systematic, a vote over 64 chains gains less than '
    f'{100 * WORTH:.0f} points over a single chain',
    'none; the design of the domain',
    votes_do_not_help,
  ),
)

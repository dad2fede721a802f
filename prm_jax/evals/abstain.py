"""Decides which answers of a search are given, by a threshold on their score.

    held-out chains -> selective.choose -> a filter
    tested chains   -> answered or not, error rates, the weakest step

`prm_jax.abstain` is the command; `selective.py` explains the guarantee.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.evals import proportions, selective
from prm_jax.evals.search import correctness, search_meta
from prm_jax.runtime.errors import UserError


def abstain_section(
  held_out: Sequence[Chain],
  tested: Sequence[Chain],
  wanted_error: float,
  confidence: float = selective.CONFIDENCE,
  seed: int = 0,
  failed: int = 0,
) -> dict[str, Any]:
  """Chooses a filter on held-out problems and applies it to the tested ones.

  Args:
    held_out: the chosen chain of each problem of one search. Of equal problem
      texts the first counts: one that was searched twice is no more evidence.
    tested: the chosen chain of each problem of another search.
    wanted_error: largest error rate among the answers, in (0, 1).
    confidence: probability that the filter keeps to it, in (0, 1).
    seed: seed of the split of the held-out problems.
    failed: number of tested problems whose search failed. They are not
      answered, and count as wrong without a filter. Held-out problems that
      failed need no count, as they are answered at no threshold.

  Returns:
    A dict with:
    - `wanted_error`, `confidence` and the Filter's attributes;
    - `probability`: the calibrated probability at the threshold;
    - `tested`: the number of `problems`, of `answered` ones and of their
      `errors`, the `error` rate with its exact 95% interval, and
      `error_of_all`, the error rate without a filter;
    - `risk_coverage`: the curve over the tested problems. This and the error
      rates are missing or None if some right answers are unknown;
    - `problems`: for each tested problem that did not fail whether it is
      `answered`, its answer and score, the calibrated probability that the
      answer is right, and its weakest step.

  Raises:
    UserError: The right answer of a held-out problem is unknown, a problem is
      in both searches, or `selective.choose` rejects the input.
  """
  once = {chain.problem: chain for chain in reversed(held_out)}
  held_out = list(reversed(once.values()))
  known = [correctness(chain) for chain in held_out]
  if None in known:
    raise UserError(
      f'held-out problem {_id(held_out[known.index(None)])!r} has no right '
      'answer: a filter is chosen where right and wrong are known'
    )
  # Compared by text, because ids may coincide between files.
  if both := {c.problem for c in held_out} & {c.problem for c in tested}:
    raise UserError(
      f'{len(both)} problems are held out and tested, such as '
      f'{min(both)[:60]!r}: search two splits'
    )
  scores = np.array([_score(chain) for chain in held_out])
  fitted = selective.choose(
    scores, np.array(known, bool), wanted_error, confidence, seed
  )
  tested_scores = np.array([_score(chain) for chain in tested])
  lowest = np.inf if fitted.threshold is None else fitted.threshold
  answered = tested_scores >= lowest
  # Problems without a score get 0 here, and no probability in `_decision`.
  likely = selective.probabilities(
    np.where(np.isfinite(tested_scores), tested_scores, 0.0), fitted
  )
  right = [correctness(chain) for chain in tested]
  about: dict[str, Any] = {
    'problems': len(tested) + failed,
    'answered': int(answered.sum()),
  }
  curve = None
  if tested and None not in right:
    about |= _errors(~np.array(right, bool)[answered])
    every = np.array([*right, *(0.0 for _ in range(failed))], bool)
    about['error_of_all'] = float(1 - every.mean())
    scores = np.concatenate([tested_scores, np.full(failed, -np.inf)])
    curve = selective.risk_coverage(scores, every)
  at = None
  if fitted.threshold is not None:
    at = float(selective.probabilities(np.array([lowest]), fitted)[0])
  return {
    'wanted_error': wanted_error,
    'confidence': confidence,
    **fitted._asdict(),
    'probability': at,
    'tested': about,
    'risk_coverage': curve,
    'problems': [
      _decision(chain, bool(yes), float(p))
      for chain, yes, p in zip(tested, answered, likely, strict=True)
    ],
  }


def weakest_step(chain: Chain) -> dict[str, Any] | None:
  """Returns number (from 1), text and score of the lowest-scoring step.

  Among equals it is the first. The result is None if no step has a score.
  """
  scores = search_meta(chain)['scores']
  known = [(score, i) for i, score in enumerate(scores) if score is not None]
  if not known:
    return None
  score, i = min(known)
  return {'number': i + 1, 'text': chain.steps[i], 'score': score}


def _errors(wrong: np.ndarray) -> dict[str, Any]:
  """Returns the errors among answered problems with an exact interval."""
  if not len(wrong):
    return {'errors': 0, 'error': None, 'ci95': None}
  errors = int(wrong.sum())
  return {
    'errors': errors,
    'error': float(wrong.mean()),
    'ci95': proportions.interval95(errors, len(wrong)),
  }


def _decision(chain: Chain, answered: bool, probability: float) -> dict:
  """Returns the entry of one tested problem."""
  score = _score(chain)
  has = bool(np.isfinite(score))
  return {
    'id': _id(chain),
    'answered': answered,
    'answer': chain.answer,
    'outcome': chain.outcome,
    'chain_score': score if has else None,
    'probability': probability if has else None,
    'weakest_step': weakest_step(chain),
  }


def _id(chain: Chain) -> str:
  return str(chain.meta['problem_id'])


def _score(chain: Chain) -> float:
  """Returns the chain score; -inf without an answer or without a score."""
  about = search_meta(chain)
  if not about['ended'] or chain.answer is None:
    return -np.inf
  return -np.inf if about['chain_score'] is None else about['chain_score']

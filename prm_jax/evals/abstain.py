"""Answer or abstain: the PRM as a filter over the chains that searches chose.

    held-out chains -> selective.choose -> a filter
    tested chains   -> answered, or not; what it was worth; the weakest step

`prm_jax.abstain` is the command; `selective.py` says what is guaranteed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from prm_jax.data.chains import Chain
from prm_jax.evals import selective
from prm_jax.evals.search import rightness, searched
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
    held_out: the chosen chain of each problem of a search.
    tested: the same of another.
    seed: of the split of the held-out problems.
    failed: tested problems of which nothing came: not answered, and wrong where
      all are answered. A held-out one would be answered at no threshold.

  Returns:
    `wanted_error`, `confidence`, the Filter's attributes; `probability`, the
    calibrated one at the threshold; `tested`: `problems`, `answered`, their
    `errors` and `error` with its exact 95% interval, `error_of_all`, without a
    filter; `risk_coverage` over the tested problems. What needs right answers
    is None where some are not known. `problems`: for each tested one that
    did not fail whether it is `answered`, its answer and score, the calibrated
    probability that it is right, and its weakest step.

  Raises:
    UserError: a held-out problem's right answer is not known, a problem is in
      both, or what `choose` refuses.
  """
  known = [rightness(chain) for chain in held_out]
  if None in known:
    raise UserError(
      f'held-out problem {_id(held_out[known.index(None)])!r} has no right '
      'answer: a filter is chosen where right and wrong are known'
    )
  # By their text: two files may number theirs alike.
  if both := {c.problem for c in held_out} & {c.problem for c in tested}:
    raise UserError(
      f'{len(both)} problems are held out and tested, such as '
      f'{min(both)[:60]!r}: search two splits'
    )
  scores = np.array([_score(chain) for chain in held_out])
  fitted = selective.choose(
    scores, np.array(known, bool), wanted_error, confidence, seed
  )
  shown = np.array([_score(chain) for chain in tested])
  lowest = np.inf if fitted.threshold is None else fitted.threshold
  answered = shown >= lowest
  # What has no answer has no probability either.
  likely = selective.probabilities(
    np.where(np.isfinite(shown), shown, 0.0), fitted
  )
  right = [rightness(chain) for chain in tested]
  about: dict[str, Any] = {
    'problems': len(tested) + failed,
    'answered': int(answered.sum()),
  }
  curve = None
  if tested and None not in right:
    about |= _errors(~np.array(right, bool)[answered])
    every = np.array([*right, *(0.0 for _ in range(failed))], bool)
    about['error_of_all'] = float(1 - every.mean())
    scores = np.concatenate([shown, np.full(failed, -np.inf)])
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
  """Number (from 1), text and score of the step that scores lowest.

  The first of equals; None where no step has a score.
  """
  scores = searched(chain)['scores']
  known = [(score, i) for i, score in enumerate(scores) if score is not None]
  if not known:
    return None
  score, i = min(known)
  return {'number': i + 1, 'text': chain.steps[i], 'score': score}


def _errors(wrong: np.ndarray) -> dict[str, Any]:
  if not len(wrong):
    return {'errors': 0, 'error': None, 'ci95': None}
  exact = stats.binomtest(int(wrong.sum()), len(wrong)).proportion_ci()
  return {
    'errors': int(wrong.sum()),
    'error': float(wrong.mean()),
    'ci95': [float(exact.low), float(exact.high)],
  }


def _decision(chain: Chain, answered: bool, probability: float) -> dict:
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
  """The chain score; -inf where there is no answer, or none that was scored."""
  about = searched(chain)
  if not about['ended'] or chain.answer is None:
    return -np.inf
  return -np.inf if about['chain_score'] is None else about['chain_score']

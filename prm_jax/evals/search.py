"""Evaluates a search by the accuracy and cost of the chains that it chose.

Takes the chosen chain of each problem of a search job, with `meta['search']` as
`search/results.py` writes it. A problem whose search failed counts as wrong,
because leaving it out would reward giving up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.evals import bootstrap, proportions
from prm_jax.runtime.errors import UserError

# Fields of the ledger in the order of the report; `flops` is the sum of both.
COSTS = (
  'samples',
  'rounds',
  'tokens',
  'prompt_tokens',
  'scored_tokens',
  'policy_flops',
  'prm_flops',
  'flops',
  'seconds',
)


def search_section(
  chosen: Sequence[Chain],
  failed: Sequence[str] = (),
  seed: int = 0,
  resamples: int = 2000,
) -> dict[str, Any]:
  """Computes the section `search` of results.json.

  Args:
    chosen: the chosen chain of each problem whose search did not fail, with its
      ledger in `meta['search']`.
    failed: for each other problem the reason why its search failed.

  Returns:
    A dict with:
    - `problems`, `failed`, `answers_known`: numbers of problems;
    - `accuracy`: mean and exact interval over the problems, None if no right
      answer is known;
    - `ended`: share of all problems whose chosen chain came to its end;
    - `cost`: mean and interval per problem that did not fail, by COSTS. FLOPs
      of 0 mean that the model does not count them; `flops`, the sum over all
      models that are asked, is there only if all count theirs;
    - `dead`: number of chains given up, by reason;
    - `saved_tokens`: estimate of the tokens that chains rejected early would
      still have written;
    - `lost`: number of completions that failed;
    - `stopped`: number of searches that a limit of the budget or a refusal
      ended before the method did, by `Ledger.stopped`;
    - `failures`: number of failed problems, by reason.

  Raises:
    UserError: There is no problem, or a chain was not chosen by a search.
  """
  if not chosen and not failed:
    raise UserError('a search of no problems: expected at least one')
  ledgers = [_ledger(chain) for chain in chosen]
  right = [correctness(chain) for chain in chosen]
  known = [value for value in right if value is not None]
  # A failed problem has no chain to say whether its answer is known, so it
  # counts as wrong if other answers are known.
  graded = [*known, *(0.0 for _ in failed)] if known else []
  ended = [search_meta(chain)['ended'] for chain in chosen]
  dead: Counter[str] = Counter()
  for ledger in ledgers:
    dead.update(ledger['dead'])
  stopped = Counter(ledger['stopped'] for ledger in ledgers)
  del stopped['']
  return {
    'problems': len(chosen) + len(failed),
    'failed': len(failed),
    'answers_known': len(graded),
    'accuracy': _share(graded) if graded else None,
    'ended': sum(ended) / (len(chosen) + len(failed)),
    'cost': {
      name: _mean([_cost(ledger, name) for ledger in ledgers], seed, resamples)
      for name in COSTS
      # The chains that a job writes have no seconds, which differ between runs.
      if ledgers
      and (
        _flops_known(chosen)
        if name == 'flops'
        else all(name in each for each in ledgers)
      )
    },
    'dead': dict(dead.most_common()),
    # Ledgers of older versions do not have this field.
    'saved_tokens': sum(ledger.get('saved_tokens', 0) for ledger in ledgers),
    'lost': sum(ledger['lost'] for ledger in ledgers),
    'stopped': dict(stopped.most_common()),
    'failures': dict(Counter(failed).most_common()),
  }


def correctness(chain: Chain) -> float | None:
  """Returns 1 for a right answer, 0 for another, None if truth is unknown.

  An answer that could not be compared in time counts as wrong.
  """
  if not chain.meta.get('truth') and chain.outcome is None:
    return None
  return float(bool(chain.outcome))


def _share(right: Sequence[float]) -> dict[str, Any]:
  """Returns a share with its exact interval."""
  count, total = int(sum(right)), len(right)
  return {'mean': count / total, 'ci95': proportions.interval95(count, total)}


def _mean(values: Sequence[float], seed: int, resamples: int) -> dict[str, Any]:
  mean, low, high = bootstrap.mean_ci(np.array(values), seed, resamples)
  return {'mean': mean, 'ci95': [low, high]}


def search_meta(chain: Chain) -> Mapping[str, Any]:
  """Returns what the search wrote about a chain, see `search/results.py`.

  Raises:
    UserError: The chain does not come from a search, or is damaged.
  """
  name, about = chain.meta.get('id'), chain.meta.get('search')
  if not isinstance(about, Mapping) or 'problem_id' not in chain.meta:
    raise UserError(
      f"chain {name!r} has no meta['search'] or no meta['problem_id']: "
      'expected the chosen chains of a search job'
    )
  scores = about.get('scores')
  if (
    not isinstance(about.get('ended'), bool)
    or not isinstance(scores, list | tuple)
    or not all(map(_is_score, (about.get('chain_score'), *scores)))
  ):
    raise UserError(
      f"chain {name!r}: expected in meta['search'] a true or false `ended`, a "
      'number or null as `chain_score`, and a list of such `scores`'
    )
  return about


def _is_score(value: Any) -> bool:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  return number or value is None


def _ledger(chain: Chain) -> Mapping[str, Any]:
  about = search_meta(chain)
  if 'ledger' not in about:
    raise UserError(
      f'chain {chain.meta.get("id")!r} has no ledger: expected the chosen '
      'chain of its problem, not another that ended'
    )
  return about['ledger']


def _flops_known(chosen: Sequence[Chain]) -> bool:
  """Says whether all models that were asked count their FLOPs.

  A model does if any problem's FLOPs are above 0: caches may save the rest.
  """
  ledgers = [_ledger(chain) for chain in chosen]
  scores = [score for chain in chosen for score in search_meta(chain)['scores']]
  sides = ['policy_flops']
  if any(score is not None for score in scores):
    sides.append('prm_flops')
  return all(any(each[side] for each in ledgers) for side in sides)


def _cost(ledger: Mapping[str, Any], name: str) -> float:
  if name == 'flops':
    return ledger['policy_flops'] + ledger['prm_flops']
  return ledger[name]

"""What a search found and what it took.

Takes the chosen chains of a search job, one for each problem, with what
`Searching.chains` wrote into their `meta['search']`. A problem of which nothing
came is as wrong as a wrong answer: leaving it out would reward giving up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.evals import bootstrap
from prm_jax.runtime.errors import UserError

# Of the ledger, in the order of the report.
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
  """The section `search` of results.json.

  Args:
    chosen: a chain for each problem that has one, its ledger in
      `meta['search']`.
    failed: why nothing came of the others, a reason for each.
    seed: of the bootstrap over problems.
    resamples: of the bootstrap.

  Returns:
    `problems` and `failed`, counts; `accuracy`, mean with interval over all
    problems, None where no right answer is known; `ended`, the share of all
    problems whose chosen chain came to its end; `cost`, mean and interval of a
    problem that did not fail, by COSTS (of a model 0 FLOPs are not known;
    `flops`, of all that are asked, are there where all are known); `dead`,
    chains that were given up, by reason; `saved_tokens`, an estimate of what
    those that were rejected early would have gone on to write; `lost`,
    completions that could not be had; `failures`, problems by reason.

  Raises:
    UserError: there is no problem, or a chain is not a search's chosen one.
  """
  if not chosen and not failed:
    raise UserError('a search of no problems: expected at least one')
  ledgers = [_ledger(chain) for chain in chosen]
  right = [rightness(chain) for chain in chosen]
  known = [value for value in right if value is not None]
  # Without a chain nobody says whether the answer is known.
  scored = [*known, *(0.0 for _ in failed)] if known else []
  ended = [searched(chain)['ended'] for chain in chosen]
  dead: Counter[str] = Counter()
  for ledger in ledgers:
    dead.update(ledger['dead'])
  return {
    'problems': len(chosen) + len(failed),
    'failed': len(failed),
    'answers_known': len(scored),
    'accuracy': _mean(scored, seed, resamples) if scored else None,
    'ended': sum(ended) / (len(chosen) + len(failed)),
    'cost': {
      name: _mean([_cost(ledger, name) for ledger in ledgers], seed, resamples)
      for name in COSTS
      # The chains that a job writes say no seconds: no two runs agree on them.
      if ledgers
      and (
        _flops_known(chosen)
        if name == 'flops'
        else all(name in each for each in ledgers)
      )
    },
    'dead': dict(dead.most_common()),
    # Ledgers that were written before it was counted have none.
    'saved_tokens': sum(ledger.get('saved_tokens', 0) for ledger in ledgers),
    'lost': sum(ledger['lost'] for ledger in ledgers),
    'failures': dict(Counter(failed).most_common()),
  }


def rightness(chain: Chain) -> float | None:
  """1 for a right answer, 0 for any other; None where the truth is not known.

  An answer that could not be compared in time is not right.
  """
  if not chain.meta.get('truth') and chain.outcome is None:
    return None
  return float(bool(chain.outcome))


def _mean(values: Sequence[float], seed: int, resamples: int) -> dict[str, Any]:
  mean, low, high = bootstrap.mean_ci(np.array(values), seed, resamples)
  return {'mean': mean, 'ci95': [low, high]}


def searched(chain: Chain) -> Mapping[str, Any]:
  """What the search says of a chain, see `Searching.chains`.

  Raises:
    UserError: the chain comes from elsewhere.
  """
  about = chain.meta.get('search')
  if not isinstance(about, Mapping):
    raise UserError(
      f"chain {chain.meta.get('id')!r} has no meta['search']: expected the "
      'chosen chains of a search job'
    )
  return about


def _ledger(chain: Chain) -> Mapping[str, Any]:
  about = searched(chain)
  if 'ledger' not in about:
    raise UserError(
      f'chain {chain.meta.get("id")!r} has no ledger: expected the chosen '
      'chain of its problem, not another that ended'
    )
  return about['ledger']


def _flops_known(chosen: Sequence[Chain]) -> bool:
  """Whether all who were asked count theirs; a cache may leave some with 0."""
  ledgers = [_ledger(chain) for chain in chosen]
  scores = [score for chain in chosen for score in searched(chain)['scores']]
  sides = ['policy_flops']
  if any(score is not None for score in scores):
    sides.append('prm_flops')
  return all(any(each[side] for each in ledgers) for side in sides)


def _cost(ledger: Mapping[str, Any], name: str) -> float:
  if name == 'flops':
    return ledger['policy_flops'] + ledger['prm_flops']
  return ledger[name]

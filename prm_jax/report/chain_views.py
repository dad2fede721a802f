"""Chains with a score at each step: from chains.jsonl to what the page shows.

The scores stand beside the chain (a PRM's evaluation) or in its
`meta['search']` (what a search chose).
"""

from collections.abc import Mapping
from typing import Any

from prm_jax.data import chains
from prm_jax.report import files, sections
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

MAX_CHAINS = 24  # written out in the page
MAX_FOUND = 50_000  # that the page can search
MAX_CHARACTERS = 4000  # of one problem or step: a page is not a data file


def read_chains(path: paths.Path) -> tuple[list, int]:
  """The first MAX_FOUND (chain, extra fields) of a file, and how many it has.

  Raises:
    UserError: a record is no chain, or has not one score in [0, 1] or null per
      step.
  """
  shown, total = [], 0
  for where, record in files.records(path):
    total += 1
    if total > MAX_FOUND:
      continue
    extra = {k: record.pop(k, None) for k in ('scores', 'chosen', 'note')}
    try:
      chain = chains.from_dict(record)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
    known = isinstance(chain.answer, str | None)
    known = known and chain.outcome in (True, False, None)
    if not known or not isinstance(chain.meta, dict):
      raise UserError(
        f'{where}: expected text or null as answer, true, false or null as '
        'outcome, an object as meta'
      )
    searched = chain.meta.get('search')
    if extra['scores'] is None and isinstance(searched, Mapping):
      extra |= {'scores': searched.get('scores')}
    scores = extra['scores']
    right = isinstance(scores, list) and len(scores) == len(chain.steps)
    # null: not read, as the window ended; or a search asked no PRM.
    if not right or not all(
      s is None or (sections.number(s) and 0 <= s <= 1) for s in scores
    ):
      raise UserError(
        f'{where}: expected {len(chain.steps)} scores in [0, 1], one per step, '
        'or null where there is none'
      )
    shown.append((chain, extra))
  return shown, total


def chain_view(
  chain: chains.Chain, extra: Mapping[str, Any], cut: float
) -> dict[str, Any]:
  """A chain as the template shows it, steps counted from 1.

  Args:
    chain: with labels or without.
    extra: `scores` in [0, 1] or None, `chosen`, `note`.
    cut: a step that scores below it is flagged; the first flag is shown.
  """
  scores = extra['scores']
  error = chains.first_error(chain.labels)
  flag = next(
    (i for i, score in enumerate(scores) if score is not None and score < cut),
    -1,
  )
  if not chain.labels:
    truth = 'steps not labelled'
  elif error >= 0:
    truth = f'first error at step {error + 1}'
  else:
    truth = 'no step labelled wrong'
  steps = []
  for i, (text, score) in enumerate(zip(chain.steps, scores, strict=True)):
    label = chain.labels[i] if chain.labels else None
    rolled = label is not None and label.trials
    steps.append(
      {
        'number': i + 1,
        'text': cropped(text),
        'score': sections.NOTHING if score is None else f'{score:.2f}',
        'share': '' if score is None else f'{100 * score:.0f}%',
        'error': i == error,
        'after': 0 <= error < i,
        'flag': i == flag,
        'rollouts': f'{label.successes} of {label.trials}' if rolled else '',
      }
    )
  outcomes = {True: 'right', False: 'wrong', None: 'not checked'}
  return {
    'problem': cropped(chain.problem),
    'answer': 'none' if chain.answer is None else cropped(chain.answer),
    'outcome': outcomes[chain.outcome],
    'chosen': bool(extra['chosen']),
    'note': extra['note'] or '',
    'origin': [
      str(chain.meta[name])
      for name in ('dataset', 'generator', 'id')
      if name in chain.meta
    ],
    'truth': truth,
    'flagged': f'flagged at step {flag + 1}' if flag >= 0 else 'none flagged',
    'steps': steps,
  }


def cropped(text: str) -> str:
  more = len(text) - MAX_CHARACTERS
  if more <= 0:
    return text
  return f'{text[:MAX_CHARACTERS]} … ({more:,} more characters)'

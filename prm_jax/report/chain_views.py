"""Reads chains.jsonl, and prepares chains with step scores for the page.

The scores stand beside a chain (in an evaluation of a PRM), or in its
`meta['search']` (if a search chose the chain).
"""

from collections.abc import Mapping
from typing import Any

from prm_jax.data import chains
from prm_jax.report import files, values
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

MAX_CHAINS = 24  # that are written out in the page
MAX_FOUND = 50_000  # that can be searched in the page
EXTRA = (
  'scores',
  'chosen',
  'note',
  'critiques',
  'threshold',
)  # beside a chain's own fields
MAX_CHARACTERS = 4000  # of one problem or step: the page is no data file


def read_chains(path: paths.Path) -> tuple[list, int]:
  """Reads the first MAX_FOUND chains of a file.

  Returns:
    (chain, extra fields) pairs, and the number of chains in the whole file.

  Raises:
    UserError: a record is no chain, or does not have one score in [0, 1] or
      null for each step, or critiques that are no texts.
  """
  shown, total = [], 0
  for where, record in files.read_records(path):
    total += 1
    if total > MAX_FOUND:
      continue
    extra = {k: record.pop(k, None) for k in EXTRA}
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
    # A score is null where the model's window ended before the step, or where a
    # search used no PRM.
    if not right or not all(
      s is None or (values.is_number(s) and 0 <= s <= 1) for s in scores
    ):
      raise UserError(
        f'{where}: expected {len(chain.steps)} scores in [0, 1], one per step, '
        'or null where there is none'
      )
    critiques = extra['critiques'] or []
    if not isinstance(critiques, list) or not all(
      isinstance(text, str) for text in critiques
    ):
      raise UserError(f'{where}: expected a list of texts as critiques')
    shown.append((chain, extra))
  return shown, total


def chain_view(
  chain: chains.Chain, extra: Mapping[str, Any], cut: float
) -> dict[str, Any]:
  """Returns a chain as the template shows it, with steps counted from 1.

  Args:
    chain: with or without labels.
    extra: `scores` (in [0, 1], or None), `chosen`, `note`, and `critiques`: a
      text for each step, or one for the whole chain.
    cut: the first step that scores below it is flagged, or below the chain's
      own `threshold`; 0 flags none.
  """
  scores, cut = extra['scores'], own_cut(extra, cut)
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
  critiques = extra.get('critiques') or []
  by_step = len(critiques) == len(chain.steps)
  steps = []
  for i, (text, score) in enumerate(zip(chain.steps, scores, strict=True)):
    label = chain.labels[i] if chain.labels else None
    rolled = label is not None and label.trials
    steps.append(
      {
        'number': i + 1,
        'text': crop(text),
        'score': values.NOTHING if score is None else f'{score:.2f}',
        'share': '' if score is None else f'{100 * score:.0f}%',
        'error': i == error,
        'after': 0 <= error < i,
        'flag': i == flag,
        'rollouts': f'{label.successes} of {label.trials}' if rolled else '',
        'critique': crop(critiques[i]) if by_step else '',
      }
    )
  outcomes = {True: 'right', False: 'wrong', None: 'not checked'}
  flagged = f'flagged at step {flag + 1}' if flag >= 0 else 'none flagged'
  return {
    'problem': crop(chain.problem),
    'answer': 'none' if chain.answer is None else crop(chain.answer),
    'outcome': outcomes[chain.outcome],
    'chosen': bool(extra['chosen']),
    'note': extra['note'] or '',
    'origin': [
      str(chain.meta[name])
      for name in ('dataset', 'generator', 'id')
      if name in chain.meta
    ],
    'truth': truth,
    'flagged': flagged if cut else '',
    'critiques': [] if by_step else [crop(text) for text in critiques if text],
    'steps': steps,
  }


def own_cut(extra: Mapping[str, Any], cut: float) -> float:
  """Returns the threshold of a chain's set, `cut` if it has none of its own."""
  own = extra.get('threshold')
  return own if values.is_number(own) else cut


def crop(text: str) -> str:
  """Cuts a text after MAX_CHARACTERS, and says how many characters follow."""
  more = len(text) - MAX_CHARACTERS
  if more <= 0:
    return text
  return f'{text[:MAX_CHARACTERS]} … ({more:,} more characters)'

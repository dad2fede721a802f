"""All chains of a file, to search, filter, sort and export in the page.

The chains go into the page as data, not as markup: `explorer.js` shows a few at
a time, as text and never as HTML.
"""

import base64
import hashlib
import importlib.resources
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from prm_jax.data import chains
from prm_jax.report.chain_views import MAX_CHARACTERS

SCRIPT = (
  importlib.resources.files('prm_jax.report')
  .joinpath('explorer.js')
  .read_text('utf-8')
)
# The one script that the page's policy allows.
SCRIPT_HASH = (
  'sha256-'
  + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
)


def explorer(
  shown: Sequence[tuple[chains.Chain, Mapping[str, Any]]], cut: float
) -> dict[str, Any]:
  """What the template wants of chains, with `scores`, `chosen` and `note`.

  Returns:
    `data`: JSON in which no text can end the element that holds it: `problems`,
    and `chains` that name theirs by its index. A chain with a text longer than
    MAX_CHARACTERS is shown cut off, and not exported.
    `script`: what the element beside it holds.
  """
  index: dict[str, int] = {}
  records = []
  for chain, extra in shown:
    problem = index.setdefault(chain.problem, len(index))
    record = {
      'problem': problem,
      'steps': [step[:MAX_CHARACTERS] for step in chain.steps],
      'scores': extra['scores'],
      'answer': chain.answer,
      'outcome': chain.outcome,
      'error': chains.first_error(chain.labels),
    }
    longest = max(map(len, (chain.problem, *chain.steps)))
    if longest > MAX_CHARACTERS:
      record['cropped'] = True
    if chain.labels:
      record['labels'] = [
        [x.value, x.source, x.successes, x.trials, x.neutral]
        for x in chain.labels
      ]
    # A search's own notes are long, and made again by its command.
    meta = finite({k: v for k, v in chain.meta.items() if k != 'search'})
    for name, value in (
      ('meta', meta),
      ('chosen', extra['chosen']),
      ('note', extra['note']),
    ):
      if value:
        record[name] = value
    records.append(record)
  data = {
    'cut': cut,
    'problems': [problem[:MAX_CHARACTERS] for problem in index],
    'chains': records,
  }
  text = json.dumps(data, separators=(',', ':'), allow_nan=False)
  for sign in '<>&':
    text = text.replace(sign, f'\\u{ord(sign):04x}')
  return {'data': markupsafe.Markup(text), 'script': markupsafe.Markup(SCRIPT)}


def finite(value: Any) -> Any:
  """JSON types with null where a browser's JSON has no number."""
  if isinstance(value, Mapping):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [finite(v) for v in value]
  return (
    None if isinstance(value, float) and not math.isfinite(value) else value
  )

"""Prepares the chains that can be searched, sorted and saved in the page.

They go into the page as JSON, not as markup. `explorer.js` shows a few at a
time, as text and never as HTML.
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
from prm_jax.report.chain_views import MAX_CHARACTERS, crop, own_cut

SCRIPT = (
  importlib.resources.files('prm_jax.report')
  .joinpath('explorer.js')
  .read_text('utf-8')
)
# The page's content security policy allows this script and no other.
SCRIPT_HASH = (
  'sha256-'
  + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
)


def build(
  shown: Sequence[tuple[chains.Chain, Mapping[str, Any]]], cut: float
) -> dict[str, Any]:
  """Returns what the template of the explorer shows.

  Args:
    shown: chains with `scores`, `chosen` and `note`.
    cut: the first step of a chain that scores below it is flagged, or below the
      chain's own `threshold`.

  Returns:
    `data`: JSON with `problems`, and `chains` that refer to them by index. No
    text in it can end the element that holds it. A chain with a text longer
    than MAX_CHARACTERS is cut off and cannot be saved.
    `script`: the text of explorer.js.
  """
  index: dict[str, int] = {}
  records = []
  for chain, extra in shown:
    problem = index.setdefault(chain.problem, len(index))
    record = {
      'problem': problem,
      'steps': [crop(step) for step in chain.steps],
      'scores': extra['scores'],
      'answer': None if chain.answer is None else crop(chain.answer),
      'outcome': chain.outcome,
      'error': chains.first_error(chain.labels),
    }
    texts = chain.problem, *chain.steps, chain.answer or ''
    if max(map(len, texts)) > MAX_CHARACTERS:
      record['cropped'] = True
    if (own := own_cut(extra, cut)) != cut:
      record['cut'] = own
    if chain.labels:
      record['labels'] = [
        [x.value, x.source, x.successes, x.trials, x.neutral]
        for x in chain.labels
      ]
    # The notes of a search are long, and its command makes them again.
    meta = replace_nonfinite(
      {k: v for k, v in chain.meta.items() if k != 'search'}
    )
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
    'problems': [crop(problem) for problem in index],
    'chains': records,
  }
  text = json.dumps(data, separators=(',', ':'), allow_nan=False)
  for sign in '<>&':
    text = text.replace(sign, f'\\u{ord(sign):04x}')
  return {'data': markupsafe.Markup(text), 'script': markupsafe.Markup(SCRIPT)}


def replace_nonfinite(value: Any) -> Any:
  """Replaces NaN and infinities, which JSON does not have, by None."""
  if isinstance(value, Mapping):
    return {k: replace_nonfinite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [replace_nonfinite(v) for v in value]
  return (
    None if isinstance(value, float) and not math.isfinite(value) else value
  )

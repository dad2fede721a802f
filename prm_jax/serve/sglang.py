"""Speaks to clients of SGLang: /v1/score with an extraction token.

Shapes are those of SGLang 0.5.23 (entrypoints/openai/protocol.py). An item
follows the query, and has scores wherever the extraction token stands: for a
PRM that is its separator. Its two labels are wrong and right, in this order.
"""

from typing import Annotated

import pydantic

from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import (
  FAIL_FAST,
  MOST_CHAINS,
  Body,
  Json,
  Protocol,
  Scored,
)

Ids = Annotated[list[int], FAIL_FAST]
TokenId = Annotated[int, pydantic.Field(ge=0, lt=1 << 31)]
# Characters or ids of a query, times its items: a small body may not ask for
# much work.
MOST_REPEATED = 8 << 20
Several = pydantic.Field(min_length=1, max_length=MOST_CHAINS)


class ScoreBody(Body):
  """Asks for the label probabilities of items at each extraction token."""

  query: str | Ids
  items: (
    str
    | Annotated[list[str], Several, FAIL_FAST]
    | Annotated[list[Ids], Several, FAIL_FAST]
  )
  label_token_ids: (
    Annotated[list[TokenId], pydantic.Field(min_length=2, max_length=2)] | None
  ) = None
  apply_softmax: bool = False
  item_first: bool = False
  score_extraction_token: str


def chains(body: ScoreBody, prm: ServedPrm) -> list[Chain]:
  """Encodes each item behind the query, or before it."""
  if body.score_extraction_token != prm.separator:
    raise Refused(
      400,
      f'score_extraction_token={body.score_extraction_token!r}: {prm.name} '
      f'scores at {prm.separator!r}',
      'score_extraction_token',
    )
  tokenizer = prm.format.tokenizer
  if isinstance(tokenizer, HuggingFaceTokenizer) and body.label_token_ids:
    names = [tokenizer.decode([i]).strip() for i in body.label_token_ids]
    if names == ['+', '-']:
      raise Refused(
        400,
        "label_token_ids: '+' and '-' are right and wrong; answers have wrong "
        'and right, so send them in this order',
        'label_token_ids',
      )
  items = [body.items] if isinstance(body.items, str) else body.items
  if len(items) * len(body.query) > MOST_REPEATED:
    raise Refused(
      413,
      f'a query of {len(body.query):,} with {len(items):,} items is read once '
      'for each; send fewer items',
      'items',
    )
  found = []
  for number, item in enumerate(items):
    field = f'items[{number}]'
    parts = (item, body.query) if body.item_first else (body.query, item)
    if all(isinstance(part, str) for part in parts):
      found.append(prm.of_text(''.join(map(str, parts)), field))
    elif all(isinstance(part, list) for part in parts):
      found.append(prm.of_ids([i for part in parts for i in part], field))
    else:
      raise Refused(400, f'{field}: expected text like the query', field)
  return found


def answer(body: ScoreBody, scored: Scored) -> Json:
  """Returns [items][steps][labels]: probabilities of wrong and right."""
  return {
    'object': 'scoring',
    'model': scored.prm.name,
    'scores': [[[1.0 - p, p] for p in scores] for scores in scored.scores],
    'usage': scored.usage(),
  }


SCORE = Protocol(
  '/v1/score',
  ScoreBody,
  chains,
  answer,
  'A row [1 - p, p] for each separator of each item, as SGLang answers.',
)

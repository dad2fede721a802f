"""Speaks to openr's value client: FastChat's controller and its worker.

The client asks the controller for the address of a worker, and then the worker
for values (reason/inference/value.py). This server is both.
"""

from typing import Annotated

import pydantic

from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import (
  FAIL_FAST,
  MOST_CHAINS,
  Body,
  Json,
  Protocol,
  Scored,
)


class ValueBody(Body):
  """Asks for the value at each separator of each text."""

  input_str: (
    str
    | Annotated[
      list[str], pydantic.Field(min_length=1, max_length=MOST_CHAINS), FAIL_FAST
    ]
  )


def chains(body: ValueBody, prm: ServedPrm) -> list[Chain]:
  """Encodes the texts, which the client has written as the PRM reads them."""
  texts = (
    [body.input_str] if isinstance(body.input_str, str) else body.input_str
  )
  return [
    prm.of_text(text, f'input_str[{number}]')
    for number, text in enumerate(texts)
  ]


def answer(body: ValueBody, scored: Scored) -> Json:
  """Returns the scores; those of a single text without a list around them."""
  values = [list(scores) for scores in scored.scores]
  return {'value': values[0] if isinstance(body.input_str, str) else values}


VALUE = Protocol(
  '/worker_value_inference',
  ValueBody,
  chains,
  answer,
  'The values of each text at its separators, as openr reads them.',
  names_prm=False,
)

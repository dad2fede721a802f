"""Defines what a protocol is: a path, the body that it takes, and its answer.

    JSON -> Body -> chains (of ids) -> scores -> JSON

Each protocol is a file of functions without a server: `native.py` is our own,
the others are those of clients of other servers.
"""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pydantic

from prm_jax.inference.protocols import ScoredSteps
from prm_jax.inference.score import aggregate
from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm, length_of

Json = dict[str, Any]
MOST_CHAINS = 4_096  # of a request
# The first wrong item of a list is told alone: there may be millions.
FAIL_FAST = pydantic.Field(fail_fast=True)
TYPES = 'str', 'int'  # names of types in the place of an error


class Body(pydantic.BaseModel):
  """Is the JSON of a request. Fields of other servers' options are ignored."""

  model_config = pydantic.ConfigDict(strict=True, extra='ignore')
  model: str | None = None


class Scored(NamedTuple):
  """Holds the chains of a request with their scores.

  Attributes:
    chains: None where a text could not be read, whose scores are ().
    length: tokens of all chains; of a critic, those that it read and wrote.
    read: tokens that the PRM read for them; it had read the others before.
  """

  prm: ServedPrm
  chains: Sequence[Chain | None]
  scores: Sequence[tuple[float, ...]]
  length: int
  read: int

  @classmethod
  def of(
    cls,
    prm: ServedPrm,
    chains: Sequence[Chain | None],
    answers: Sequence[ScoredSteps],
  ) -> 'Scored':
    """Joins chains with the answers for those that could be read."""
    scores = iter([each.scores for each in answers])
    read = sum(each.tokens for each in answers)
    return cls(
      prm,
      chains,
      [() if chain is None else next(scores) for chain in chains],
      read if prm.writes else sum(map(length_of, filter(None, chains))),
      read,
    )

  def usage(self) -> Json:
    """Returns the tokens in OpenAI's form."""
    return {
      'prompt_tokens': self.length,
      'total_tokens': self.length,
      'completion_tokens': 0,
      'prompt_tokens_details': {'cached_tokens': self.length - self.read},
    }


class Protocol(NamedTuple):
  """Describes how one kind of client asks.

  Attributes:
    path: of the POST request.
    body: the type of its JSON.
    chains: returns the chains that a body asks for.
    answer: returns the answer's JSON.
    about: one line for the OpenAPI document.
    names_prm: whether its clients say which PRM they ask; others ask the first.
  """

  path: str
  body: type[Body]
  chains: Callable[[Any, ServedPrm], Sequence[Chain | None]]
  answer: Callable[[Any, Scored], Json]
  about: str
  names_prm: bool = True


def chain_score(scores: Sequence[float], how: str) -> float:
  """Returns the score of a chain in [0, 1]; a sum may be larger."""
  row = np.asarray(scores, np.float32)
  found = float(aggregate(row, np.ones_like(row, bool), how))
  return float(np.exp(found)) if how == 'prod' else found


def listed(kind: str, prm: ServedPrm, data: list[Json]) -> Json:
  """Returns the frame of a list in OpenAI's form."""
  return {
    'id': f'{kind}-{uuid.uuid4().hex}',
    'object': 'list',
    'created': int(time.time()),
    'model': prm.name,
    'data': data,
  }


def parse(kind: type[Body], body: bytes | bytearray) -> Any:
  """Returns the body of a request.

  Raises:
    Refused: it is no JSON, or not of this form.
  """

  def refuse(constant: str) -> None:
    raise ValueError(f'{constant} is no JSON')

  try:
    value = json.loads(body, parse_constant=refuse)
  except (ValueError, RecursionError) as error:
    raise Refused(400, f'the body is no JSON ({error})') from None
  try:
    return kind.model_validate(value)
  except pydantic.ValidationError as error:
    errors = error.errors(include_url=False, include_input=False)
    # Where one of several types is expected, what is wrong within the right one
    # says more than that it is none of the others.
    first = min(errors, key=lambda each: each['type'].endswith('_type'))
    where = ''.join(
      f'[{part}]' if isinstance(part, int) else f'.{part}'
      for part in first['loc']
      if isinstance(part, int) or (part.isidentifier() and part not in TYPES)
    ).lstrip('.')
    raise Refused(400, f'{where or "body"}: {first["msg"]}', where) from None

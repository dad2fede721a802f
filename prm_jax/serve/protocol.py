"""Defines what a protocol is: a path, the body that it takes, and its answer.

    JSON -> Body -> chains (of ids) -> scores -> JSON

Each protocol is a file of functions without a server: `native.py` is our own,
the others are those of clients of other servers.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pydantic

from prm_jax.inference.protocols import ScoredSteps
from prm_jax.inference.score import aggregate
from prm_jax.serve.prms import Chain, ServedPrm

Json = dict[str, Any]


class Body(pydantic.BaseModel):
  """Is the JSON of a request. Fields of other servers' options are ignored."""

  model_config = pydantic.ConfigDict(strict=True, extra='ignore')
  model: str | None = None


class Scored(NamedTuple):
  """Holds the chains of a request with their scores.

  Attributes:
    length: tokens of all chains.
    read: tokens that the PRM read for them; it had read the others before.
  """

  prm: ServedPrm
  chains: Sequence[Chain]
  scores: Sequence[tuple[float, ...]]
  length: int
  read: int

  @classmethod
  def of(
    cls,
    prm: ServedPrm,
    chains: Sequence[Chain],
    answers: Sequence[ScoredSteps],
  ) -> 'Scored':
    """Puts chains and answers together."""
    return cls(
      prm,
      chains,
      [each.scores for each in answers],
      sum(len(ids) for chain in chains for ids in chain),
      sum(each.tokens for each in answers),
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
  """

  path: str
  body: type[Body]
  chains: Callable[[Any, ServedPrm], list[Chain]]
  answer: Callable[[Any, Scored], Json]
  about: str


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

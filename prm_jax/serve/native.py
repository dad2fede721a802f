"""Speaks this project's own protocol: problems and steps, scores of steps."""

from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import (
  FAIL_FAST,
  MOST_CHAINS,
  Body,
  Json,
  Protocol,
  Scored,
  chain_score,
)

# More than a window or a call takes; they keep a small body from much work.
Text = Annotated[str, pydantic.Field(max_length=1_000_000)]
MOST_STEPS = 16_384


class KnownFields(pydantic.BaseModel):
  """Refuses unknown fields by the first of them: there may be millions."""

  model_config = pydantic.ConfigDict(strict=True)

  @pydantic.model_validator(mode='before')
  @classmethod
  def refuse_unknown(cls, value: Any) -> Any:
    if isinstance(value, dict):
      for name in value:
        if name not in cls.model_fields:
          raise pydantic_core.PydanticCustomError(
            'unknown_field', 'unknown field {name}', {'name': repr(name[:60])}
          )
    return value


class Steps(KnownFields):
  """Is a chain: a problem, and the steps so far."""

  problem: Text
  steps: Annotated[
    list[Text], pydantic.Field(min_length=1, max_length=MOST_STEPS), FAIL_FAST
  ]


class StepsBody(Body, KnownFields):
  """Asks for the scores of chains."""

  chains: Annotated[
    list[Steps],
    pydantic.Field(min_length=1, max_length=MOST_CHAINS),
    FAIL_FAST,
  ]
  aggregate: Literal['min', 'prod', 'mean', 'sum', 'last', 'max'] = 'min'


def chains(body: StepsBody, prm: ServedPrm) -> list[Chain]:
  """Encodes the chains."""
  return [
    prm.of_steps(chain.problem, chain.steps, f'chains[{number}]')
    for number, chain in enumerate(body.chains)
  ]


def answer(body: StepsBody, scored: Scored) -> Json:
  """Returns the scores of each chain's steps, and of the chain."""
  return {
    'object': 'list',
    'model': scored.prm.name,
    'data': [
      {
        'index': number,
        'scores': list(scores),
        'score': chain_score(scores, body.aggregate),
      }
      for number, scores in enumerate(scored.scores)
    ],
    'usage': {
      'tokens': scored.read,
      'cached_tokens': scored.length - scored.read,
    },
  }


STEPS = Protocol(
  '/v1/steps', StepsBody, chains, answer, 'Scores the steps of chains.'
)

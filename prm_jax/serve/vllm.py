"""Speaks to clients of vLLM: /pooling, /classify, /v1/embeddings.

Shapes are those of vLLM 0.33 (entrypoints/pooling). A row [1 - p, p] stands for
each separator, as Qwen2.5-Math-PRM's clients read it; /classify and
/v1/embeddings give one number for a chain, as verl's reward client reads it.
"""

import base64
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import pydantic

from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import (
  FAIL_FAST,
  MOST_CHAINS,
  Body,
  Json,
  Protocol,
  Scored,
  listed,
)
from prm_jax.serve.texts import Reading

Ids = Annotated[list[int], pydantic.Field(min_length=1), FAIL_FAST]
Several = pydantic.Field(min_length=1, max_length=MOST_CHAINS)
Input = (
  str
  | Annotated[list[str], Several, FAIL_FAST]
  | Ids
  | Annotated[list[Ids], Several, FAIL_FAST]
)
LABELS = 'LABEL_0', 'LABEL_1'


class Message(pydantic.BaseModel):
  """Is a turn of a chat."""

  model_config = pydantic.ConfigDict(strict=True, extra='ignore')
  role: str
  content: str


class InputBody(Body):
  """Asks for text, for several texts, or for token ids."""

  input: Input
  encoding_format: Literal['float', 'base64'] = 'float'


class PoolingBody(Body):
  """Asks for a row for each separator."""

  input: Input | None = None
  messages: (
    Annotated[list[Message], pydantic.Field(min_length=1), FAIL_FAST] | None
  ) = None
  encoding_format: Literal['float'] = 'float'
  task: Literal['token_classify'] | None = None
  use_activation: Literal[True] | None = None  # probabilities are all we have
  add_special_tokens: bool = True


def parts(given: Input) -> Iterator[tuple[str, str | list[int]]]:
  """Yields the texts or ids of an input, each with its place in the body."""
  if isinstance(given, str) or isinstance(given[0], int):
    yield 'input', given
    return
  for number, each in enumerate(given):
    yield f'input[{number}]', each


def pooling_chains(body: PoolingBody, prm: ServedPrm) -> list[Chain]:
  """Encodes the input, or the chat."""
  if (body.input is None) == (body.messages is None):
    raise Refused(400, 'expected input or messages, and not both', 'input')
  if body.messages is not None:
    said = [(each.role, each.content) for each in body.messages]
    return [prm.of_messages(said, 'messages')]
  return [
    prm.of_text(each, field, body.add_special_tokens)
    if isinstance(each, str)
    else prm.of_ids(each, field)
    for field, each in parts(body.input)
  ]


def pooling_answer(body: PoolingBody, scored: Scored) -> Json:
  """Returns the probabilities of wrong and right, at each separator."""
  data = [
    {
      'index': number,
      'object': 'pooling',
      'data': [[1.0 - score, score] for score in scores],
    }
    for number, scores in enumerate(scored.scores)
  ]
  return listed('pool', scored.prm, data) | {'usage': scored.usage()}


def protocols(reading: Reading) -> list[Protocol]:
  """Returns the protocols."""

  def whole_chains(body: InputBody, prm: ServedPrm) -> list[Chain | None]:
    return [reading.chain(prm, each, at) for at, each in parts(body.input)]

  def classes(body: InputBody, prm: ServedPrm) -> list[Chain | None]:
    if reading.how == 'sum':
      raise Refused(
        400,
        '--aggregate=sum is no probability of a class; ask /v1/embeddings, or '
        'start the server with another --aggregate',
      )
    return whole_chains(body, prm)

  def classified(body: InputBody, scored: Scored) -> Json:
    data = [
      {
        'index': number,
        'label': LABELS[score >= 0.5],
        'probs': [1.0 - score, score],
        'num_classes': 2,
      }
      for number, score in enumerate(map(reading.reward, scored.scores))
    ]
    return listed('classify', scored.prm, data) | {'usage': scored.usage()}

  def embedded(body: InputBody, scored: Scored) -> Json:
    data = [
      {
        'index': number,
        'object': 'embedding',
        'embedding': _embedding(score, body.encoding_format),
      }
      for number, score in enumerate(map(reading.reward, scored.scores))
    ]
    return listed('embd', scored.prm, data) | {'usage': scored.usage()}

  return [
    Protocol(
      '/pooling',
      PoolingBody,
      pooling_chains,
      pooling_answer,
      'A row [1 - p, p] for each separator, as vLLM answers.',
    ),
    Protocol(
      '/classify',
      InputBody,
      classes,
      classified,
      'The score of each conversation as the probability of a class.',
    ),
    Protocol(
      '/v1/embeddings',
      InputBody,
      whole_chains,
      embedded,
      'The score of each conversation as an embedding of one number.',
    ),
  ]


def _embedding(score: float, form: str) -> list[float] | str:
  """Returns an embedding as OpenAI's clients read it."""
  if form == 'float':
    return [score]
  return base64.b64encode(np.float32([score]).tobytes()).decode()

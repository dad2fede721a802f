"""Speaks to OpenRLHF's reward client: POST /get_reward.

It sends whole texts and the prompts that they begin with (utils/agent.py of
0.11.2), and reads one reward for each.
"""

from typing import Annotated, Any

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
)
from prm_jax.serve.texts import Reading


class RewardBody(Body):
  """Asks for the reward of each query, a prompt and what was written after it.

  Labels are the ground truth, which a PRM does not read.
  """

  query: Annotated[
    list[str], pydantic.Field(min_length=1, max_length=MOST_CHAINS), FAIL_FAST
  ]
  prompts: Annotated[list[str], FAIL_FAST] | None = None
  labels: list[Any] | None = None


def get_reward(reading: Reading) -> Protocol:
  """Returns the protocol."""

  def chains(body: RewardBody, prm: ServedPrm) -> list[Chain | None]:
    prompts = body.prompts or [''] * len(body.query)
    if len(prompts) != len(body.query):
      raise Refused(
        400,
        f'{len(prompts)} prompts for {len(body.query)} queries: expected one '
        'for each, or none',
        'prompts',
      )
    return [
      reading.chain(prm, text, f'query[{number}]', prompt)
      for number, (text, prompt) in enumerate(
        zip(body.query, prompts, strict=True)
      )
    ]

  def answer(body: RewardBody, scored: Scored) -> Json:
    rewards = [reading.reward(scores) for scores in scored.scores]
    logs = {
      'prm_lowest': [min(scores, default=0.0) for scores in scored.scores],
      'prm_steps': [float(len(scores)) for scores in scored.scores],
    }
    return {'rewards': rewards, 'scores': rewards, 'extra_logs': logs}

  return Protocol(
    '/get_reward',
    RewardBody,
    chains,
    answer,
    'A reward for each whole text, as OpenRLHF reads it.',
    names_prm=False,
  )

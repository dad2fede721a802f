"""`adapters.verl` is what verl's reward loop calls for every completion."""

import asyncio

import numpy as np
import pytest

REASON = (
  'needs verl: pip install --no-deps verl==0.9.1 && pip install ray '
  'tensordict omegaconf codetiming orjson pyvers'
)
for package in ('torch', 'ray', 'verl'):
  pytest.importorskip(package, reason=REASON)

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.experimental.reward_loop.reward_manager import (  # noqa: E402
  naive,
)

import prm_jax  # noqa: E402
from prm_jax import rl  # noqa: E402
from prm_jax.rl import adapters  # noqa: E402
from tests.shared import command_line  # noqa: E402

PROBLEM = 'mod 10 : 7 * 3 + 4'
CHAINS = ['7 * 3 = 1\n1 + 4 = 5', '7 * 3 = 2\n2 + 4 = 6']


class Characters:
  """A tokenizer of characters, as verl calls it; 0 is padding."""

  def decode(self, ids, skip_special_tokens):
    assert skip_special_tokens
    return ''.join(map(chr, ids.tolist()))


def data_of(chain):
  prompt, response = (
    torch.tensor([[ord(c) for c in text] + [0] * pad])
    for text, pad in ((PROBLEM, 0), (chain, 3))
  )
  mask = torch.cat([torch.ones_like(prompt), (response > 0).long()], 1)
  others = {
    'data_source': 'arithmetic',
    'reward_model': {'ground_truth': '5'},
    'extra_info': {'question': PROBLEM},
  }
  return DataProto(
    batch=TensorDict(
      {'prompts': prompt, 'responses': response, 'attention_mask': mask},
      batch_size=1,
    ),
    non_tensor_batch={
      name: np.array([value], dtype=object) for name, value in others.items()
    },
  )


def test_the_reward_loop_takes_our_score(tmp_path):
  done = command_line.run(*command_line.SMALL, f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  prm = prm_jax.load(tmp_path)
  manager = naive.NaiveRewardManager(
    {}, Characters(), adapters.verl(rl.reward_fn(tmp_path))
  )
  manager.loop = asyncio.new_event_loop()
  data = [data_of(chain) for chain in CHAINS]
  found = [manager.loop.run_until_complete(manager.run_single(x)) for x in data]
  for chain, answer in zip(CHAINS, found, strict=True):
    scores = prm.score(PROBLEM, chain.split('\n'))
    assert answer['reward_score'] == pytest.approx(min(scores), abs=1e-6)
    reported = answer['reward_extra_info']
    assert reported['prm_lowest'] == pytest.approx(min(scores), abs=1e-6)
    assert reported['prm_steps'] == 2
  # What its trainer adds up: the score at the completion's last token.
  score = found[0]['reward_score']
  paid = manager.assemble_rm_scores(data[0], [score])
  assert paid.shape == (1, len(CHAINS[0]) + 3)
  assert paid[0, len(CHAINS[0]) - 1] == pytest.approx(score)
  assert paid.sum() == pytest.approx(score)

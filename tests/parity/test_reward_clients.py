"""Other libraries' own client code, asking a live server of ours.

The files are read from their wheels and run by themselves, as the packages
import what serves language models.
"""

import asyncio
import importlib.util
import logging
import sys
import types

import numpy as np
import pytest

REASON = 'pip install aiohttp requests; with --no-deps: reward-hub openrlhf'
for package in ('aiohttp', 'requests', 'reward_hub', 'openrlhf'):
  if importlib.util.find_spec(package) is None:
    pytest.skip(REASON, allow_module_level=True)

import prm_jax  # noqa: E402
from prm_jax.models.hub.published_formats import QWEN_SYSTEM  # noqa: E402
from tests.serve.live_server import LiveServer  # noqa: E402
from tests.shared.published_models import CHAINS, write_model  # noqa: E402

NAME = 'Qwen/Qwen2.5-Math-PRM-7B'
SEPARATOR = '<extra_0>'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('qwen')
  write_model('qwen_prm', folder)
  return folder


@pytest.fixture(scope='module')
def server(folder):
  server = LiveServer(folder, '--prm', f'{NAME}={folder}').wait()
  yield server
  code, text = server.stop()
  assert code == 0, text


def run_file(package, path):
  """Runs a file of an installed package as a module of its own."""
  [root] = importlib.util.find_spec(package).submodule_search_locations
  spec = importlib.util.spec_from_file_location('client', f'{root}/{path}')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_reward_hub_reads_the_scores_of_steps(server, folder):
  client = run_file('reward_hub', 'openai/vllm_client.py')
  asked = [
    [
      {'role': 'system', 'content': QWEN_SYSTEM},
      {'role': 'user', 'content': problem},
      {
        'role': 'assistant',
        'content': SEPARATOR.join(steps) + SEPARATOR,
      },
    ]
    for problem, steps in CHAINS
  ]
  http = client.HTTPClient('127.0.0.1', server.port, NAME)
  replies = http.post_reward_requests(asked)
  wanted = prm_jax.load(folder).score_many(CHAINS)
  for reply, scores in zip(replies, wanted, strict=True):
    # As its OpenAIProcessRewardModel reads them.
    found = [step[-1] for step in reply['data'][0]['data']]
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-6)


def test_openrlhf_reads_a_reward_of_each_query(server, folder, monkeypatch):
  loggers = types.SimpleNamespace(init_logger=logging.getLogger)
  for name, module in (
    ('openrlhf.utils', types.ModuleType('openrlhf.utils')),
    ('openrlhf.utils.logging_utils', loggers),
  ):
    monkeypatch.setitem(sys.modules, name, module)
  agent = run_file('openrlhf', 'utils/agent.py')
  url = f'http://127.0.0.1:{server.port}/get_reward'
  executor = agent.SingleTurnAgentExecutor(url)
  problem, steps = 'What is 2 + 2?', ['First, 2.', 'Then it is 4.']
  prompt = f'<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'
  queries = [prompt + '\n\n'.join(steps), prompt + steps[0] + '<|im_end|>\n']
  [reply] = asyncio.run(
    executor._fetch_rewards_via_http(queries, [prompt] * 2, ['4', '4'])
  )
  wanted = prm_jax.load(folder).score_many(
    [(problem, steps), (problem, steps[:1])]
  )
  np.testing.assert_allclose(
    reply['rewards'], [scores.min() for scores in wanted], rtol=0, atol=1e-6
  )

"""A real server, `transformers serve`, on the SmolLM2 that our export wrote."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request

import pytest

REASON = "needs the extras llm, smollm2 and parity: pip install -e '.[...]'"
for package in ('torch', 'transformers', 'fastapi', 'uvicorn', 'openai'):
  pytest.importorskip(package, reason=REASON)

from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402

from prm_jax import search  # noqa: E402
from prm_jax.data.chains import Chain  # noqa: E402
from prm_jax.data.critiques.styles import last_index  # noqa: E402
from prm_jax.data.domains.arithmetic import ArithmeticConfig  # noqa: E402
from prm_jax.export import export  # noqa: E402
from prm_jax.inference.driver import CannotDo  # noqa: E402
from prm_jax.inference.exact_scorer import ExactScorer  # noqa: E402
from prm_jax.inference.loading import load  # noqa: E402
from prm_jax.inference.protocols import Question, Request, Scoring  # noqa: E402
from prm_jax.inference.server.endpoint import (  # noqa: E402
  Endpoint,
  EndpointConfig,
  split_steps,
)
from prm_jax.inference.tree_scorer import TreeScorer  # noqa: E402
from prm_jax.labels import judge  # noqa: E402
from prm_jax.runtime.errors import UserError  # noqa: E402
from prm_jax.search.budget import Budget  # noqa: E402
from prm_jax.search.method import Task  # noqa: E402
from prm_jax.search.methods import METHODS  # noqa: E402
from tests.shared import smollm2  # noqa: E402
from tests.shared.published_models import write_model  # noqa: E402
from tests.shared.several_processes import free_port  # noqa: E402

FRANCE = 'What is the capital of France?'
SECONDS = 180  # for the server to start, on a machine that is busy


@pytest.fixture(scope='module')
def opened():
  """Returns the model, its float32 parameters and its tokenizer."""
  return smollm2.open_or_skip()


@pytest.fixture(scope='module')
def server(opened, tmp_path_factory):
  """base_url and model of the server."""
  folder = tmp_path_factory.mktemp('served') / 'smollm2'
  export('smollm2', folder, 'lm')
  port = free_port()
  command = [sys.executable, '-m', 'transformers.cli.transformers', 'serve']
  command += [str(folder), '--host=127.0.0.1', f'--port={port}']
  command += ['--device=cpu', '--dtype=float32']
  log = folder.with_suffix('.log')
  with (
    log.open('w') as out,
    subprocess.Popen(
      command,
      stdout=out,
      stderr=out,
      env=os.environ | {'HF_HUB_OFFLINE': '1'},
    ) as process,
  ):
    try:
      _wait(process, f'http://127.0.0.1:{port}/health', log)
      yield {
        'base_url': f'http://127.0.0.1:{port}/v1',
        'model': str(folder),
      }
    finally:
      process.kill()


def _wait(process, url, log):
  limit = time.monotonic() + SECONDS
  while time.monotonic() < limit:
    assert process.poll() is None, log.read_text()
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
      return
    time.sleep(0.2)
  pytest.fail(f'no answer in {SECONDS} seconds: {log.read_text()}')


def end_of(opened):
  return opened[0].file.metadata['tokenizer.ggml.eos_token_id']


def config_for(server, opened, **changes):
  """Seeds count where calls come one by one: the server has one generator."""
  # Our export writes no generation_config.json, so it is sent.
  generation = {'eos_token_id': end_of(opened)}
  if changes.get('temperature', 1) > 0:
    generation |= {'do_sample': True}
  extra = {'generation_config': json.dumps(generation)}
  values = {'system': '', 'max_tokens': 16, 'concurrency': 1, 'timeout': 120.0}
  return EndpointConfig(**server | values | {'extra': extra} | changes)


def test_a_question_in_chat_form(server, opened):
  model, _, tokenizer = opened
  endpoint = Endpoint(config_for(server, opened, temperature=0.0))
  [[reply]] = endpoint.ask([Question(FRANCE, 'q', 1)])
  assert reply.text == 'The capital of France is Paris.'
  template = ImmutableSandboxedEnvironment().from_string(model.chat_template)
  turns = [{'role': 'user', 'content': FRANCE}]
  prompt = template.render(messages=turns, add_generation_prompt=True)
  assert reply.prompt_tokens == len(tokenizer.encode_template(prompt))
  # The end of the turn is a token, too.
  assert reply.tokens == len(tokenizer.encode(reply.text)) + 1
  assert endpoint.usage.tokens == reply.tokens


@pytest.mark.parametrize('most', [5, 24])
def test_steps_are_those_of_our_own_decoding(server, opened, most):
  model, params, tokenizer = opened
  config = config_for(
    server, opened, api='completions', temperature=0.0, max_tokens=most
  )
  request = Request('Count from 1 to 5.', ('1', '2'), 'count', 1)
  [[completion]] = Endpoint(config).complete([request])
  ids = tokenizer.encode('Count from 1 to 5.\n1\n2\n')
  ours = smollm2.decode_greedily(model, params, ids, most)
  finished = most == 24
  assert (ours[-1] == end_of(opened)) == finished
  text = tokenizer.decode(ours[:-1] if finished else ours)
  assert completion.steps == split_steps(text, '\n', finished)[0]
  assert completion.steps[:2] == ('3', '4')
  assert completion.finished == finished
  assert completion.tokens == len(ours)
  assert completion.prompt_tokens == len(ids)


def test_samples_follow_their_seeds(server, opened, tmp_path):
  config = config_for(server, opened, max_tokens=8)
  question = Question('Name an animal.', 'animal', 3)
  first = Endpoint(config, tmp_path)
  [samples] = first.ask([question])
  assert len({sample.text for sample in samples}) > 1
  assert all(0 < sample.tokens <= 8 for sample in samples)
  [again] = Endpoint(config).ask([question._replace(samples=1, first=2)])
  assert again == samples[2:]
  assert first.ask([question]) == [samples]
  assert first.usage.calls == first.usage.cached == 3


def test_a_judge(server, opened):
  """A model this small is no judge; its words decide all the same."""
  chain = Chain('What is 3 + 4?', ('3 + 4 = 8', 'So 8.'), meta={'id': 'a'})
  endpoint = Endpoint(config_for(server, opened, temperature=0.0, max_tokens=8))
  labelling = judge.label(chain, judge.JudgeConfig(samples=1))
  asked = next(labelling)
  replies = endpoint.ask(asked)
  index = last_index(replies[0][0].text, 2)
  if index is None:
    with pytest.raises(CannotDo, match='1 unparseable, 0 failed'):
      labelling.send(replies)
  else:
    with pytest.raises(StopIteration) as stop:
      labelling.send(replies)
    assert stop.value.value.labels == judge.labels_of(index, 2)


# Small ones: the server takes a second for a completion.
SEARCHES = {
  'best_of_n': {'samples': 2},
  'majority': {'samples': 2},
  'weighted_vote': {'samples': 2},
  'beam': {'samples': 2, 'width': 1},
  'dvts': {'samples': 4, 'width': 2},
  'lookahead': {'samples': 2, 'width': 1, 'steps': 1},
  'rebase': {'samples': 2},
  'mcts': {'simulations': 3, 'width': 2},
  'refine': {'samples': 1, 'rounds': 1},
  'early_rejection': {'samples': 2},
}


def test_all_methods_are_searched():
  assert SEARCHES.keys() == METHODS.keys()


# What of the others is the server's is in these: one answer, several, branches,
# and what was written shown again.
OFTEN = ('best_of_n', 'beam', 'mcts', 'refine')


@pytest.mark.parametrize(
  'method',
  [
    pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)
    for name in SEARCHES
  ],
)
def test_a_search(server, opened, tmp_path, method):
  """A server writes, a PRM of ours scores; asked again nothing is paid."""
  write_model('rlhflow', tmp_path / 'prm')
  prm = TreeScorer(load(tmp_path / 'prm', style='rlhflow'))
  config = config_for(
    server, opened, api='completions', temperature=0.0, max_tokens=24
  )
  problems = ('5', '4') if method == 'rebase' else ('5',)
  tasks = [Task(n, f'Count from 1 to {n}.\n1\n2', n) for n in problems]

  def searched():
    endpoint = Endpoint(config, tmp_path / 'cache')
    how = search.RunConfig(budget=Budget(samples=6))
    found = search.run(tasks, endpoint, prm, method, SEARCHES[method], how=how)
    return {each.task.id: each for each in found}, endpoint.usage

  found, usage = searched()
  for each in found.values():
    assert not each.failed, each.failed
    ledger = each.ledger
    if method in ('best_of_n', 'majority', 'weighted_vote'):
      assert (ledger['rounds'], ledger['samples']) == (1, 2)
    else:  # until it ends or the budget does
      assert ledger['samples'] == 6 or each.chosen.meta['search']['ended']
    assert ledger['tokens'] > 0 == ledger['lost']
    about = each.chosen.meta['search']
    if METHODS[method].scores:
      [[scored]] = prm.score([Scoring(each.task.text, each.chosen.steps)])
      assert about['scores'] == pytest.approx(scored.scores, abs=1e-5)
    else:
      assert ledger['scored_tokens'] == 0
  # As far as the budget goes: where siblings are tried too, two steps.
  steps = found['5'].chosen.steps[:3]
  assert len(steps) >= 2 and steps == ('3', '4', '5')[: len(steps)]
  assert usage.tokens == sum(each.ledger['tokens'] for each in found.values())
  again, usage = searched()
  assert usage.calls == 0 < usage.cached
  for name, each in again.items():
    assert each.chosen.steps == found[name].chosen.steps


def test_a_search_that_a_chat_cannot_do(server, opened):
  """This server's chats begin anew: nothing is spent to find that out."""
  endpoint = Endpoint(config_for(server, opened))
  task, prm = Task('sum', 'What is 2 + 2?'), ExactScorer(ArithmeticConfig())
  with pytest.raises(UserError, match="api='chat' may begin anew"):
    next(search.run([task], endpoint, prm, 'beam'))
  assert endpoint.usage.calls == 0


def test_what_a_real_server_refuses(server, opened):
  question = [Question(FRANCE, 'q', 1)]
  with pytest.raises(UserError, match=r"'rook' with status 400: .*pinned"):
    Endpoint(config_for(server | {'model': 'rook'}, opened)).ask(question)
  extra = {'temprature': 1}
  with pytest.raises(UserError, match=r'status 422: .*temprature.*extra'):
    Endpoint(config_for(server, opened, extra=extra)).ask(question)
  missing = config_for(
    server | {'base_url': f'{server["base_url"]}/v2'}, opened
  )
  with pytest.raises(UserError, match=r'status 404: .*endpoint.base_url'):
    Endpoint(missing).ask(question)

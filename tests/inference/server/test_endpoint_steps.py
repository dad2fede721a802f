"""Tests steps from a server, which is asked to stop after each of them."""

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax import search
from prm_jax.inference.protocols import Request
from prm_jax.inference.server.endpoint import Endpoint, EndpointConfig
from prm_jax.runtime.errors import UserError
from prm_jax.search.budget import Budget
from prm_jax.search.method import Task
from tests.search.scripted import noise
from tests.shared.faulty_server import reply
from tests.shared.step_server import DEPTH, STYLES, answer, step, tokens_of

TASK = Task('sum', '3 + 4?', '7')
FIRST = Request('3 + 4?', (), 'sum', 1, max_steps=1)


def endpoint_for(server, cache=None, **changes):
  values = {
    'base_url': server.url,
    'model': 'parrot',
    'system': '',
    'api': 'completions',
    'continues': True,
  }
  return Endpoint(EndpointConfig(**values | changes), cache)


def searched(server, method='beam', options=None, **changes):
  """What a search finds, and what it pays."""
  options = options or {'samples': 4, 'width': 2}
  endpoint = endpoint_for(server, **changes)
  how = search.RunConfig(budget=Budget(samples=40))
  [found] = search.run([TASK], endpoint, noise(3), method, options, how=how)
  assert not found.failed, found.failed
  assert found.ledger['tokens'] == endpoint.usage.tokens
  assert found.ledger['prompt_tokens'] == endpoint.usage.prompt_tokens
  return found, endpoint.usage


@pytest.mark.parametrize('gap', ['\n', '\n\n'], ids=['lines', 'paragraphs'])
@pytest.mark.parametrize('api', ['completions', 'chat'])
@pytest.mark.parametrize('style', STYLES)
def test_a_stepwise_search_costs_less_and_finds_the_same(
  server, style, api, gap
):
  server.fault = answer(style, gap)
  whole, before = searched(server, api=api, send_stop=False)
  asked = len(server.asked)
  assert not any('stop' in body for body in server.asked)
  found, after = searched(server, api=api)
  # The same tree of the same steps, whose chains ended at the same places.
  assert found.chosen.steps == whole.chosen.steps
  assert len(found.chosen.steps) == DEPTH
  assert found.chosen.meta['search']['ended']
  for name in ('samples', 'rounds', 'dead', 'lost'):
    assert found.ledger[name] == whole.ledger[name]
  assert server.asked[asked]['stop'] == ['\n']
  if style == 'deaf':
    assert after.tokens <= before.tokens * 1.1
  else:
    assert after.tokens < before.tokens * 0.6


@pytest.mark.parametrize('style', STYLES[:4])
def test_a_step_costs_one_call_and_its_own_tokens(server, style):
  server.fault = answer(style)
  [[first]] = endpoint_for(server).complete([FIRST])
  assert len(server.asked) == 1
  assert first.steps == (step(0, server.asked[0]['seed']),)
  assert not first.finished
  # The line's end is written, too.
  assert first.tokens == len(tokens_of(f'{first.steps[0]}\n'))
  steps = tuple(step(n, 0) for n in range(DEPTH - 1))
  [[last]] = endpoint_for(server).complete([FIRST._replace(steps=steps)])
  assert last.steps[0].startswith('####')
  assert last.finished


def test_two_more_tokens_tell_a_step_from_the_end(server):
  """The server does not tell what ended its text."""
  server.fault = answer('openai')
  [[first]] = endpoint_for(server, max_tokens=64).complete([FIRST])
  asked, peek = server.asked
  assert peek['prompt'] == asked['prompt'] + first.steps[0]
  assert 'stop' not in peek
  assert (asked['max_tokens'], peek['max_tokens']) == (64, 2)
  assert not first.finished
  assert first.tokens == len(tokens_of(f'{first.steps[0]}\n')) + 2
  # Where the limit has another name, it has it there, too.
  extra = {'max_completion_tokens': 64}
  named = endpoint_for(server, max_tokens=0, extra=extra)
  assert str(named.complete([FIRST])) == str([[first]])
  assert server.asked[-1]['max_completion_tokens'] == 2
  assert 'max_tokens' not in server.asked[-1]
  # The chain's end, which has no separator after it.
  steps = tuple(step(n, 0) for n in range(DEPTH - 1))
  [[last]] = endpoint_for(server).complete([FIRST._replace(steps=steps)])
  assert last.finished
  # Asked after its end, the model adds no step: that is an end, too.
  steps = tuple(step(n, 0) for n in range(DEPTH))
  [[end]] = endpoint_for(server).complete([FIRST._replace(steps=steps)])
  assert end[:2] == ((), True)


@pytest.mark.parametrize('style', STYLES)
@pytest.mark.parametrize('most', [1, 2, 3, 9])
def test_max_steps_is_reached_on_every_server(server, style, most):
  server.fault = answer(style, '\n\n')
  request = FIRST._replace(max_steps=most)
  [[some]] = endpoint_for(server).complete([request])
  seed = server.asked[0]['seed']
  steps = tuple(step(n, seed) for n in range(DEPTH))
  assert some.steps == steps[:most]
  assert some.finished == (most > DEPTH)


@pytest.mark.parametrize('method', ['best_of_n', 'majority', 'refine'])
def test_whole_chains_are_not_stopped(server, method):
  server.fault = answer('openai')
  options = {'samples': 3}
  found, usage = searched(server, method, options)
  assert not any('stop' in body for body in server.asked)
  assert usage.calls == found.ledger['samples']
  assert len(found.chosen.steps) == DEPTH


def test_rollouts_of_a_search_are_not_stopped(server):
  """MCTS asks for steps, and for rollouts to the chain's end."""
  server.fault = answer('vllm')
  options = {'simulations': 4, 'width': 2, 'rollouts': 1}
  searched(server, 'mcts', options)
  stopped = ['stop' in body for body in server.asked]
  assert any(stopped) and not all(stopped)


def test_a_server_that_refuses_stops_is_sent_none(server):
  server.fault = lambda body, _: 400 if 'stop' in body else None
  with pytest.raises(UserError, match='status 400'):
    endpoint_for(server).complete([FIRST])
  [[first]] = endpoint_for(server, send_stop=False).complete([FIRST])
  assert len(first.steps) == 1


def test_a_chat_that_does_not_continue_is_not_stopped(server):
  """Its first step can be asked for, but nothing that follows a step."""
  server.fault = answer('openai')
  fresh = endpoint_for(server, api='chat', continues=False)
  [[first]] = fresh.complete([FIRST])
  assert len(first.steps) == 1 and not first.finished
  assert [list(body).count('stop') for body in server.asked] == [0]


@pytest.mark.parametrize('style', STYLES)
def test_templates_that_strip_line_ends_still_get_steps(server, style):
  """The model begins with the line end that the template stripped."""
  server.fault = answer(style, trims=True)
  found, _ = searched(server, api='chat')
  assert len(found.chosen.steps) == DEPTH
  assert found.chosen.meta['search']['ended']


@pytest.mark.parametrize('style', STYLES)
def test_a_step_cut_off_by_a_limit_is_dropped(server, style):
  server.fault = answer(style)
  [[cut]] = endpoint_for(server, max_tokens=3).complete([FIRST])
  assert cut[:3] == ((), False, 3)


def test_max_tokens_limits_all_calls_together(server):
  """A completion of several steps takes several calls."""
  server.fault = answer('vllm')
  one = len(tokens_of(step(0, 0))) + 1
  request = FIRST._replace(max_steps=4)
  [[cut]] = endpoint_for(server, max_tokens=2 * one + 3).complete([request])
  assert len(cut.steps) == 2 and not cut.finished
  assert cut.tokens == 2 * one + 3
  assert [body['max_tokens'] for body in server.asked] == [
    2 * one + 3,
    one + 3,
    3,
  ]


def test_a_model_that_writes_only_blanks_is_ended(server):
  """After two blank lines no stop is sent, so that max_tokens ends it."""
  server.fault = lambda body, _: reply(
    *(('', 'stop_sequence') if 'stop' in body else ('\n' * 9, 'length'))
  )
  [[none]] = endpoint_for(server).complete([FIRST])
  assert none[:2] == ((), False)
  assert ['stop' in body for body in server.asked] == [True, True, False]


def test_a_completion_with_a_failed_call_is_lost(server):
  healthy = answer('openai')
  server.fault = lambda body, before: (
    healthy(body, before) if 'stop' in body else 400
  )
  endpoint = endpoint_for(server)
  assert endpoint.complete([FIRST]) == [[None]]
  # What was paid for before it failed is counted.
  assert endpoint.usage.tokens > 0


@pytest.mark.parametrize('style', ['vllm', 'openai'])
def test_steps_that_are_on_disk_are_not_paid_for_again(server, tmp_path, style):
  server.fault = answer(style)
  several = [FIRST._replace(samples=3, max_steps=2)]
  first = endpoint_for(server, tmp_path).complete(several)
  asked = len(server.asked)
  again = endpoint_for(server, tmp_path)
  assert str(again.complete(several)) == str(first)
  assert len(server.asked) == asked == again.usage.cached


def test_the_server_is_asked_to_stop_at_the_separator(server):
  server.fault = answer('vllm')
  endpoint_for(server, separator='\n\n').complete([FIRST])
  assert server.asked[0]['stop'] == ['\n\n']

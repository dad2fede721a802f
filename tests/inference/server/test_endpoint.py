"""Tests the requests to a server, and what is made of its replies."""

import asyncio
import dataclasses
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip('openai', reason='openai is not installed')

from configs import label_math, sample_math, search_math
from prm_jax.data.verify.sandbox import Limits
from prm_jax.inference.protocols import (
  Choice,
  Question,
  Reply,
  Request,
  sample_seed,
)
from prm_jax.inference.server.endpoint import (
  Endpoint,
  EndpointConfig,
  split_steps,
)
from prm_jax.jobs.policies import open_policy
from prm_jax.jobs.settings.items import SampleSettings
from prm_jax.jobs.settings.policies import EndpointSection, PolicyConfig
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from tests.shared.faulty_server import echo, reply

SUM = Request('3 + 4?', (), 'sum', 2)


def config_for(server, **changes):
  values = {'base_url': server.url, 'model': 'parrot'}
  return EndpointConfig(**values | changes)


def test_completions_come_in_the_order_of_the_requests(server):
  server.pause = 0.01
  endpoint = Endpoint(config_for(server, prompt='Q: {problem}', seed=3))
  requests = [Request(f'{n} + {n}?', (), f'key{n}', n % 3) for n in range(9)]
  answers = endpoint.complete(requests)
  for request, samples in zip(requests, answers, strict=True):
    assert len(samples) == request.samples
    for number, completion in enumerate(samples):
      seed = sample_seed(3, request.key, number) >> 33
      said = f"I read 'Q: {request.problem}'"
      assert completion.steps == (said, f'#### {seed}')
      assert completion.finished
      assert (completion.tokens, completion.prompt_tokens) == (5, 7)
      assert math.isnan(completion.logprob)
  assert len({body['seed'] for body in server.asked}) == 9


def test_the_fields_of_a_chat(server):
  config = config_for(
    server,
    temperature=0.5,
    top_p=0.9,
    max_tokens=64,
    extra={'top_k': 20},
    extra_after_steps={'continue_final_message': True},
  )
  request = Request('3 + 4?', ('3 + 4 = 7', 'so 7'), 'sum', 1, first=5)
  Endpoint(config).complete([request])
  assert server.asked == [
    {
      'model': 'parrot',
      'messages': [
        {'role': 'system', 'content': config.system},
        {'role': 'user', 'content': '3 + 4?'},
        {'role': 'assistant', 'content': '3 + 4 = 7\nso 7\n'},
      ],
      'temperature': 0.5,
      'top_p': 0.9,
      'max_tokens': 64,
      'top_k': 20,
      'continue_final_message': True,
      'seed': sample_seed(0, 'sum', 5) >> 33,
    }
  ]
  assert 0 <= server.asked[0]['seed'] < 2**31
  Endpoint(config).complete([request._replace(steps=())])
  assert len(server.asked[1]['messages']) == 2
  assert 'continue_final_message' not in server.asked[1]


def test_a_chat_that_may_not_continue_gets_no_steps(server):
  request = Request('3 + 4?', ('3 + 4 = 7',), 'sum', 1)
  with pytest.raises(UserError, match=r"api='chat' may begin anew.*completion"):
    Endpoint(config_for(server)).complete([SUM, request])
  assert not server.asked
  for change in ({'continues': True}, {'api': 'completions'}):
    [[done]] = Endpoint(config_for(server, **change)).complete([request])
    assert done.finished


def with_likely(api, tokens):
  """Returns a reply with log-probabilities, in the form of an API."""
  answer = reply('yes', 'length')
  listed = [{'token': t, 'logprob': p} for t, p in tokens]
  answer['choices'][0]['logprobs'] = (
    {'content': [{'token': 'yes', 'logprob': -0.1, 'top_logprobs': listed}]}
    if api == 'chat'
    else {'tokens': ['yes'], 'top_logprobs': [dict(tokens)]}
  )
  return answer


CHOICE = Choice('right?', ('so it is',), 'Is it ?', (' yes', ' no'))
# 19 of the 20 tokens that a server of chats lists.
OTHERS = [(f'word {i}', -5 - i / 10) for i in range(19)]


@pytest.mark.parametrize('api', ['chat', 'completions'])
@pytest.mark.parametrize(
  ('tokens', 'logprobs'),
  [
    # Several tokens may begin an option; others mean neither.
    (
      [(' yes', -1.0), ('Yes', -2.0), (' no', -3.0), ('maybe', -0.5)],
      (math.log(math.exp(-1) + math.exp(-2)), -3.0),
    ),
    ([(' ye', -1.0), ('n', -3.0)], (-1.0, -3.0)),
    # What is not listed is at most as likely as the last that is.
    ([(' yes', -0.1), ('.', -4.0)], (-0.1, -4.0)),
    ([('yes', -0.1), *OTHERS], (-0.1, -6.8)),
    # An option that is the last of the list may be less likely than the other.
    ([('yes', -0.01)], ()),
    ([('The', -0.1), ('yes', -3.0)], ()),
    ([*OTHERS, ('yes', -7.0)], ()),
    ([('yes', -0.7), ('no', -0.7)], (-0.7, -0.7)),
    ([('.', -0.1), ('', -4.0)], ()),
    ([('yes', None), ('no', 'often'), ('yes ', float('nan'))], ()),
    ([('yes', 3.0), ('no', -1.0), ('.', -2.0)], (-2.0, -1.0)),
    ([], ()),
  ],
)
def test_likely_words_become_options(server, api, tokens, logprobs, tmp_path):
  server.fault = lambda body, before: with_likely(api, tokens)
  config = config_for(server, api=api, continues=True, max_tokens=50)
  for _ in range(2):  # the second is read from the disk
    [chosen] = Endpoint(config, tmp_path / 'cache').choose([CHOICE])
    assert chosen.logprobs == pytest.approx(logprobs)
    assert chosen.tokens == 12
  [body] = server.asked
  assert body['max_tokens'] == 1
  if api == 'chat':
    assert (body['logprobs'], body['top_logprobs']) == (True, 20)
    assert body['messages'][-1]['content'] == 'so it is\nIs it ?'
  else:
    assert body['logprobs'] == 5
    assert body['prompt'].endswith('so it is\nIs it ?')


def test_options_are_asked_for_at_temperature_1(server):
  """Some servers tell log-probabilities after what changes the draw."""
  server.fault = lambda body, before: with_likely('chat', [(' yes', -1.0)])
  config = config_for(
    server,
    continues=True,
    temperature=0.3,
    top_p=0.5,
    extra={'top_k': 20, 'min_p': 0.1, 'priority': 3},
  )
  Endpoint(config).choose([CHOICE])
  [body] = server.asked
  assert body['temperature'] == 1.0
  assert not {'top_p', 'top_k', 'min_p'} & body.keys()
  assert body['priority'] == 3


def test_what_options_share_is_sent(server):
  """Of a box, a server's next token is the word within it."""
  server.fault = lambda body, before: with_likely(
    'chat', [('Yes', -0.5), ('No', -1.0)]
  )
  choice = CHOICE._replace(
    lead='<output>', options=(r' \boxed{Yes}', r' \boxed{No}')
  )
  [chosen] = Endpoint(config_for(server, continues=True)).choose([choice])
  assert chosen.logprobs == pytest.approx((-0.5, -1.0))
  assert server.asked[0]['messages'][-1]['content'].endswith(
    r'<output> \boxed{'
  )


def test_a_server_that_fails_chooses_nothing(server):
  server.fault = lambda body, before: 400
  config = config_for(server, continues=True, attempts=1)
  assert config.send_stop
  server.fault = lambda body, before: (
    400 if 'right?' in str(body) else with_likely('chat', [])
  )
  [chosen] = Endpoint(config).choose([CHOICE])
  assert chosen.logprobs == ()


def test_configs_have_every_setting():
  """The command line can set only the fields that a config has."""
  fields = dataclasses.asdict(EndpointConfig('http://localhost/v1', 'm'))
  del fields['seed']  # the job's own
  fields |= {'base_url': '', 'model': '', 'extra': '{}'}
  fields['extra_after_steps'] = '{}'
  for module in (label_math, sample_math, search_math):
    config = module.get_config()
    assert config.policy.endpoint.to_dict() == fields
  limits = label_math.get_config().verifier.limits.to_dict()
  assert limits == dataclasses.asdict(Limits())


def test_extra_fields_are_json_on_the_command_line(server, tmp_path):
  section = EndpointSection(
    base_url=server.url,
    model='parrot',
    extra='{"top_k": 20}',
    extra_after_steps='{"continue_final_message": true}',
  )
  policy = PolicyConfig(kind='endpoint', endpoint=section)
  settings = SampleSettings(policy=policy)
  request = Request('3 + 4?', ('3 + 4 = 7',), 'sum', 1)
  open_policy(settings, Workdir(tmp_path, {})).complete([request])
  assert server.asked[0]['top_k'] == 20
  assert server.asked[0]['continue_final_message'] is True


def test_the_fields_of_the_completions_api(server):
  config = config_for(
    server,
    api='completions',
    system='Think.',
    prompt='Q: {problem}',
    separator='\n\n',
    max_tokens=0,
    send_seed=False,
  )
  request = SUM._replace(steps=('3 + 4 = 7',), samples=1)
  [[completion]] = Endpoint(config).complete([request])
  assert server.asked == [
    {
      'model': 'parrot',
      'prompt': 'Think.\n\nQ: 3 + 4?\n\n3 + 4 = 7\n\n',
      'temperature': 1.0,
    }
  ]
  assert completion.steps == (echo(server.asked[0]).split('\n')[0], '#### None')
  bare = config_for(server, api='completions', system='')
  Endpoint(bare).complete([SUM._replace(samples=1)])
  assert server.asked[1]['prompt'] == '3 + 4?\n'


def test_questions_are_sent_alone(server):
  endpoint = Endpoint(config_for(server))
  replies = endpoint.ask([Question('Right?', 'q', 1), Question('No?', 'r', 1)])
  texts = [echo(body) for body in server.asked]
  assert sorted(text for [(text, *_)] in replies) == sorted(texts)
  assert isinstance(replies[0][0], Reply)
  assert "'Right?'" in replies[0][0].text
  assert replies[0][0][1:] == (5, 7)
  for body in server.asked:
    assert [message['role'] for message in body['messages']] == ['user']


def test_steps_of_cut_off_replies(server):
  texts = {
    'a': ('one\ntwo\nthr', 'length', (('one', 'two'), False)),
    'b': ('no separator', 'stop', (('no separator',), True)),
    'c': ('no separator', 'length', ((), False)),
    'd': ('  \n\n \n', 'stop', ((), True)),
    'e': ('one\ntwo\n', 'length', (('one', 'two'), False)),
    'f': ('one', 'content_filter', ((), False)),
    'g': (None, 'length', ((), False)),
    'i': ('one\ntwo', 'eos_token', (('one', 'two'), True)),
    'h': ('half \ud83d of one', 'stop', (('half ? of one',), True)),
  }
  server.fault = lambda body, _: reply(
    *texts[body['messages'][-1]['content']][:2]
  )
  endpoint = Endpoint(config_for(server))
  for problem, (_, _, expected) in texts.items():
    [[completion]] = endpoint.complete([Request(problem, (), problem, 1)])
    assert completion[:2] == expected, problem


@pytest.mark.parametrize(
  ('finished', 'max_steps', 'expected'),
  [
    (True, 0, (('a', 'b', 'c'), True)),
    (True, 3, (('a', 'b', 'c'), True)),
    (True, 2, (('a', 'b'), False)),
    (False, 0, (('a', 'b'), False)),
    (False, 2, (('a', 'b'), False)),
    (False, 1, (('a',), False)),
  ],
)
def test_max_steps(finished, max_steps, expected):
  assert split_steps('a\n\n b\nc', '\n', finished, max_steps) == expected


@given(st.text('ab \n;'), st.sampled_from(['\n', '\n\n', '; ']), st.booleans())
def test_steps_are_whole_and_never_blank(text, separator, finished):
  steps, whole = split_steps(text, separator, finished)
  assert whole == finished
  assert all(step == step.strip() and step for step in steps)
  assert not any(separator in step for step in steps)
  kept = text if finished else text.rpartition(separator)[0]
  # Only blanks and separators are lost.
  letters = str.maketrans('', '', ' \n;')
  assert ''.join(steps).translate(letters) == kept.translate(letters)


def test_an_endpoint_works_within_a_running_loop(server):
  """Cells of a notebook run inside an event loop."""
  endpoint = Endpoint(config_for(server))

  async def cell():
    return endpoint.complete([SUM])

  [first] = asyncio.run(cell())
  assert [len(completion.steps) for completion in first] == [2, 2]


def test_the_name_holds_all_that_changes_completions(server):
  name = Endpoint(config_for(server)).name
  assert name == Endpoint(config_for(server)).name
  assert name.startswith('parrot chat ')
  same = {'base_url': 'http://elsewhere/v1', 'concurrency': 1, 'attempts': 2}
  # A stop changes only where a text is cut.
  same |= {'max_reply_bytes': 2**20, 'send_stop': False}
  assert Endpoint(config_for(server, **same)).name == name
  for change in (
    {'temperature': 0.5},
    {'seed': 1},
    {'extra': {'top_k': 1}},
    {'prompt': '{problem}!'},
    {'model': 'rook'},
    {'api': 'completions'},
  ):
    assert Endpoint(config_for(server, **change)).name != name, change


@pytest.mark.parametrize(
  ('change', 'told'),
  [
    ({'base_url': 'localhost:80'}, "'localhost:80': expected http"),
    ({'model': ''}, "'': expected the server's name"),
    ({'api': 'tex'}, "'tex': expected one of chat, completions"),
    ({'prompt': 'Q'}, "'Q': expected '{problem}' in it"),
    ({'separator': ''}, "'': expected text"),
    ({'concurrency': 0}, '0: expected >= 1'),
    ({'attempts': 0}, '0: expected >= 1'),
    ({'max_reply_bytes': 0}, '0: expected >= 1'),
    ({'timeout': 0}, '0: expected a number in (0, inf)'),
    ({'timeout': math.nan}, 'nan: expected a number in (0, inf)'),
    ({'temperature': -1}, '-1: expected a number in [0, 100]'),
    ({'top_p': 0}, '0: expected a number in (0, 1]'),
    ({'max_tokens': -1}, '-1: expected a number in [0, 10000000]'),
    ({'extra': {'stream': True}}, "{'stream': True}: expected JSON types, and"),
    ({'extra': {'top_k': {1}}}, "{'top_k': {1}}: expected JSON types, and"),
    ({'extra_after_steps': {'n': 2}}, "{'n': 2}: expected JSON types, and"),
  ],
)
def test_values_out_of_range_are_refused(change, told):
  values = {'base_url': 'http://localhost/v1', 'model': 'm'} | change
  [name] = change
  with pytest.raises(UserError) as error:
    EndpointConfig(**values)
  assert str(error.value).startswith(f'{name}={told}')


@pytest.mark.parametrize('package', ['openai', 'diskcache'])
def test_a_missing_package_is_named(monkeypatch, package):
  monkeypatch.setitem(sys.modules, package, None)
  for name in ('remote', 'attempts', 'reply_cache'):
    monkeypatch.delitem(
      sys.modules, f'prm_jax.inference.server.{name}', raising=False
    )
  config = EndpointConfig(base_url='http://localhost/v1', model='m')
  with pytest.raises(UserError, match=f"package {package}: pip install 'op"):
    Endpoint(config)


def test_a_missing_key_is_named(monkeypatch):
  monkeypatch.delenv('PARROT_KEY', raising=False)
  config = EndpointConfig('http://localhost/v1', 'm', 'PARROT_KEY')
  with pytest.raises(UserError, match=r'export PARROT_KEY=KEY'):
    Endpoint(config)


def test_a_cache_that_cannot_be_made_is_named(tmp_path):
  (tmp_path / 'file').touch()
  config = EndpointConfig('http://localhost/v1', 'm')
  with pytest.raises(UserError, match='replies cannot be kept here'):
    Endpoint(config, tmp_path / 'file' / 'cache')
  with pytest.raises(UserError, match='must be on a disk'):
    Endpoint(config, 'gs://bucket/cache')

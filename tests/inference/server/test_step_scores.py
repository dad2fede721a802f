"""A PRM at a server: the calls, what they cost, and servers that fail."""

import dataclasses
import json
import math

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.protocols import Scoring
from prm_jax.inference.server import usage
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.inference.server.step_scores import SHORT, RemotePrm
from prm_jax.runtime.errors import UserError

# Of three problems, not one after another; the first step is a chain's number.
CHAINS = [Scoring(f'p{n % 3}', (str(n),) * (1 + n % 2)) for n in range(10)]
REFUSAL = '{"error": {"message": "too long", "code": 400}}'


def number(first, step):
  """A score that says which chain and step it is of."""
  return (int(first) + step / 10) / 20


def steps_reply(body):
  data = [
    {
      'index': n,
      'scores': [
        number(chain['steps'][0], step) for step in range(len(chain['steps']))
      ],
    }
    for n, chain in enumerate(body['chains'])
  ]
  return {'data': data, 'usage': {'tokens': 7 * len(data), 'cached_tokens': 1}}


def pooling_reply(body):
  *steps, _ = body['messages'][-1]['content'].split('<extra_0>')
  rows = [
    [1 - number(steps[0], step), number(steps[0], step)]
    for step in range(len(steps))
  ]
  return {'data': [{'data': rows}], 'usage': {'prompt_tokens': 7}}


def prm(server, log=None, **changes):
  config = PrmServerConfig(base_url=server.url, chains=4, model='m')
  return RemotePrm(dataclasses.replace(config, **changes), log)


def wanted(chain):
  steps = range(len(chain.steps))
  return pytest.approx([number(chain.steps[0], step) for step in steps])


def test_each_chain_gets_its_own_scores(server, tmp_path):
  server.fault = lambda body, _: steps_reply(body)
  scorer = prm(server, tmp_path / 'log.jsonl')
  for chain, [scored] in zip(CHAINS, scorer.score(CHAINS), strict=True):
    assert list(scored.scores) == wanted(chain)
  assert sorted(len(body['chains']) for body in server.asked) == [3, 3, 4]
  for body in server.asked:
    assert len({chain['problem'] for chain in body['chains']}) == 1
  assert len({head['X-Problem'] for head in server.heads}) == 3
  assert {body['model'] for body in server.asked} == {'m'}
  assert scorer.usage.calls == 3 and scorer.usage.prompt_tokens == 70
  assert usage.read(tmp_path) == scorer.usage


def test_vllm_is_asked_for_one_conversation_at_a_time(server):
  server.fault = lambda body, _: pooling_reply(body)
  found = prm(server, api='pooling').score(CHAINS)
  for chain, [scored] in zip(CHAINS, found, strict=True):
    assert list(scored.scores) == wanted(chain)
    assert scored.tokens == 7
  roles = [turn['role'] for turn in server.asked[0]['messages']]
  assert roles == ['system', 'user', 'assistant']


@pytest.mark.parametrize(
  ('rows', 'scores'),
  [
    ([[0.25, 0.75], [0.9, 0.1]], (0.75, 0.1)),
    ([[0.2508, 0.7461], [1, 0]], (0.7461, 0.0)),  # bfloat16
    ([0.75, 0.1], (0.75, 0.1)),
    # Logits, of which the second of each may be read as a probability.
    ([[-1.9, 0.31], [2.2, 0.9]], None),
    ([[0.25, 0.75], [0.9]], None),
    ([[0.25, 0.75], [0.1, 0.2, 0.7]], None),
    ([[0.25, 0.75], [True, False]], None),
  ],
)
def test_a_row_of_vllm_holds_two_probabilities(server, rows, scores):
  server.fault = lambda body, _: {
    'data': [{'data': rows}],
    'usage': {'prompt_tokens': 7},
  }
  scorer = prm(server, api='pooling')
  asked = [Scoring('p', ('1', '2'))]
  if scores:
    [[found]] = scorer.score(asked)
    assert found.scores == scores
  else:
    with pytest.raises(UserError, match='expected a probability for each'):
      scorer.score(asked)


def test_a_separator_in_a_text_spoils_that_chain_alone(server):
  """The server would score other steps than there are."""
  server.fault = lambda body, _: pooling_reply(body)
  odd = [
    Scoring('p', ('1', 'write <extra_0> here')),
    Scoring('what is <extra_0>?', ('1',)),
  ]
  found = prm(server, api='pooling').score([CHAINS[0], *odd, CHAINS[1]])
  scores = [list(scored.scores) for [scored] in found]
  assert scores == [wanted(CHAINS[0]), [], [], wanted(CHAINS[1])]
  assert len(server.asked) == 2


PASSING = {
  **{status: f'status {status}' for status in (500, 503, 429)},
  **dict.fromkeys(('silence', 'cut', 'reset', 'garbage'), 'connection'),
  **dict.fromkeys(('cut unseen', 'short length'), 'malformed JSON'),
  (200, (), '<html>502 Bad Gateway</html>'): 'malformed JSON',
  (200, (), '[' * 100_000): 'malformed JSON',
}


@pytest.mark.parametrize('fault', PASSING, ids=lambda fault: str(fault)[:30])
def test_a_passing_fault_is_retried(server, fault):
  server.answer = steps_reply
  server.fault = lambda body, before: fault if before < 2 else steps_reply(body)
  scorer = prm(server)
  [[scored]] = scorer.score(CHAINS[:1])
  assert list(scored.scores) == wanted(CHAINS[0])
  assert scorer.usage.calls == 3
  assert scorer.usage.retried == {PASSING[fault]: 2}


@pytest.mark.parametrize(
  ('fault', 'message'),
  [
    (503, 'status 503: .*see to the server'),
    ('silence', '2 attempts failed, the last with: connection; see to the'),
    ((401, {}, '{}'), 'see to the key'),
    ((404, {}, '{}'), 'see to endpoint.base_url'),
    ({'data': []}, 'expected a probability for each step'),
    ({'data': [{'scores': [2.0]}], 'usage': {'tokens': 1}}, 'expected a prob'),
    ({'data': [{'scores': ['a']}], 'usage': {'tokens': 1}}, 'expected a prob'),
    ({'data': [{'scores': []}], 'usage': {'tokens': 1}}, 'expected a prob'),
    ({'data': [{'scores': [True]}], 'usage': {'tokens': 1}}, 'expected a prob'),
    (
      {'data': [{'index': 1, 'scores': [0.5]}], 'usage': {'tokens': 1}},
      'expected a prob',
    ),
    ((307, {'Location': '/v1/steps'}, '{}'), 'see to endpoint.base_url'),
  ],
  ids=str,
)
def test_a_lasting_fault_ends_the_job_with_one_line(server, fault, message):
  server.fault = lambda body, _: fault
  scorer = prm(server, attempts=2)
  with pytest.raises(UserError, match=message) as error:
    scorer.score(CHAINS[:1])
  assert '\n' not in str(error.value)
  assert scorer.usage.calls == len(server.asked)
  assert sum(scorer.usage.failed.values()) == 1


def test_a_slow_server_is_given_up(server):
  server.fault, server.pause = lambda body, _: steps_reply(body), 3.0
  with pytest.raises(UserError, match=r'2 attempts failed, .* timeout'):
    prm(server, attempts=2, timeout=0.5).score(CHAINS[:1])


def test_a_chain_that_is_refused_has_no_scores_and_others_have_theirs(server):
  def fault(body, _):
    if any(chain['steps'][0] == '2' for chain in body['chains']):
      return (400, {}, REFUSAL)
    if any(chain['steps'][0] == '4' for chain in body['chains']):
      return (422, {}, REFUSAL)
    return steps_reply(body)

  server.fault = fault
  scorer = prm(server)
  for n, [scored] in enumerate(scorer.score(CHAINS)):
    if n == 2:
      assert scored.scores == ()
    elif n == 4:
      assert all(map(math.isnan, scored.scores))
      assert len(scored.scores) == len(CHAINS[4].steps)
    else:
      assert list(scored.scores) == wanted(CHAINS[n])
  assert scorer.usage.failed == {'status 400': 2, 'status 422': 2}


def test_a_server_that_refuses_everything_after_an_answer_ends_the_job(server):
  """Whether all are refused shows at a chain that was scored before."""
  answers, long = {0}, [Scoring('p', (str(n),)) for n in range(20)]

  def fault(body, _):
    if {int(chain['steps'][0]) for chain in body['chains']} <= answers:
      return steps_reply(body)
    return (400, {}, REFUSAL)

  server.fault = fault
  scorer = prm(server, chains=1, concurrency=1)
  # Nineteen chains are refused, and the first is scored whenever it is asked.
  found = scorer.score(long)
  assert [bool(scored.scores) for [scored] in found] == [True] + [False] * 19
  answers.clear()
  with pytest.raises(UserError, match=r'status 400: .*; see to endpoint'):
    scorer.score(long)


def test_a_key_comes_from_the_environment(server, monkeypatch):
  server.fault = lambda body, _: steps_reply(body)
  with pytest.raises(UserError, match='not set in the environment'):
    prm(server, api_key_variable='PRM_KEY')
  monkeypatch.setenv('PRM_KEY', 'secret')
  scorer = prm(server, api_key_variable='PRM_KEY')
  scorer.score(CHAINS[:1])
  assert server.heads[-1]['Authorization'] == 'Bearer secret'
  # Servers may quote it.
  server.fault = lambda body, _: (401, {}, '{"error": "who is secret?"}')
  with pytest.raises(UserError, match=r'who is \*\*\*'):
    scorer.score(CHAINS[:1])


@pytest.mark.parametrize('count', [-7, 10**400])
def test_an_absurd_count_of_tokens_is_ignored(server, count):
  reply = {'data': [{'scores': [0.5]}], 'usage': {'tokens': count}}
  server.fault = lambda body, _: reply
  scorer = prm(server)
  assert scorer.score([Scoring('p', ('a',))])[0][0].tokens == 0
  assert scorer.usage.prompt_tokens == 0


def test_a_reply_that_is_too_large_is_named_in_the_usage(server):
  server.answer = steps_reply
  server.fault = lambda body, _: 'flood'
  scorer = prm(server, max_reply_bytes=1000)
  with pytest.raises(UserError, match='a reply above 1,000 bytes'):
    scorer.score(CHAINS[:1])
  assert scorer.usage.failed == {'a reply above 1,000 bytes': 1}


def test_a_server_that_goes_away_while_it_is_tried_ends_the_job(server):
  """Eight refusals in a row, then nothing more."""
  server.answer = steps_reply

  def fault(body, _):
    if len(server.asked) == 1:
      return steps_reply(body)
    return (400, {}, REFUSAL) if len(server.asked) < 10 else 'reset'

  server.fault = fault
  scorer = prm(server, chains=1, concurrency=1, attempts=1)
  with pytest.raises(UserError, match=r'1 attempts failed, .*see to the'):
    scorer.score([Scoring('p', (str(n),)) for n in range(20)])


@pytest.mark.parametrize('count', [3, 10])
@pytest.mark.parametrize('answers', [True, False])
def test_a_server_that_refuses_the_first_chains_is_asked_a_short_one(
  server, answers, count
):
  def fault(body, _):
    [chain] = body['chains']
    if answers and chain['problem'] == SHORT.problem:
      return {'data': [{'scores': [0.5]}], 'usage': {'tokens': 1}}
    return (400, {}, REFUSAL)

  server.fault = fault
  scorer = prm(server, chains=1, concurrency=1)
  long = [Scoring('p', (str(n),)) for n in range(count)]
  if answers:
    assert [scored.scores for [scored] in scorer.score(long)] == [()] * count
  else:
    with pytest.raises(UserError, match=r'status 400: .*; see to endpoint'):
      scorer.score(long)


def test_our_server_says_which_chain_it_cannot_read(server):
  """So none is tried again, be they ever so many."""
  said = '{"error": {"message": "no word", "code": 400, "param": "chains[0]"}}'
  server.fault = lambda body, _: (400, {}, said)
  found = prm(server, chains=1).score(CHAINS)
  assert [scored.scores for [scored] in found] == [()] * len(CHAINS)
  assert len(server.asked) == len(CHAINS)


def test_a_short_chain_that_the_prm_has_no_words_for_ends_no_job(server):
  """As of a PRM with the words of arithmetic, which gives its own chain NaN."""
  said = "'What' is not a word of the arithmetic tokenizer"
  unknown = {'error': {'message': said, 'code': 400, 'param': 'chains[0]'}}
  broken = {'error': {'message': 'not finite', 'code': 422, 'param': None}}

  def fault(body, _):
    [chain] = body['chains']
    if chain['problem'] == SHORT.problem:
      return (400, {}, json.dumps(unknown))
    return (422, {}, json.dumps(broken))

  server.fault = fault
  [[scored]] = prm(server).score([Scoring('mod 10 : 1 + 1', ('1 + 1 = 2',))])
  assert len(scored.scores) == 1 and math.isnan(scored.scores[0])
  assert len(server.asked) == 2


@pytest.mark.parametrize(
  ('about', 'name'),
  [
    ({'id': 'a', 'fingerprint': 'f1'}, 'a (f1) at a server '),
    ({'id': 'a', 'root': '/models/a'}, 'a (/models/a) at a server '),
    ({'id': 'a', 'root': 'a'}, 'a at a server '),
  ],
)
def test_a_server_says_which_prm_it_has(server, about, name):
  server.models = {'object': 'list', 'data': [about, {'id': 'b'}]}
  assert prm(server).name.startswith('m at a server ')
  server.fault = lambda body, _: steps_reply(body)
  scorer = prm(server, model='')
  assert scorer.name.startswith(name)
  # It is asked for, as a server of two answers no other call.
  scorer.score(CHAINS[:1])
  assert server.asked[-1]['model'] == 'a'


def test_the_name_holds_all_that_changes_scores(server):
  same = {'base_url': 'http://elsewhere/v1', 'chains': 1, 'attempts': 2}
  assert prm(server, **same).name == prm(server).name
  for change in (
    {'model': 'n'},
    {'api': 'pooling'},
    {'system': 'Think.'},
    {'separator': '<step>'},
  ):
    assert prm(server, **change).name != prm(server).name, change


@pytest.mark.parametrize('models', [{'data': []}, {'data': [{}]}, [], 3])
def test_a_server_that_does_not_say_it_is_one_line(server, models):
  server.models = models
  with pytest.raises(UserError, match=r'does not say which PRM .*; set endp'):
    prm(server, model='')

"""Tests refusals: some fail one item, others stop the job."""

import json

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.protocols import Request
from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage
from prm_jax.runtime.errors import UserError
from tests.shared.parrot import BAD, GOOD, endpoint_for, problem_of

# Refusals of one over-long or forbidden text, in the words of many servers.
OVER_LONG = {
  'vllm': (
    400,
    '{"error": {"message": "This model\'s maximum context length is 4096 '
    'tokens. However, you requested 5120", "type": "BadRequestError", '
    '"param": "input_tokens", "code": 400}}',
  ),
  'sglang': (
    400,
    '{"object": "error", "message": "Input length (160062 tokens) exceeds the '
    'maximum allowed length (59862 tokens).", "type": "BadRequestError", '
    '"param": null, "code": 400}',
  ),
  'llama.cpp': (
    400,
    '{"error": {"code": 400, "message": "request (4390 tokens) exceeds the '
    'available size (4096 tokens), try increasing it", '
    '"type": "exceed_context_size_error", "n_prompt_tokens": 4390}}',
  ),
  'tgi': (
    422,
    '{"error": "Input validation error: `inputs` must have less than 2048 '
    'tokens. Given: 2222", "error_type": "validation"}',
  ),
  'openai': (
    400,
    '{"error": {"message": "Invalid \'messages[0].content\': string too long.",'
    ' "type": "invalid_request_error", "code": "string_above_max_length"}}',
  ),
  'fastapi': (422, '{"detail": [{"loc": ["body"], "msg": "too long"}]}'),
  'nginx': (413, '<html><h1>413 Request Entity Too Large</h1></html>'),
  'azure': (400, '{"error": {"message": "no", "code": "content_filter"}}'),
  'openrouter': (
    403,
    '{"error": {"code": 403, "message": "Your input was flagged", '
    '"metadata": {"reasons": ["violence"], "flagged_input": "..."}}}',
  ),
  'no words': (400, ' '),
  'list': (400, '["no"]'),
  'nested': (400, '[' * 100_000),
  'odd': (400, '{"error": {"code": {}, "type": [], "param": 7}}'),
  'legal': (451, '{"message": "not here"}'),
  'not implemented': (501, '{"error": {"message": "no images"}}'),
}


@pytest.mark.parametrize('name', OVER_LONG)
def test_a_refused_prompt_fails_its_item_alone(server, tmp_path, name):
  status, text = OVER_LONG[name]
  server.fault = lambda body, _: (
    (status, {}, text) if problem_of(body) == 'bad' else None
  )
  endpoint = endpoint_for(server, log=tmp_path / 'process-0.jsonl')
  [[first], [bad], [good]] = endpoint.complete([GOOD, BAD, GOOD])
  assert bad is None
  assert first.finished and good.finished
  reason = f'refused with status {status}'
  assert endpoint.usage.failed == {reason: 1}
  assert endpoint.usage.retried == {}
  assert [problem_of(body) for body in server.asked].count('bad') == 1
  # The ledger has the server's words, on one line.
  said = usage.read(tmp_path).said.get(reason, '')
  assert said == endpoint.usage.said.get(reason, '')
  assert '\n' not in said and len(said) <= 300
  for word in ('4096', '59862', '4390', '2048', 'too long', 'Too Large'):
    assert (word in text) == (word in said)


def test_a_lone_surrogate_fails_its_item(server):
  """A prompt that cannot be encoded in UTF-8 is never sent."""
  half = Request('half \ud83d of one', (), 'half', 1)
  endpoint = endpoint_for(server)
  [[none], [good]] = endpoint.complete([half, GOOD])
  assert none is None and good.finished
  assert endpoint.usage.failed == {'a prompt that is not Unicode': 1}


def test_many_refused_prompts_do_not_stop_the_job(server):
  """The first item alone is refused more often than _REFUSED."""
  server.fault = lambda body, _: (
    (*OVER_LONG['sglang'][:1], {}, OVER_LONG['sglang'][1])
    if problem_of(body) == 'bad'
    else None
  )
  endpoint = endpoint_for(server, max_failed_in_a_row=1, concurrency=2)
  many = [BAD._replace(samples=50), GOOD]
  answers = endpoint.complete(many)
  assert answers[0] == [None] * 50
  assert answers[1][0].finished
  assert endpoint.usage.failed == {'refused with status 400': 50}
  # A short question in between showed each time that it is the items' fault.
  short = [problem_of(b) for b in server.asked if problem_of(b) != 'bad']
  assert set(short) > {'good'} and len(short) <= 1 + 50 // 8


@pytest.mark.parametrize(
  ('status', 'said'), [(400, 'what is top_k'), (422, 'Unexpected fields')]
)
@pytest.mark.parametrize('api', ['chat', 'completions'])
def test_a_setting_that_every_call_is_refused_for_stops_the_job(
  server, api, status, said
):
  """A short question is refused, too, so the settings are at fault."""
  text = f'{{"error": {{"message": "{said}\\nLine two."}}}}'
  server.fault = lambda body, _: (status, {}, text)
  endpoint = endpoint_for(server, concurrency=2, api=api, extra={'top_k': 1})
  long = Request('long ' * 1000, (), 'long', 50)
  with pytest.raises(UserError) as error:
    endpoint.complete([long])
  told = str(error.value)
  assert told.startswith(f'{server.url}: refused model')
  assert f'status {status}: {said}' in told
  assert 'a short question' in told
  assert 'endpoint.extra' in told
  assert '\n' not in told
  # Eight in a row and the short question. Meanwhile the other worker sends at
  # most seven, or it would ask a short question, too.
  assert 9 <= len(server.asked) <= 16
  short = min(server.asked, key=lambda body: len(json.dumps(body)))
  assert len(json.dumps(short)) < 300
  words = {'prompt': '', 'messages': [], 'seed': 0}
  assert {**short, **words} == {**server.asked[0], **words}


def test_the_short_question_keeps_all_settings(server):
  """Only the item's text is replaced, so that its form stays the same."""
  server.fault = lambda body, _: 400
  endpoint = endpoint_for(
    server,
    concurrency=1,
    system='Think.',
    extra_after_steps={'continue_final_message': True},
  )
  request = Request('long', ('a step',), 'long', 8)
  with pytest.raises(UserError, match='a short question'):
    endpoint.complete([request])
  first, *_, short = server.asked
  assert len(server.asked) == 9
  assert short['continue_final_message'] is True
  assert [m['role'] for m in short['messages']] == [
    m['role'] for m in first['messages']
  ]
  assert short['messages'][0] == first['messages'][0]
  assert 'long' not in json.dumps(short)


def test_a_small_job_stops_if_all_calls_are_refused(server):
  """Without any answer so far, the short question is asked at the end."""
  server.fault = lambda body, _: 400
  with pytest.raises(UserError, match='a short question, too, after 2 in a r'):
    endpoint_for(server).complete([GOOD, BAD])
  assert len(server.asked) == 3


def test_a_first_item_that_is_refused_costs_one_short_question(
  server, tmp_path
):
  server.fault = lambda body, _: 400 if problem_of(body) == 'bad' else None
  endpoint = endpoint_for(server, tmp_path)
  for _ in range(3):
    assert endpoint.complete([BAD]) == [[None]]
  assert [problem_of(body) == 'bad' for body in server.asked] == [
    True,
    False,
    True,
    True,
  ]
  # With an answer on disk no short question is needed.
  endpoint.complete([GOOD])
  again, asked = endpoint_for(server, tmp_path), len(server.asked)
  assert again.complete([GOOD, BAD])[1] == [None]
  assert len(server.asked) == asked + 1


def test_a_short_question_without_an_answer_stops_nothing(server):
  server.fault = lambda body, _: 400 if problem_of(body) == 'bad' else 500
  endpoint = endpoint_for(server, max_failed_in_a_row=1, concurrency=1)
  assert endpoint.complete([BAD._replace(samples=9)]) == [[None] * 9]
  assert endpoint.usage.failed == {
    'refused with status 400': 9,
    'status 500': 2,
  }


@pytest.mark.parametrize(
  ('status', 'said', 'cure'),
  [
    (401, 'bad key sk-secret', 'see to the key in PARROT_KEY'),
    (403, 'not yours', 'see to the key in PARROT_KEY'),
    (402, 'Insufficient Balance', 'see to the account'),
    (404, 'no model parrot', 'endpoint.model'),
    (404, 'Not Found', 'endpoint.base_url'),
  ],
)
def test_errors_of_key_account_or_address_stop_the_job(
  server, monkeypatch, status, said, cure
):
  monkeypatch.setenv('PARROT_KEY', 'sk-secret')
  text = f'{{"error": {{"message": "{said}\\nLine two."}}}}'
  server.fault = lambda body, _: (status, {}, text)
  endpoint = endpoint_for(server, concurrency=2, api_key_variable='PARROT_KEY')
  with pytest.raises(UserError) as error:
    endpoint.complete([GOOD._replace(samples=50)])
  told = str(error.value)
  assert f'{server.url}: refused model' in told
  assert f'status {status}' in told
  assert said.partition(' ')[0] in told
  assert cure in told
  assert 'sk-secret' not in told
  assert '\n' not in told
  # Only calls under way at the time were sent.
  assert len(server.asked) <= 2
  assert server.heads[0]['Authorization'] == 'Bearer sk-secret'


@pytest.mark.parametrize(
  ('status', 'error', 'cure'),
  [
    (429, '"code": "insufficient_quota"', 'see to the account'),
    (429, '"type": "insufficient_quota"', 'see to the account'),
    (429, '"type": "exceeded_current_quota_error"', 'see to the account'),
    (400, '"code": "billing_hard_limit_reached"', 'see to the account'),
    (400, '"code": "model_not_found"', 'endpoint.model'),
    (400, '"code": null, "param": "model"', 'endpoint.model'),
  ],
)
def test_account_and_model_errors_by_their_code(server, status, error, cure):
  text = f'{{"error": {{"message": "no", {error}}}}}'
  server.fault = lambda body, _: (status, {}, text)
  with pytest.raises(
    UserError, match=f'status {status}: no; see to .*'
  ) as told:
    endpoint_for(server).complete([GOOD])
  assert cure in str(told.value)
  assert len(server.asked) == 1


@pytest.mark.parametrize('status', [408, 409, 424, 425, 429, 500, 502, 503])
def test_passing_statuses_are_retried(server, status):
  server.fault = lambda body, before: None if before else status
  endpoint = endpoint_for(server)
  assert endpoint.complete([GOOD])[0][0].finished
  assert endpoint.usage.retried == {f'status {status}': 1}


@pytest.mark.parametrize(
  ('text', 'shown'),
  [
    ('{"detail": "Not Found"}', 'Not Found'),
    ('<html>\n<h1>Nothing\n here</h1>', '<h1>Nothing here</h1>; see to'),
    ('', 'status 404: ; see to'),
    ('word ' * 10_000, 'word word'),
  ],
)
def test_a_refusal_in_any_form_is_one_line(server, text, shown):
  server.fault = lambda body, _: (404, {}, text or b' ')
  with pytest.raises(UserError) as error:
    endpoint_for(server).complete([GOOD])
  assert shown in str(error.value)
  assert '\n' not in str(error.value)
  assert len(str(error.value)) < 600


def test_messages_of_refusals_are_summed_up():
  first = Usage(calls=1, failed={'a': 1}, said={'a': 'one'})
  both = first.plus({'failed': {'a': 1, 'b': 1}, 'said': {'a': 'x', 'b': 'y'}})
  assert both.failed == {'a': 2, 'b': 1}
  assert both.said == {'a': 'one', 'b': 'y'}

"""Every protocol's answer to its client's request, beside `prm.score`.

Requests are those of the clients' own code, in the versions named: reward_hub
(VllmProcessRewardModel), verl 0.9.1 (the reward client of its workers),
OpenRLHF 0.11.2 (utils/agent.py), openr (reason/inference/value.py), SGLang
0.5.23 (docs of /v1/score).
"""

import base64
import json
import tracemalloc

import numpy as np
import pytest

import prm_jax
from prm_jax.data.encoding import make_format
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import HeadConfig
from prm_jax.models.hub.chat_template import chat_renderer
from prm_jax.models.hub.published_formats import QWEN_SYSTEM
from prm_jax.serve import native, openr, openrlhf, sglang, texts, vllm
from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import ServedPrm
from prm_jax.serve.protocol import Scored, chain_score, parse
from tests.shared.cpu_time import cpu_seconds
from tests.shared.published_models import CHAINS, write_model
from tests.shared.tiny_scorer import the_scorer
from tests.shared.tiny_trees import make_scorer

SEPARATOR = '<extra_0>'
READING = texts.Reading()
POOLING, CLASSIFY, EMBEDDINGS = vllm.protocols(READING)
GET_REWARD = openrlhf.get_reward(READING)
SGLANG = {'query': 'a', 'items': ['b'], 'score_extraction_token': SEPARATOR}


def served(scorer, render=None):
  return ServedPrm('prm', TreeScorer(scorer, 64), scorer.format, 'w', render)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('qwen')
  write_model('qwen_prm', folder)
  return folder


@pytest.fixture(scope='module')
def scorer(folder):
  return prm_jax.load(folder)


@pytest.fixture(scope='module')
def prm(folder, scorer):
  """Qwen2.5-Math-PRM's tokenizer, chat template and head, small."""
  return served(scorer, chat_renderer(folder))


def ask(protocol, prm, body):
  """What the server does between a request's JSON and its answer's."""
  asked = parse(protocol.body, json.dumps(body).encode())
  chains = protocol.chains(asked, prm)
  read = [chain for chain in chains if chain is not None]
  scored = Scored.of(prm, chains, prm.scorer.score_ids(read))
  return protocol.answer(asked, scored)


def expected(scorer, chains=CHAINS):
  return scorer.score_many(chains)


def messages(problem, steps):
  """As reward_hub and the model card write them."""
  said = SEPARATOR.join(steps) + SEPARATOR
  return [
    {'role': 'system', 'content': QWEN_SYSTEM},
    {'role': 'user', 'content': problem},
    {'role': 'assistant', 'content': said},
  ]


def rendered(folder, problem, steps):
  turns = [(m['role'], m['content']) for m in messages(problem, steps)]
  return chat_renderer(folder)(turns)


def close(found, wanted):
  np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_our_own(prm, scorer):
  chains = [{'problem': p, 'steps': list(steps)} for p, steps in CHAINS]
  reply = ask(native.STEPS, prm, {'chains': chains, 'aggregate': 'mean'})
  for index, (data, scores) in enumerate(
    zip(reply['data'], expected(scorer), strict=True)
  ):
    assert data['index'] == index
    close(data['scores'], scores)
    assert data['score'] == pytest.approx(scores.mean(), abs=1e-6)
  prm.scorer.forget()
  one = {'chains': chains[:1]}
  first = ask(native.STEPS, prm, one)['usage']
  again = ask(native.STEPS, prm, one)['usage']
  assert first['tokens'] > 0 and first['cached_tokens'] == 0
  assert again == {'tokens': 0, 'cached_tokens': first['tokens']}


@pytest.mark.parametrize('how', ['min', 'prod', 'mean', 'sum', 'last', 'max'])
def test_one_number_of_a_chain(how):
  scores = np.asarray([0.9, 0.2, 0.5])
  by_hand = scores[-1] if how == 'last' else getattr(scores, how, None)
  wanted = by_hand if how == 'last' else by_hand()
  assert chain_score(scores, how) == pytest.approx(wanted, rel=1e-6)


def test_pooling_of_messages(prm, scorer):
  """reward_hub reads the last number of each row of the first datum."""
  for chain, scores in zip(CHAINS, expected(scorer), strict=True):
    body = {'model': 'prm', 'messages': messages(*chain)}
    rows = ask(POOLING, prm, body)['data'][0]['data']
    close([row[-1] for row in rows], scores)
    close([row[0] for row in rows], 1 - scores)


@pytest.mark.parametrize('as_ids', [False, True])
def test_pooling_of_texts_and_ids(folder, prm, scorer, as_ids):
  given = [rendered(folder, *chain) for chain in CHAINS]
  if as_ids:
    given = [scorer.format.tokenizer.encode_template(text) for text in given]
  for one, scores in zip(given, expected(scorer), strict=True):
    found = ask(POOLING, prm, {'input': one})['data']
    close([row[1] for row in found[0]['data']], scores)
  found = ask(POOLING, prm, {'input': given})['data']
  for datum, scores in zip(found, expected(scorer), strict=True):
    close([row[1] for row in datum['data']], scores)


def test_all_forms_share_what_is_read(folder, prm):
  """However a chain is sent, its tokens and pieces are the same."""
  problem, steps = CHAINS[0]
  prm.scorer.forget()
  first = {'chains': [{'problem': problem, 'steps': list(steps)}]}
  ask(native.STEPS, prm, first)
  text = rendered(folder, problem, steps)
  for body in ({'messages': messages(problem, steps)}, {'input': text}):
    details = ask(POOLING, prm, body)['usage']
    cached = details['prompt_tokens_details']['cached_tokens']
    assert cached == details['prompt_tokens'] > 10


@pytest.mark.parametrize('protocol', [CLASSIFY, EMBEDDINGS])
def test_verl_reads_one_number(prm, scorer, protocol):
  """Text of the policy's template, with steps between blank lines."""
  problem, steps = 'What is 2 + 2?', ['First, 2.', 'Then it is 4.']
  text = (
    f'<|im_start|>user\n{problem}<|im_end|>\n'
    f'<|im_start|>assistant\n{steps[0]}\n\n{steps[1]}<|im_end|>\n'
  )
  body = {'model': 'prm', 'input': text, 'use_activation': False}
  [datum] = ask(protocol, prm, body)['data']
  found = datum['probs'] if protocol is CLASSIFY else datum['embedding']
  assert found[-1] == pytest.approx(
    scorer.score(problem, steps).min(), abs=1e-6
  )


def test_a_sum_of_scores_is_no_probability_of_a_class(prm, scorer):
  _, classify, embeddings = vllm.protocols(texts.Reading(how='sum'))
  text = '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\nA\n\nB'
  [datum] = ask(embeddings, prm, {'input': text})['data']
  close(datum['embedding'], [scorer.score('P', ['A', 'B']).sum()])
  with pytest.raises(Refused, match='sum is no probability of a class'):
    ask(classify, prm, {'input': text})


def test_get_reward(prm, scorer):
  """A prompt's own template is not needed: what follows it is the answer."""
  problem, steps = 'What is 2 + 2?', ['First, 2.', 'Then it is 4.']
  body = {
    'query': [problem + '\n\n'.join(steps), problem + steps[0]],
    'prompts': [problem, problem],
    'labels': ['4', None],
  }
  reply = ask(GET_REWARD, prm, body)
  whole, part = expected(scorer, [(problem, steps), (problem, steps[:1])])
  close(reply['rewards'], [whole.min(), part.min()])
  assert reply['scores'] == reply['rewards']
  assert reply['extra_logs']['prm_steps'] == [2.0, 1.0]


def test_openr(folder, prm, scorer):
  given = [rendered(folder, *chain) for chain in CHAINS]
  values = ask(openr.VALUE, prm, {'input_str': given})['value']
  for found, scores in zip(values, expected(scorer), strict=True):
    close(found, scores)
  close(ask(openr.VALUE, prm, {'input_str': given[0]})['value'], values[0])


def test_sglang(folder, prm, scorer):
  for chain, scores in zip(CHAINS, expected(scorer), strict=True):
    query, item = rendered(folder, *chain).split('<|im_start|>assistant')
    body = {
      'query': query,
      'items': ['<|im_start|>assistant' + item],
      'label_token_ids': [1, 2],
      'apply_softmax': True,
      'score_extraction_token': SEPARATOR,
    }
    [rows] = ask(sglang.SCORE, prm, body)['scores']
    close([row[1] for row in rows], scores)


@pytest.mark.parametrize('style', ['skywork', 'math_shepherd', 'trl'])
def test_texts_of_other_styles(style, tmp_path):
  """Where only separators end steps, text and ids give their scores."""
  write_model(style, tmp_path)
  given = 'math_shepherd' if style == 'math_shepherd' else ''
  scorer = prm_jax.load(tmp_path, style=given)
  prm = served(scorer)
  problem, steps = 'Janet has 16 eggs. How many?', ('She sells 7.', '16-7=9')
  ids = scorer.format.encode(problem, steps).tokens.tolist()
  text = scorer.format.tokenizer.decode(ids)
  if style == 'math_shepherd':
    [datum] = ask(POOLING, prm, {'input': ids})['data']
    close([row[1] for row in datum['data']], scorer.score(problem, steps))
    text = text.removeprefix('<s> ')
    [found] = ask(openr.VALUE, prm, {'input_str': [text]})['value']
    close(found, scorer.score(problem, steps))
  else:  # a line's end also stands in problems, and nothing tells which it is
    for protocol, sent in ((POOLING, text), (POOLING, ids), (EMBEDDINGS, ids)):
      with pytest.raises(Refused, match='which problems and steps contain'):
        ask(protocol, prm, {'input': sent})
    # Nothing stands for the scores of a client that asks the wrong way.
    _, _, embeddings = vllm.protocols(texts.Reading(unread=-1.0))
    with pytest.raises(Refused, match='which problems and steps contain'):
      ask(embeddings, prm, {'input': ids})
  # A conversation is split anew, whatever its template has in it.
  asked = f'<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'
  query = asked + '\n\n'.join(steps)
  reply = ask(GET_REWARD, prm, {'query': [query], 'prompts': [asked]})
  close(reply['rewards'], [scorer.score(problem, steps).min()])


def test_an_answer_that_cannot_be_scored_may_have_a_reward(prm, scorer):
  reading = texts.Reading(unread=-1.0)
  get_reward = openrlhf.get_reward(reading)
  _, classify, embeddings = vllm.protocols(reading)
  body = {'query': ['P', 'PA', 'P' + 'A ' * 3000], 'prompts': ['P'] * 3}
  reply = ask(get_reward, prm, body)
  wanted = scorer.score('P', ['A']).min()
  close(reply['rewards'], [-1.0, wanted, -1.0])
  assert reply['extra_logs']['prm_steps'] == [0.0, 1.0, 0.0]
  found = ask(embeddings, prm, {'input': ['no turns in it']})['data']
  assert found[0]['embedding'] == [-1.0]
  found = ask(classify, prm, {'input': ['no turns in it']})['data']
  assert found[0]['probs'][-1] == -1.0


def test_no_policy_hides_text_behind_the_last_separator(folder, prm, scorer):
  """It would go unread, and a policy may write a separator as any text."""
  _, classify, _ = vllm.protocols(texts.Reading())
  chain = CHAINS[0]
  given = rendered(folder, *chain)
  [datum] = ask(classify, prm, {'input': [given]})['data']
  wanted = scorer.score(*chain).min()
  assert datum['probs'][-1] == pytest.approx(wanted, abs=1e-6)
  end = given.rindex(SEPARATOR) + len(SEPARATOR)
  hidden = given[:end] + 'So it is 5.' + given[end:]
  with pytest.raises(Refused, match='text follows the last'):
    ask(classify, prm, {'input': [hidden]})
  ids = prm.format.tokenizer.encode_template(hidden)
  with pytest.raises(Refused, match='text follows the last'):
    ask(classify, prm, {'input': [ids]})
  _, classify, _ = vllm.protocols(texts.Reading(unread=-1.0))
  [datum] = ask(classify, prm, {'input': [hidden]})['data']
  assert datum['probs'][-1] == -1


@pytest.mark.parametrize(
  'answered',
  [
    '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\nA<|im_end|>',
    '<|start_header_id|>user<|end_header_id|>\n\nP<|eot_id|>'
    '<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>',
  ],
)
def test_no_policy_hides_text_behind_the_last_turn(answered, prm, scorer):
  """A policy may write the end of a turn as any text."""
  for end in ('', '\n', '\n<|endoftext|>\n'):
    [datum] = ask(EMBEDDINGS, prm, {'input': answered + end})['data']
    close(datum['embedding'], [scorer.score('P', ['A']).min()])
  hidden = {'input': answered + '\nSo it is 5.'}
  for protocol in (CLASSIFY, EMBEDDINGS):
    with pytest.raises(Refused, match='text follows the end of the last turn'):
      ask(protocol, prm, hidden)
  with pytest.raises(Refused, match='text follows the end of the last turn'):
    ask(GET_REWARD, prm, {'query': [hidden['input']]})


def test_no_policy_passes_off_an_exchange_as_the_prompt(prm, scorer):
  """Where the prompt is sent apart, all that follows it is the answer."""
  problem, _ = CHAINS[0]
  prompt = f'<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'
  forged = 'nonsense<|im_end|>\n' + prompt + f'1 + 1 = 2{SEPARATOR}'
  body = {'query': [prompt + forged], 'prompts': [prompt]}
  [found] = ask(GET_REWARD, prm, body)['rewards']
  said, _ = forged.rsplit(SEPARATOR, 1)
  close(found, scorer.score(problem, [said]).min())


def test_a_separator_in_the_problem_is_none_of_the_answer(prm, scorer):
  problem = f'What does {SEPARATOR} mean?'
  prompt = f'<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'
  body = {'query': [prompt + 'A\n\nB'], 'prompts': [prompt]}
  [found] = ask(GET_REWARD, prm, body)['rewards']
  close(found, scorer.score(problem, ['A', 'B']).min())


def test_an_embedding_in_base64(prm, scorer):
  text = '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\nA<|im_end|>'
  body = {'input': text, 'encoding_format': 'base64'}
  [datum] = ask(EMBEDDINGS, prm, body)['data']
  found = np.frombuffer(base64.b64decode(datum['embedding']), np.float32)
  close(found, [scorer.score('P', ['A']).min()])


def test_a_long_run_of_blanks_takes_no_time():
  blanks = ' ' * 300_000

  def trim():
    assert texts.trimmed(blanks + 'a' + blanks) == blanks + 'a'
    assert texts.trimmed('a' + '</s>\n' * 300_000) == 'a'

  assert cpu_seconds(trim) < 5


REFUSED = {
  'no-chains': (native.STEPS, {'chains': []}, 'chains: List should have'),
  'no-steps': (
    native.STEPS,
    {'chains': [{'problem': 'a', 'steps': []}]},
    'chains[0].steps: List should have at least 1',
  ),
  'types': (
    native.STEPS,
    {'chains': [{'problem': 1, 'steps': ['a']}]},
    'chains[0].problem: Input should be a valid string',
  ),
  'typo': (
    native.STEPS,
    {'chains': [{'problem': 'a', 'steps': ['a']}], 'agregate': 'min'},
    "body: unknown field 'agregate'",
  ),
  'blank-step': (
    native.STEPS,
    {'chains': [{'problem': 'a', 'steps': ['b', '']}]},
    "chains[0]: step '' has no tokens",
  ),
  'long': (
    native.STEPS,
    {'chains': [{'problem': 'a', 'steps': ['b ' * 3000]}]},
    'chains[0]: chain of',
  ),
  'surrogate': (
    native.STEPS,
    {'chains': [{'problem': 'a', 'steps': ['\ud800']}]},
    'chains[0].steps[0]: Input should be a valid string',
  ),
  'no-separator': (POOLING, {'input': 'a'}, "input: no '<extra_0>' in it"),
  'both': (
    POOLING,
    {'input': 'a', 'messages': messages('a', ['b'])},
    'expected input or messages',
  ),
  'logits': (
    POOLING,
    {'input': f'a{SEPARATOR}', 'use_activation': False},
    'use_activation: Input should be True',
  ),
  'unknown-id': (POOLING, {'input': [1, 10**6]}, 'input: prm has no token'),
  'two-separators': (
    POOLING,
    {'input': f'a{SEPARATOR}b{SEPARATOR}{SEPARATOR}'},
    "input: a '<extra_0>' follows another",
  ),
  'only-separators': (
    POOLING,
    {'input': SEPARATOR * 5},
    "input: a '<extra_0>' follows another",
  ),
  'no-turns': (
    CLASSIFY,
    {'input': '[INST] a [/INST] b'},
    'input: nothing says where the answer begins',
  ),
  'labels': (
    sglang.SCORE,
    SGLANG | {'label_token_ids': [1, 2, 3]},
    'label_token_ids: List should have at most 2 items',
  ),
  'label-id': (
    sglang.SCORE,
    SGLANG | {'label_token_ids': [-1, 2]},
    'label_token_ids[0]: Input should be greater',
  ),
  'no-extraction-token': (
    sglang.SCORE,
    {'query': 'a', 'items': ['b']},
    'score_extraction_token: Field required',
  ),
  'many': (
    CLASSIFY,
    {'input': ['a'] * 5000},
    'input: List should have at most 4096 items',
  ),
  'negative-id': (POOLING, {'input': [-1]}, 'input: prm has no token -1'),
  'prompts': (
    GET_REWARD,
    {'query': ['a', 'b'], 'prompts': ['a']},
    '1 prompts for 2 queries',
  ),
  'no-answer': (
    GET_REWARD,
    {'query': ['a'], 'prompts': ['a']},
    'query[0]: there is no step',
  ),
  'another-token': (
    sglang.SCORE,
    {'query': 'a', 'items': ['b'], 'score_extraction_token': '<|im_end|>'},
    "scores at '<extra_0>'",
  ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_what_cannot_be_scored_is_one_line(prm, case):
  protocol, body, message = REFUSED[case]
  with pytest.raises(Refused) as error:
    ask(protocol, prm, body)
  assert message in error.value.message
  assert '\n' not in error.value.message
  assert error.value.status == 400


def test_labels_in_the_other_order_are_refused(prm):
  tokenizer = prm.format.tokenizer
  plus, minus = (tokenizer.encode(text)[-1] for text in '+-')
  assert tokenizer.decode([plus]) + tokenizer.decode([minus]) == '+-'
  asked = {'items': [f'b{SEPARATOR}'], 'label_token_ids': [minus, plus]}
  assert ask(sglang.SCORE, prm, SGLANG | asked)['scores']
  asked['label_token_ids'].reverse()
  with pytest.raises(Refused, match='send them in this order'):
    ask(sglang.SCORE, prm, SGLANG | asked)


def test_a_query_is_not_repeated_without_end(prm):
  body = SGLANG | {'query': 'a' * 64_000, 'items': ['b'] * 200}
  with pytest.raises(Refused, match='200 items is read once for each') as error:
    ask(sglang.SCORE, prm, body)
  assert error.value.status == 413


def test_of_unknown_fields_the_first_is_told():
  """There may be millions."""
  fields = {f'x{n}': 0 for n in range(200_000)}
  body = json.dumps({'chains': [{'problem': 'a', 'steps': ['b']} | fields]})
  tracemalloc.start()
  before, _ = tracemalloc.get_traced_memory()
  with pytest.raises(Refused, match=r"chains\[0\]: unknown field 'x0'"):
    parse(native.STEPS.body, body.encode())
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most - before < 60 << 20


def test_a_prm_without_a_template_or_special_tokens_says_so():
  prm = served(the_scorer())
  with pytest.raises(Refused, match='no chat template'):
    ask(POOLING, prm, {'messages': messages('a', ['b'])})
  with pytest.raises(Refused, match='tokenizer of its own'):
    ask(POOLING, prm, {'input': 'a'})


@pytest.mark.parametrize('likelihood', [False, True])
def test_ids_of_a_prm_that_was_trained_here(likelihood):
  """Its problem ends with a token of its own, before the first step."""
  head = HeadConfig('logit', likelihood=likelihood)
  scorer = make_scorer(head, make_format('arithmetic', 128))
  prm = served(scorer)
  problem, steps = 'mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5']
  wanted = scorer.score(problem, steps)
  ids = scorer.format.encode(problem, steps).tokens.tolist()
  ask(native.STEPS, prm, {'chains': [{'problem': problem, 'steps': steps}]})
  for end in ([], [scorer.format.end]):  # as a policy writes it
    reply = ask(POOLING, prm, {'input': ids + end})
    close([row[1] for row in reply['data'][0]['data']], wanted)
    details = reply['usage']['prompt_tokens_details']
    assert details['cached_tokens'] == len(ids)
    reply = ask(EMBEDDINGS, prm, {'input': ids + end})
    close(reply['data'][0]['embedding'], [wanted.min()])
  [last] = scorer.format.prompt_suffix
  ids.remove(last)
  with pytest.raises(Refused, match='no token 3 in it, which ends the problem'):
    ask(POOLING, prm, {'input': ids})


@pytest.mark.parametrize(
  ('text', 'prompt', 'found'),
  [
    (
      '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nP<|im_end|>\n'
      '<|im_start|>assistant\nA\n\nB<|im_end|>',
      '',
      ('P', 'A\n\nB'),
    ),
    (
      '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nP<|eot_id|>'
      '<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>',
      '',
      ('P', 'A'),
    ),
    (
      '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\nA<|endoftext|>',
      '',
      ('P', 'A'),
    ),
    ('PA', 'P', ('P', 'A')),
    (
      '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\nA<|im_end|>',
      '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n',
      ('P', 'A'),
    ),
    ('PA <|im_end|>\n</s>\n', 'P', ('P', 'A')),
    ('A alone</s>', '', None),
    ('[INST] P [/INST] A</s>', '', None),
  ],
)
def test_conversations(text, prompt, found):
  assert texts.last_exchange(text, prompt) == found


def test_a_prompt_of_an_unknown_template_is_warned_of_once(caplog):
  """All of it is the problem, and a problem alone is right."""
  texts.warn_of_unread_turns.cache_clear()
  chatml = '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n'
  for prompt in ('P', 'P [1] <b>', chatml):
    assert texts.last_exchange(prompt + 'A', prompt) == (
      'P' if prompt == chatml else prompt,
      'A',
    )
  assert not caplog.records
  for prompt in (
    '[INST] P [/INST]',
    '<bos><start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\n',
    '<\uff5cUser\uff5c>P<\uff5cAssistant\uff5c>',
    '<|user|>P<|end|><|assistant|>',
  ):
    texts.warn_of_unread_turns.cache_clear()
    caplog.clear()
    for _ in range(2):
      assert texts.last_exchange(prompt + 'A', prompt) == (prompt, 'A')
    [record] = caplog.records
    assert 'all of it is read as the problem' in record.getMessage()


def test_of_a_million_wrong_items_the_first_is_told():
  body = {'query': ['a'], 'prompts': [1] * 10**6}
  with pytest.raises(Refused, match=r'^prompts\[0\]: ') as refused:
    parse(openrlhf.RewardBody, json.dumps(body).encode())
  # To list a million errors would take long.
  assert refused.value.__context__.error_count() == 1
  with pytest.raises(Refused, match=r'^input') as refused:
    parse(vllm.InputBody, json.dumps({'input': [1.5] * 10**6}).encode())
  assert refused.value.__context__.error_count() == 4  # one for each form

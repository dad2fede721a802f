"""Tests the Generator as a policy: text in, whole steps out, on any mesh."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from prm_jax.data.encoding import make_format
from prm_jax.data.tokenizer import (
  BOS,
  PAD,
  PROBLEM_END,
  STEP_END,
  HuggingFaceTokenizer,
)
from prm_jax.inference.generator import Generator, read_steps, special_ids
from prm_jax.inference.protocols import CannotAsk, Choice, Request
from prm_jax.models import forward, init_params, lm_logits
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import run_module
from tests.shared.tiny_generator import (
  FORMAT,
  MODEL,
  PROBLEM,
  SAMPLING,
  make_generator,
)
from tests.shared.tiny_sampling import one_device

pytestmark = pytest.mark.once

STEP = FORMAT.tokenizer.encode('1 + 2 = 3')


@pytest.fixture(scope='module')
def generator():
  return make_generator()


@pytest.mark.parametrize(
  ('ids', 'steps', 'finished'),
  [
    ([*STEP, STEP_END, PROBLEM_END], 1, True),
    ([*STEP, STEP_END, *STEP, STEP_END, PROBLEM_END], 2, True),
    ([PROBLEM_END], 0, True),
    ([*STEP, PROBLEM_END], 1, True),  # without a separator, but ended
    ([*STEP, STEP_END, *STEP], 1, False),  # cut off
    ([*STEP, STEP_END], 1, False),
    ([*STEP, STEP_END, STEP_END, PROBLEM_END], 1, False),  # an empty step
    ([*STEP, STEP_END, PAD, STEP_END, PROBLEM_END], 1, False),  # a blank one
    ([*STEP, STEP_END, *STEP, BOS, STEP_END, PROBLEM_END], 1, False),
    ([BOS, PROBLEM_END], 0, False),
    ([], 0, False),
  ],
)
def test_steps_of_ids(ids, steps, finished):
  found = read_steps(FORMAT, special_ids(FORMAT), ids)
  assert found == (('1 + 2 = 3',) * steps, finished)


def test_text_without_tokens_is_refused(generator):
  good = Request(PROBLEM, (), 'good', 1)
  bad = Request(PROBLEM, ('7 times 3 = 1',), 'bad', 1)
  with pytest.raises(CannotAsk, match="'times' is not a word") as raised:
    generator.complete([good, bad])
  assert raised.value.requests.keys() == {bad}


def test_options_are_as_likely_as_the_model_says(generator):
  """Against a plain forward pass, for prompts of several lengths."""
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)
  choices = [
    Choice(PROBLEM, steps, lead, (' 3', ' 4', ' 5'))
    for steps in ((), ('1 + 2 = 3',), ('1 + 2 = 3', '3 * 3 = 9'))
    for lead in ('1 + 2 =', '')
  ]
  read = [
    [
      *generator.encode(Request(PROBLEM, choice.steps, '', 1)),
      *FORMAT.tokenizer.encode(choice.lead),
    ]
    for choice in choices
  ]
  shape = len(read), max(map(len, read))
  tokens, positions = np.zeros(shape, np.int32), np.full(shape, -1)
  for row, ids in enumerate(read):
    tokens[row, : len(ids)], positions[row, : len(ids)] = ids, range(len(ids))
  last = np.where(positions < 0, -1, positions.max(1, keepdims=True))
  hidden = forward(params, MODEL, tokens, positions, last)
  logprobs = jax.nn.log_softmax(lm_logits(params, MODEL, hidden))
  for row, chosen in enumerate(generator.choose(choices)):
    options = [FORMAT.tokenizer.encode(x)[0] for x in choices[row].options]
    expected = np.asarray(logprobs)[row, len(read[row]) - 1, options]
    np.testing.assert_allclose(chosen.logprobs, expected, atol=1e-4)
    assert chosen.tokens == len(read[row])
    assert chosen.flops > 0


def test_options_may_begin_alike(generator):
  """What they share is read before the choice."""
  shared, apart = generator.choose(
    [
      Choice(PROBLEM, (), '', ('1 + 2 = 3', '1 + 2 = 4')),
      Choice(PROBLEM, (), '1 + 2 =', (' 3', ' 4')),
    ]
  )
  assert shared == apart
  with pytest.raises(UserError, match='do not begin with words of their own'):
    generator.choose([Choice(PROBLEM, (), '1 +', (' 2', ' 2 = 3'))])


def test_a_choice_beyond_the_window_has_no_answer(generator):
  long = Choice(PROBLEM, ('1 + 2 = 3',) * 7, '1 + 2 =', (' 3', ' 4'))
  short = long._replace(steps=())
  [none, some] = generator.choose([long, short])
  assert none.logprobs == ()
  assert len(some.logprobs) == 2


def lines_of_text():
  """Returns a format whose tokenizer has a token of two line feeds."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {t: i for i, t in enumerate([*alphabet, 'ĊĊ'])}
  backend = tokenizers.Tokenizer(models.BPE(vocabulary, [('Ċ', 'Ċ')]))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(['<|end|>'])
  tokenizer = HuggingFaceTokenizer(backend.to_str(), 'a test')
  return make_format(tokenizer, 48, 'Ċ', '<|end|>')


@pytest.mark.parametrize(
  ('text', 'steps', 'finished'),
  [
    ('a b\nc\n<|end|>', ('a b', 'c'), True),
    ('a b\nc<|end|>', ('a b', 'c'), True),
    ('  a\n', ('a',), False),
    ('a\n \nc\n<|end|>', ('a',), False),
    # A token of two line feeds is neither a separator nor part of a step.
    ('a\n\nb\n<|end|>', ('a  b',), True),
    ('\n\n\n<|end|>', (), False),
  ],
)
def test_steps_that_are_lines_of_text(text, steps, finished):
  fmt = lines_of_text()
  ids = fmt.tokenizer.encode_template(text)
  found, ended = read_steps(fmt, special_ids(fmt), ids)
  assert (found, ended) == (steps, finished)
  for step in found:
    assert fmt.separator[0] not in fmt.encode_step(step, True)[:-1]


@pytest.mark.parametrize('tokenizer', ['bytes', 'arithmetic'])
def test_rows_without_a_token_end_a_chain(tokenizer):
  """An embedding may have more rows than there are tokens."""
  fmt = make_format(tokenizer, 48)
  step = [*fmt.tokenizer.encode('1 + 2 = 3'), *fmt.separator]
  beyond = fmt.tokenizer.vocab_size
  for odd in ([beyond], [*step[:2], beyond]):
    found = read_steps(fmt, special_ids(fmt), [*step, *odd, *step])
    assert found == (('1 + 2 = 3',), False)


def test_bytes_that_are_no_utf_8_are_replaced():
  fmt = make_format('bytes', 48)
  ids = [*fmt.tokenizer.encode('ä')[:1], STEP_END, PROBLEM_END]
  steps, finished = read_steps(fmt, special_ids(fmt), ids)
  assert (steps, finished) == (('\ufffd',), True)


def test_a_window_that_ends_within_the_first_step_is_no_room(generator):
  # After the last of these steps not even one token fits.
  steps = ('1 + 2 = 3',) * 6
  seen = set()
  for i in range(len(steps) + 1):
    request = Request(PROBLEM, steps[:i], f'{i}', 32)
    room = FORMAT.max_length - len(generator.encode(request))
    [found] = generator.complete([request])
    for each in found:
      assert not each.no_room or (not each.steps and not each.finished)
      assert not each.no_room or each.tokens == max(0, room)
      # A completion that reached max_tokens had room.
      assert not each.no_room or each.tokens < SAMPLING.max_tokens
      seen.add(each.no_room)
  assert all(each.no_room for each in found) and seen == {True, False}


def test_completions_match_the_sampled_ids(generator):
  requests = [
    Request(PROBLEM, (), 'a', 6),
    Request(PROBLEM, ('1 + 2 = 3',), 'b', 5, max_steps=1),
    Request(PROBLEM, (), 'none', 0),
  ]
  found = generator.complete(requests)
  assert [len(each) for each in found] == [6, 5, 0]
  assert len({c.logprob for each in found for c in each}) == 11
  for completion in (c for each in found for c in each):
    assert 1 <= completion.tokens <= SAMPLING.max_tokens
    # Next to uniform: the random model's embedding is small.
    per_token = completion.logprob / completion.tokens
    np.testing.assert_allclose(per_token, -np.log(110), atol=0.1)
    for step in completion.steps:
      assert FORMAT.encode_step(step, True)
  assert all(len(c.steps) <= 1 for c in found[1])
  # The second request's prompt begins with the first's, so it is read for both.
  prompt = len(generator.encode(requests[1]))
  read = [c.prompt_tokens for each in found for c in each]
  assert read == [0] * 6 + [prompt] + [0] * 4


def test_key_number_and_seed_determine_a_sample(generator):
  request = Request(PROBLEM, (), 'a', 8)
  expected = generator.complete([request])[0]

  def same(found, expected):
    """Compares all but the costs, which the first reader of a prompt bears."""
    paid = dict(prompt_tokens=0, logprob=0, flops=0)
    return [c._replace(**paid) for c in found] == [
      c._replace(**paid) for c in expected
    ]

  later = generator.complete([request._replace(first=5, samples=3)])[0]
  assert same(later, expected[5:])
  other = Request('mod 10 : 4 - 1', (), 'b', 3)
  assert same(generator.complete([other, request])[1], expected)
  assert not same(generator.complete([request._replace(key='b')])[0], expected)
  seeded = make_generator(seed=4)
  assert not same(seeded.complete([request])[0], expected)
  assert seeded.name != generator.name


def test_the_name_holds_all_that_changes_samples(generator):
  changes = {
    'temperature': 0.5,
    'top_k': 5,
    'top_p': 0.9,
    'min_p': 0.1,
    'max_tokens': 9,
  }
  same = {'slots': 8, 'kept': 2, 'spread': True}
  fields = dataclasses.fields(SAMPLING)
  assert {field.name for field in fields} == changes.keys() | same.keys()
  assert generator.name == make_generator(**same).name
  assert generator.name.startswith('tiny,temperature=1.0,top_k=0,')
  for field, value in changes.items():
    assert generator.name != make_generator(**{field: value}).name, field


def test_a_request_that_fills_the_window_gets_nothing(generator):
  steps = ('1 + 2 = 3',) * 7  # of 6 tokens each, after a prompt of 9
  (found,) = generator.complete([Request(PROBLEM, steps, 'a', 2)])
  assert [(c.steps, c.finished, c.tokens) for c in found] == [
    ((), False, 0)
  ] * 2


def test_a_reward_models_format_is_refused():
  fmt = dataclasses.replace(FORMAT, end=None)
  with pytest.raises(UserError, match=r'policy cannot write chains: .* None'):
    Generator({}, MODEL, fmt, one_device(), SAMPLING)


@pytest.mark.slow
def test_every_mesh_samples_the_same():
  found = run_module('tests.shared.sample_on_devices')
  one = found.pop('1,1,1')
  assert sum(map(len, one['tokens'])) > 150
  for name, result in found.items():
    assert result['tokens'] == one['tokens']
    np.testing.assert_allclose(
      result['logprobs'], one['logprobs'], rtol=0, atol=1e-5
    )
    # No cache is gathered, which has 32 positions in four dimensions, and no
    # weights, which have the model's width or that of its feed-forward units.
    for shape in result['gathered']:
      sizes = [*map(int, re.findall(r'\d+', shape.split('[')[1]))]
      assert len(sizes) <= 2 or not {16, 24, 32}.intersection(sizes), shape
      assert 'spread' in name or len(sizes) <= 2
  # [B, K, S, H]: rows over replica x fsdp, two key heads over model.
  assert {name: each['cache'] for name, each in found.items()} == {
    '2,2,2': [2, 1, 32, 4],
    '1,8,1': [1, 2, 32, 4],
    '1,2,4': [4, 2, 32, 4],
    '1,4,2 spread': [2, 1, 32, 4],
    '2,2,2 spread': [2, 1, 32, 4],
    '1,8,1 spread': [1, 2, 32, 4],
  }
  # All but the norms are split.
  share = {name: each['share_of_parameters'] for name, each in found.items()}
  assert share['1,8,1'] == 1
  assert share['1,4,2 spread'] < 1 / 7 and share['1,8,1 spread'] < 1 / 7

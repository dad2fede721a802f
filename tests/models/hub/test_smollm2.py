"""A real language model: SmolLM2-135M-Instruct, as pip installs it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prm_jax.models import forward, lm_logits
from tests.shared import smollm2

# The Declaration of Independence of the United States, 1776, its beginning.
DECLARATION = """\
When in the Course of human events, it becomes necessary for one people to \
dissolve the political bands which have connected them with another, and to \
assume among the powers of the earth, the separate and equal station to which \
the Laws of Nature and of Nature's God entitle them, a decent respect to the \
opinions of mankind requires that they should declare the causes which impel \
them to the separation.

We hold these truths to be self-evident, that all men are created equal, that \
they are endowed by their Creator with certain unalienable Rights, that among \
these are Life, Liberty and the pursuit of Happiness.--That to secure these \
rights, Governments are instituted among Men, deriving their just powers from \
the consent of the governed, --That whenever any Form of Government becomes \
destructive of these ends, it is the Right of the People to alter or to \
abolish it, and to institute new Government, laying its foundation on such \
principles and organizing its powers in such form, as to them shall seem most \
likely to effect their Safety and Happiness. Prudence, indeed, will dictate \
that Governments long established should not be changed for light and \
transient causes; and accordingly all experience hath shewn, that mankind are \
more disposed to suffer, while evils are sufferable, than to right themselves \
by abolishing the forms to which they are accustomed. But when a long train \
of abuses and usurpations, pursuing invariably the same Object evinces a \
design to reduce them under absolute Despotism, it is their right, it is \
their duty, to throw off such Government, and to provide new Guards for their \
future security."""
# By transformers 5.23 on torch 2.13, from the same file in float32: the mean of
# -log p over DECLARATION's tokens after the first, and the ids of TEXT.
REFERENCE_NATS = 2.196069
TEXT = (
  '2023 is 12+34=46\n\n  two  blanks, "I\'ll" caf\u00e9 \u6f22\u5b57 \U0001f642'
)
REFERENCE_IDS = [34, 32, 34, 35, 314, 216, 33, 34, 27, 35, 36, 45, 36, 38, 8866]
REFERENCE_IDS += [
  827,
  216,
  45843,
  28,
  476,
  57,
  3060,
  18,
  37366,
  17097,
  137,
  112,
]
REFERENCE_IDS += [36518, 47526]


@pytest.fixture(scope='module')
def opened():
  """Returns the model, its float32 parameters and its tokenizer."""
  return smollm2.open_or_skip()


def nats_per_token(params, config, ids):
  @jax.jit
  def loss(params, ids):  # [1, T]
    positions = jnp.arange(ids.shape[1] - 1)[None]
    last = jnp.full_like(positions, positions.shape[1] - 1)
    hidden = forward(params, config, ids[:, :-1], positions, last)
    log_p = jax.nn.log_softmax(lm_logits(params, config, hidden))
    return -jnp.take_along_axis(log_p, ids[:, 1:, None], 2).mean()

  return float(loss(params, np.array([ids])))


def test_architecture(opened):
  model, params, tokenizer = opened
  assert model.longest == 8192
  assert model.config.n_layers == 30
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 134_515_008
  assert tokenizer.vocab_size == model.config.vocab_size == 49152
  assert tokenizer.first_ids == ()


def test_tokens_equal_those_of_transformers(opened):
  _, _, tokenizer = opened
  ids = tokenizer.encode(TEXT)
  assert ids == REFERENCE_IDS
  assert tokenizer.decode(ids) == TEXT


def test_text_is_as_likely_as_to_transformers(opened):
  model, params, tokenizer = opened
  ids = tokenizer.encode(DECLARATION)
  assert len(ids) == 323
  nats = nats_per_token(params, model.config, ids)
  np.testing.assert_allclose(nats, REFERENCE_NATS, atol=1e-3)


def test_it_knows_a_famous_sentence(opened):
  """Wrong weights or positions would give several nats per token."""
  model, params, tokenizer = opened
  start = DECLARATION.index('We hold these truths')
  sentence = DECLARATION[start : DECLARATION.index('.', start) + 1]
  assert sentence.endswith('the pursuit of Happiness.')
  ids = tokenizer.encode(sentence)
  assert nats_per_token(params, model.config, ids) < 1.0


@pytest.mark.slow  # shows little more than the float32 test
def test_bfloat16_is_close(opened):
  model, params, tokenizer = opened
  config = dataclasses.replace(model.config, dtype='bfloat16')
  ids = tokenizer.encode(DECLARATION)
  nats = nats_per_token(params, config, ids)
  np.testing.assert_allclose(nats, REFERENCE_NATS, atol=0.02)


@pytest.mark.slow
def test_it_answers_in_chat_form(opened):
  model, params, tokenizer = opened
  question = {'role': 'user', 'content': 'What is the capital of France?'}
  template = ImmutableSandboxedEnvironment().from_string(model.chat_template)
  prompt = template.render(messages=[question], add_generation_prompt=True)
  ids = tokenizer.encode_template(prompt)
  answer = tokenizer.decode(
    smollm2.decode_greedily(model, params, ids, most=16)
  )
  assert answer == 'The capital of France is Paris.<|im_end|>'

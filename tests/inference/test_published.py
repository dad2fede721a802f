"""Tests published PRMs against ids and scores of their authors' own code.

tests/parity compares with that code itself if torch is installed.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import prm_jax
from prm_jax.inference.published import (
  LM_STYLES,
  OWN_FORMAT,
  open_published,
  own_format,
)
from prm_jax.runtime.errors import UserError
from tests.shared import published_models
from tests.shared.golden_scores import F32, chains, golden
from tests.shared.published_models import STYLES, write_json, write_model

pytestmark = pytest.mark.once

# bfloat16 keeps 8 bits: each rounding is off by up to 2**-9 of the value. About
# 20 in a row (2 layers) add up to sqrt(20) * 2**-9 = 0.9% of the hidden state.
# Logits are sums of size |w| |x| <= 14 here, and a probability moves by a
# quarter of its logit at most: 0.009 * 14 / 4 = 0.03.
BF16_ATOL = 0.03


def given_style(style):
  return style if style in LM_STYLES else ''


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp('published')
  for style in STYLES:
    write_model(style, root / style)
  return root


@pytest.fixture(scope='module')
def scorers(folders):
  return {
    style: prm_jax.load(folders / style, style=given_style(style))
    for style in STYLES
  }


@pytest.mark.parametrize('style', STYLES)
def test_ids_equal_those_of_the_whole_text(scorers, style):
  for record in golden(style):
    encoding = scorers[style].format.encode(record['problem'], record['steps'])
    # A chat goes on after its last score; nothing else may be missing.
    ids = record['ids'][: len(encoding.tokens)]
    np.testing.assert_array_equal(encoding.tokens, ids)
    left = len(record['ids']) - len(encoding.tokens)
    assert left == {'qwen_prm': 2, 'rlhflow': 2}.get(style, 0)
    assert encoding.step_ends[-1] == len(encoding.tokens) - 1


@pytest.mark.parametrize('style', STYLES)
def test_scores_one_by_one_and_packed(scorers, style):
  expected = [record['scores'] for record in golden(style)]
  packed = scorers[style].score_many(chains(style))
  for together, scores in zip(packed, expected, strict=True):
    np.testing.assert_allclose(together, scores, **F32)
  # In a batch of its own, padded to another length.
  alone = scorers[style].score(*chains(style)[2])
  np.testing.assert_allclose(alone, expected[2], **F32)


@pytest.mark.parametrize('style', STYLES)
def test_scores_with_a_shared_prompt(scorers, style):
  """Prefixes of a chain are candidates whose scores are known."""
  record = max(golden(style), key=lambda record: len(record['steps']))
  count = len(record['steps'])
  candidates = [record['steps'][:n] for n in range(1, count + 1)]
  best, chain_scores, step_scores = scorers[style].best_of_n(
    record['problem'], candidates, 'last'
  )
  for n, found in enumerate(step_scores, 1):
    np.testing.assert_allclose(found, record['scores'][:n], **F32)
  np.testing.assert_allclose(chain_scores, record['scores'], **F32)
  assert best == np.argmax(record['scores'])


# The one with the deepest head, the one with the largest logits.
@pytest.mark.parametrize('style', ['qwen_prm', 'math_shepherd'])
def test_bfloat16(folders, style):
  scorer = open_published(folders / style, given_style(style), dtype='bfloat16')
  assert scorer.model.dtype == 'bfloat16'
  assert scorer.params['backbone']['embed_tokens'].dtype == 'bfloat16'
  expected = np.concatenate([record['scores'] for record in golden(style)])
  found = np.concatenate(scorer.score_many(chains(style)))
  np.testing.assert_allclose(found, expected, atol=BF16_ATOL, rtol=0)
  assert np.abs(found - expected).max() > 1e-4  # it was bfloat16


@pytest.mark.parametrize('style', STYLES)
def test_no_array_is_as_large_as_the_vocabulary_but_the_embedding(
  scorers, style
):
  scorer = scorers[style]
  assert 'lm_head' not in scorer.params['backbone']
  assert scorer.params['head']['kernel'].shape[0] == published_models.D
  assert scorer.params['head']['kernel'].shape[1] == scorer.head.outputs


def test_max_length_is_bounded_by_the_model(folders, scorers):
  longest = published_models.config_of('trl', 1)['max_position_embeddings']
  assert scorers['trl'].format.max_length == longest
  short = open_published(folders / 'trl', max_length=16)
  assert short.format.max_length == 16
  with pytest.raises(UserError, match='does not fit max_length=16'):
    short.score('How many?', ['One.', 'Two three four five six seven.'])
  with pytest.raises(UserError, match=r'max_length=-5: expected at least 1'):
    prm_jax.load(folders / 'skywork', max_length=-5)


@pytest.mark.parametrize('style', STYLES)
def test_a_text_that_is_no_unicode_is_refused(scorers, style):
  for problem, step in ('a\ud800b', 'c'), ('a', 'b\udfff'):
    with pytest.raises(UserError, match='half a surrogate pair'):
      scorers[style].score(problem, [step])


def test_a_name_tells_prms_of_a_family_apart(folders, scorers, tmp_path):
  """Equal heads on backbones that differ in a single matrix are two PRMs."""
  shutil.copytree(folders / 'trl', tmp_path / 'trained')
  path = tmp_path / 'trained' / 'model.safetensors'
  tensors = load_file(path)
  tensors['model.layers.1.mlp.up_proj.weight'] += 0.01
  save_file(tensors, path)
  others = [
    open_published(path.parent),
    open_published(folders / 'trl', separator='\n\n'),
    open_published(folders / 'trl', max_length=16),
    open_published(folders / 'trl', dtype='bfloat16'),
  ]
  name = open_published(folders / 'trl').name
  assert name == scorers['trl'].name
  assert len({name, *(other.name for other in others)}) == 5


def test_a_model_that_was_exported_has_its_own_separator(folders, tmp_path):
  """No other is ignored or guessed."""
  folder, own = tmp_path / 'exported', '<|eot_id|>'
  shutil.copytree(folders / 'trl', folder)
  (folder / OWN_FORMAT).write_text(own_format(own)[OWN_FORMAT])
  name = open_published(folder).name
  assert open_published(folder, separator=own).name == name
  with pytest.raises(UserError, match=f'{OWN_FORMAT} says .*; leave sep'):
    prm_jax.load(folder, separator='\n')
  for text in '{}', '{"separator": 5}':
    (folder / OWN_FORMAT).write_text(text)
    with pytest.raises(UserError, match=f"{OWN_FORMAT}: 'separator' is "):
      prm_jax.load(folder)


def test_trl_without_a_bias_and_with_another_separator(folders, tmp_path):
  write_model('trl', tmp_path)
  path = tmp_path / 'model.safetensors'
  tensors = load_file(path)
  bias = tensors.pop('score.bias')
  save_file(tensors, path)
  chain = ('How many?', ['One.', 'Two.'])
  with_bias = open_published(folders / 'trl', separator='\n\n')
  without = open_published(tmp_path, separator='\n\n')

  def logit(p):
    return np.log(p / (1 - p))

  np.testing.assert_allclose(
    logit(with_bias.score(*chain)) - logit(without.score(*chain)),
    bias[1] - bias[0],
    rtol=1e-4,
  )
  assert with_bias.format.separator == tuple(
    with_bias.format.tokenizer.encode('\n\n')
  )


def test_qwen_without_a_template_uses_chatml(scorers, tmp_path):
  write_model('qwen_prm', tmp_path)
  (tmp_path / 'tokenizer_config.json').unlink()
  chain = chains('qwen_prm')[0]
  np.testing.assert_array_equal(
    open_published(tmp_path).format.encode(*chain).tokens,
    scorers['qwen_prm'].format.encode(*chain).tokens,
  )


def test_a_template_file_is_preferred_to_the_config(tmp_path):
  write_model('qwen_prm', tmp_path)
  shorter = published_models.CHATML.replace('<|im_end|>\\n', '<|im_end|>')
  (tmp_path / 'chat_template.jinja').write_text(shorter)
  template = open_published(tmp_path).format.prompt_template
  assert '<|im_end|><|im_start|>user' in template


def change(path, **fields):
  write_json(path, json.loads(path.read_text()) | fields)


def with_template(template):
  return lambda folder: change(
    folder / 'tokenizer_config.json', chat_template=template
  )


def without_token(token):
  """A tokenizer.json that is whole, but for one token."""

  def edit(folder):
    path = folder / 'tokenizer.json'
    found = json.loads(path.read_text())
    added = [t for t in found['added_tokens'] if t['content'] != token]
    model = found['model']
    model['vocab'].pop(token, None)
    merges = [m for m in model['merges'] if token not in (*m, ''.join(m))]
    model['merges'] = merges
    write_json(path, found | {'added_tokens': added})

  return edit


def with_tensor(name, shape):
  def edit(folder):
    path = folder / 'model.safetensors'
    save_file(load_file(path) | {name: np.zeros(shape, np.float32)}, path)

  return edit


DROPS = '{% for m in messages %}{{ m.role }}{% endfor %}'
TWICE = '{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}'
ONLY_ONCE = published_models.LLAMA3.replace(
  "+ '<|eot_id|>'", "+ ('<|eot_id|>' if loop.first else '')"
)
NO_SPECIALS = '{% for m in messages %}{{ m.content }} {% endfor %}'
REFUSES = '{{ raise_exception("roles must alternate") }}'
D = published_models.D
FAULTS = (
  ('qwen_prm', with_template(DROPS), '', 'does not write the problem'),
  ('rlhflow', with_template(TWICE), 'rlhflow', 'exactly once, in order'),
  ('rlhflow', with_template(ONLY_ONCE), 'rlhflow', 'another way than the'),
  ('rlhflow', with_template(''), 'rlhflow', 'has no chat template'),
  ('rlhflow', with_template(REFUSES), 'rlhflow', 'roles must alternate'),
  ('rlhflow', with_template('{% if %}'), 'rlhflow', 'cannot be used'),
  ('qwen_prm', without_token('<extra_0>'), '', "'<extra_0>'"),
  ('rlhflow', without_token('+'), 'rlhflow', "no token for '\\+'"),
  ('math_shepherd', without_token('▁ки'), 'math_shepherd', "for 'ки'"),
  ('math_shepherd', without_token('▁-'), 'math_shepherd', "for '-'"),
  ('math_shepherd', None, '', 'plain language model.*math_shepherd'),
  ('math_shepherd', None, 'prm', 'expected one of qwen_prm'),
  ('math_shepherd', None, 'trl', "no tensor 'score.weight'"),
  ('trl', None, 'skywork', "has the head of style 'trl'"),
  ('trl', None, 'math_shepherd', "has the head of style 'trl'"),
  ('trl', None, 'rlhflow', "has the head of style 'trl'"),
  ('trl', with_tensor('score.weight', (1, D)), '', "'score.weight' has shape"),
  ('qwen_prm', with_tensor('score.2.bias', (3,)), '', "'score.2.bias' has"),
  ('qwen_prm', with_tensor('score.0.weight', (D, 9)), '', 'score.0.weight'),
  ('skywork', with_tensor('v_head.summary.bias', (2,)), '', 'v_head.summary'),
  ('rlhflow', None, 'math_shepherd', "no token for 'ки'"),
)


@pytest.mark.parametrize(('base', 'edit', 'style', 'message'), FAULTS)
def test_faults_are_one_line(tmp_path, base, edit, style, message):
  write_model(base, tmp_path)
  if edit:
    edit(tmp_path)
  with pytest.raises(UserError, match=message) as error:
    prm_jax.load(tmp_path, style=style)
  assert '\n' not in str(error.value)


def test_skywork_needs_its_bos(tmp_path):
  write_model('skywork', tmp_path)
  change(tmp_path / 'tokenizer_config.json', bos_token=None)
  with pytest.raises(UserError, match='has no bos_token'):
    open_published(tmp_path)


def test_a_classifier_of_whole_texts_is_refused(tmp_path):
  """It has the same tensors, and its second class may be anything."""
  write_model('trl', tmp_path)
  known = json.loads((tmp_path / 'config.json').read_text())['architectures'][0]
  other = known.replace('ForTokenClassification', 'ForSequenceClassification')
  change(tmp_path / 'config.json', architectures=[other])
  with pytest.raises(UserError, match='classifier of whole texts'):
    open_published(tmp_path)


def test_ids_beyond_the_embedding_are_refused(tmp_path):
  write_model('trl', tmp_path)
  change(tmp_path / 'config.json', vocab_size=300)
  with pytest.raises(UserError, match='has the id 300, but the embedding'):
    open_published(tmp_path)


def test_step_and_style_are_refused_if_they_do_not_apply(folders, tmp_path):
  with pytest.raises(UserError, match='so it has no step 3'):
    prm_jax.load(folders / 'trl', step=3)
  write_json(tmp_path / 'model.json', {})  # as a run leaves one
  with pytest.raises(UserError, match='which takes no style, sep'):
    prm_jax.load(tmp_path, style='trl', separator='.')


@pytest.mark.parametrize('style', [s for s in STYLES if s != 'trl'])
def test_a_style_that_knows_its_separator_takes_none(folders, style):
  with pytest.raises(UserError, match=f"'{style}', which knows how steps end"):
    prm_jax.load(folders / style, style=style, separator='.')


def test_a_name_on_the_hub_is_not_taken_for_a_workdir():
  # Not a possible name, so that no network is asked.
  with pytest.raises(UserError, match='hf://a/b/c is neither in the cache'):
    prm_jax.load('hf://a/b/c')

"""Exported models give the scores of the run that they come from."""

import json
import shutil

import jax
import numpy as np
import pytest

import prm_jax
from prm_jax import export
from prm_jax.inference import loading
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.inference.published import OWN_FORMAT
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig, init_head, step_logits
from prm_jax.models.heads import step_probabilities
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.models.hub.weights import HEAD_TENSORS, load_backbone
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from tests.models.hub import published_configs
from tests.models.hub.published_configs import (
  CONFIGS,
  read_head,
  shapes,
  write_published,
)
from tests.shared.command_line import copy_run
from tests.shared.published_models import write_model
from tests.shared.smollm2 import open_or_skip

CHAINS = [('mod 10 : 1 + 2', ['1 + 2 = 3']), ('mod 10 : 3 * 4', ['3 * 4 = 1'])]
TWO_CLASS = HeadConfig('two_class')


def test_an_exported_run_gives_the_same_scores(finished, tmp_path, capsys):
  arguments = ['--from', str(finished), '--to', str(tmp_path / 'out')]
  export.main([*arguments, '--layout', 'token_classification'])
  assert 'token_classification; no tokenizer, it is' in capsys.readouterr().out
  run = loading.load(finished)
  config, longest = read_architecture(tmp_path / 'out')
  assert longest == run.format.max_length
  files = TensorFiles(tmp_path / 'out')
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  names = tuple(HEAD_TENSORS['token_classification'].values())
  params = {
    'backbone': load_backbone(files, config, mesh, also=names),
    'head': read_head(files, 'token_classification'),
  }
  read_back = Scorer(params, config, TWO_CLASS, run.format, mesh)
  expected = run.score_many(CHAINS)
  for scorer in read_back, loading.load(tmp_path / 'out'):
    for ours, theirs in zip(scorer.score_many(CHAINS), expected, strict=True):
      assert np.abs(ours - theirs).max() < 1e-6
  for name in 'words', 5:
    text = json.dumps({'tokenizer': name, 'separator': ''})
    (tmp_path / 'out' / OWN_FORMAT).write_text(text)
    with pytest.raises(UserError, match=f"tokenizer '{name}'"):
      loading.load(tmp_path / 'out')


def test_two_classes_give_the_probabilities_of_a_logit():
  head = HeadConfig('logit', hidden=5)
  params = init_head(jax.random.key(0), 8, head)
  params['bias'] += 0.7
  hidden = jax.random.normal(jax.random.key(1), (2, 3, 8))
  ends = np.array([[0, 2], [1, 2]])
  expected = step_probabilities(step_logits(params, hidden, ends), head)
  two = export.two_classes(params, head)
  found = step_probabilities(step_logits(two, hidden, ends), TWO_CLASS)
  assert two['kernel'].shape == (5, 2)
  assert np.abs(found - expected).max() < 1e-6
  assert export.two_classes(two, TWO_CLASS) is two
  with pytest.raises(UserError, match=r"head.kind='regression' is not stored"):
    export.two_classes(params, HeadConfig('regression'))
  with pytest.raises(UserError, match=r'head.likelihood reads more'):
    export.two_classes(params, HeadConfig(likelihood=True))


def test_a_base_model_can_only_be_exported_as_lm(tmp_path, capsys):
  folder = str(write_published(tmp_path / 'in', 'qwen3'))
  arguments = ['--from', folder, '--to', str(tmp_path / 'out')]
  for wrong in (
    ['--layout', 'token_classification'],
    ['--layout', 'lm', '--step', '3'],
  ):
    with pytest.raises(SystemExit) as stop:
      export.main([*arguments, *wrong])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f'error: {folder} is no workdir of a run')
    assert printed.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_a_base_model_keeps_its_chat_template(tmp_path):
  folder = tmp_path / 'in'
  write_model('rlhflow', folder)
  base = open_pretrained(str(folder))
  template = base.read_chat_template()
  assert '{%' in template
  export.export(str(folder), tmp_path / 'with', 'lm')
  again = open_pretrained(str(tmp_path / 'with'))
  assert again.read_chat_template() == template
  assert again.tokenizer.json == base.tokenizer.json
  (folder / 'tokenizer_config.json').unlink()
  export.export(str(folder), tmp_path / 'without', 'lm')
  assert not (tmp_path / 'without' / 'chat_template.jinja').exists()


def test_the_tokenizer_of_a_base_is_that_of_its_folder(tmp_path):
  """Its special tokens are, and not those of the family in transformers."""
  folder = tmp_path / 'in'
  write_model('rlhflow', folder)
  config = json.loads((folder / 'config.json').read_text())
  config |= {'bos_token_id': 1, 'eos_token_id': [2, 3]}
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 3]}')
  (folder / 'tokenizer_old').mkdir()  # nobody's business
  export.export(str(folder), tmp_path / 'out', 'lm')
  for name in ('tokenizer_config.json', 'generation_config.json'):
    assert (tmp_path / 'out' / name).read_text() == (folder / name).read_text()
  written = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert (written['bos_token_id'], written['eos_token_id']) == (1, [2, 3])
  chain = ('What?', ['One.', 'Two.'])
  before, after = (
    prm_jax.load(path, style='rlhflow') for path in (folder, tmp_path / 'out')
  )
  ids = before.format.encode(*chain).tokens
  np.testing.assert_array_equal(ids, after.format.encode(*chain).tokens)


def test_a_file_beside_the_weights_that_is_no_text_is_told(tmp_path):
  write_model('rlhflow', tmp_path / 'in')
  (tmp_path / 'in' / 'generation_config.json').write_bytes(b'\xff\xfe{')
  with pytest.raises(UserError, match=r'generation_config.json cannot be read'):
    export.export(str(tmp_path / 'in'), tmp_path / 'out', 'lm')


def test_the_tokenizer_of_a_single_file_names_its_class(tmp_path):
  """Else transformers takes that of the model's family, with other ids."""
  model, _, tokenizer = open_or_skip()
  base = open_pretrained('smollm2')
  source = export.Source({}, base.model, base.tokenizer, base.longest)
  export._write_tokenizer(tmp_path, source, base.token_ids)
  names = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert names['tokenizer_class'] == 'PreTrainedTokenizerFast'
  for name in ('bos', 'eos'):
    number = model.file.metadata[f'tokenizer.ggml.{name}_token_id']
    assert base.token_ids[f'{name}_token_id'] == number
    assert tokenizer.id_of(names[f'{name}_token']) == number


def test_a_checkpoint_that_was_not_measured_has_no_results(finished, tmp_path):
  steps = [int(path.name) for path in (finished / 'checkpoints').iterdir()]
  best = loading.best_step(finished, loading.read_description(finished))
  other = next(step for step in steps if step != best)
  for step in best, other:
    to = tmp_path / str(step)
    export.export(str(finished), to, 'token_classification', step)
    card = (to / 'README.md').read_text()
    assert f'"checkpoint": {step}' in card
    assert ('## Results' in card) == (step == best)
    assert ('measured another checkpoint' in card) == (step != best)


def test_the_folder_in_which_one_stands_can_be_written(
  finished, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  export.export(str(finished), '.', 'token_classification')
  assert (tmp_path / 'README.md').exists()
  assert loading.load(tmp_path).score_many(CHAINS)


def test_a_tilde_is_the_home_folder(finished, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  export.export(str(finished), tmp_path / 'prm', 'token_classification')
  assert loading.load('~/prm').score_many(CHAINS)
  (tmp_path / 'run').symlink_to(finished)
  assert open_pretrained('~/run').head is not None


def with_values(run, **sections):
  """Changes what the model.json of a run says."""
  path = run / 'model.json'
  values = json.loads(path.read_text())
  for name, changes in sections.items():
    values[name] |= changes
  path.write_text(json.dumps(values))


@pytest.mark.parametrize(
  ('layout', 'sections', 'message'),
  [
    ('token_classification', {'head': {'kind': 'regression'}}, "'regression'"),
    ('token_classification', {'head': {'likelihood': True}}, 'reads more than'),
    ('token_classification', {'head': {'hidden': 8}}, "of .'bias', 'kernel'"),
    ('process_reward_model', {}, 'a model of the Qwen2 family'),
    ('lm', {'model': {'qkv_bias': True, 'qk_norm': True}}, 'no published fam'),
  ],
)
def test_what_no_layout_stores_is_found_before_loading(
  layout, sections, message, finished, tmp_path
):
  run = copy_run(finished, tmp_path / 'run')
  shutil.rmtree(run / 'checkpoints')
  with_values(run, **sections)
  with pytest.raises(UserError, match=message):
    export.export(str(run), tmp_path / 'out', layout)
  with pytest.raises(UserError, match='run exists and is not empty'):
    export.export(str(run), run, layout)


def test_a_base_that_cannot_be_written_is_not_loaded(tmp_path):
  folder = tmp_path / 'in'
  write_model('rlhflow', folder)
  known = json.loads((folder / 'config.json').read_text())
  config = CONFIGS['llama3'] | {'vocab_size': known['vocab_size']}
  config |= {'num_attention_heads': 6, 'head_dim': 8}
  # These cannot be loaded.
  tensors = {
    name: np.full(shape, np.nan, np.float32)
    for name, shape in shapes(config).items()
  }
  published_configs.write_model(folder, config, tensors)
  with pytest.raises(UserError, match='d_model=32 is no multiple of n_he'):
    export.export(str(folder), tmp_path / 'out', 'lm')
  with pytest.raises(UserError, match='in exists and is not empty'):
    export.export(str(folder), folder, 'lm')


def test_an_export_that_fails_leaves_nothing(finished, tmp_path):
  """Half of a PRM's folder would be read in another format."""
  run = copy_run(finished, tmp_path / 'run')
  (run / 'results.json').write_text('{"manifest": ')
  with pytest.raises(UserError, match=r'results\.json'):
    export.export(str(run), tmp_path / 'out', 'token_classification')
  assert not (tmp_path / 'out').exists()

"""Both ways against transformers itself, where it and torch are installed.

    pip install 'torch>=2.5' 'transformers>=4.51'

Everywhere else `tests/models/hub/golden/` stands in for it.
"""

import dataclasses

import jax
import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed')
transformers = pytest.importorskip(
  'transformers', reason='transformers is not installed'
)

from prm_jax import models  # noqa: E402
from prm_jax.models import HeadConfig  # noqa: E402
from prm_jax.models.hub.architectures import read_architecture  # noqa: E402
from prm_jax.models.hub.publish import SaveOptions, save_model  # noqa: E402
from prm_jax.models.hub.safetensors_files import TensorFiles  # noqa: E402
from prm_jax.models.hub.weights import load_backbone  # noqa: E402
from prm_jax.runtime.sharding import make_mesh  # noqa: E402
from tests.models.hub.published_configs import CONFIGS, TOKENS  # noqa: E402

FAMILIES = {
  'llama3': transformers.LlamaConfig,
  'qwen2': transformers.Qwen2Config,
  'qwen3': transformers.Qwen3Config,
  'mistral': transformers.MistralConfig,
  'smollm2': transformers.LlamaConfig,
}


def published(family, directory, kind, **changes):
  """A random model of the family as transformers itself saves it."""
  torch.manual_seed(0)
  config = FAMILIES[family](**CONFIGS[family] | changes)
  model = kind.from_config(config).eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      # Norms begin as ones and biases as zeros, which would hide mistakes.
      spread = 0.2 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
      start = 1.0 if name.endswith('norm.weight') else 0.0
      parameter.normal_(start, spread)
  model.save_pretrained(directory)
  return model


def theirs(model, **arguments):
  with torch.no_grad():
    return model.eval()(torch.from_numpy(TOKENS), **arguments)


def load(folder, also=()):
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  config, _ = read_architecture(folder)
  files = TensorFiles(folder)
  return load_backbone(files, config, mesh, also=also), config, files


def our_hidden(params, config):
  positions = np.broadcast_to(np.arange(TOKENS.shape[1]), TOKENS.shape)
  last = np.full_like(TOKENS, TOKENS.shape[1] - 1)
  return models.forward(params, config, TOKENS, positions, last)


@pytest.mark.parametrize('family', CONFIGS)
def test_logits_both_ways(family, tmp_path):
  kind = transformers.AutoModelForCausalLM
  model = published(family, tmp_path / 'in', kind)
  expected = theirs(model).logits.numpy()
  params, config, _ = load(tmp_path / 'in')
  ours = models.lm_logits(params, config, our_hidden(params, config))
  assert np.abs(ours - expected).max() < 1e-4
  save_model(
    tmp_path / 'out',
    params,
    config,
    'lm',
    options=SaveOptions(max_length=256, shard_bytes=20_000),
  )
  again, report = kind.from_pretrained(
    tmp_path / 'out', output_loading_info=True
  )
  assert not report['missing_keys'] and not report['unexpected_keys']
  # Bit for bit the same weights, so bit for bit the same logits.
  assert np.array_equal(theirs(again).logits.numpy(), expected)


@pytest.mark.parametrize('family', CONFIGS)
def test_cached_decode_is_their_cached_decode(family, tmp_path):
  model = published(family, tmp_path, transformers.AutoModelForCausalLM)
  params, config, _ = load(tmp_path)
  start = torch.from_numpy(TOKENS[:, :20])
  with torch.no_grad():
    first = model(start, use_cache=True)
    last = model(
      torch.from_numpy(TOKENS[:, 20:]), past_key_values=first.past_key_values
    )
  cache = models.init_cache(config, *TOKENS.shape)
  params = models.unstack_layers(params, config)
  for tokens, begin, expected in (
    (TOKENS[:, :20], 0, first.logits),
    (TOKENS[:, 20:], 20, last.logits),
  ):
    positions = np.arange(begin, begin + tokens.shape[1])
    positions = np.broadcast_to(positions, tokens.shape)
    hidden, cache = models.decode(params, config, tokens, positions, cache)
    ours = models.lm_logits(params, config, hidden)
    assert np.abs(ours - expected.numpy()).max() < 1e-4


@pytest.mark.parametrize('family', CONFIGS)
def test_token_classification_both_ways(family, tmp_path):
  kind = transformers.AutoModelForTokenClassification
  model = published(family, tmp_path / 'in', kind, num_labels=2)
  expected = theirs(model).logits.numpy()
  names = ('score.weight', 'score.bias')
  params, config, files = load(tmp_path / 'in', also=names)
  head = {'kernel': files.read(names[0]).T, 'bias': files.read(names[1])}
  everywhere = np.broadcast_to(np.arange(TOKENS.shape[1]), TOKENS.shape)
  ours = models.step_logits(head, our_hidden(params, config), everywhere)
  assert np.abs(ours - expected).max() < 1e-4
  save_model(tmp_path / 'out', params, config, 'token_classification', head)
  again, report = kind.from_pretrained(
    tmp_path / 'out', output_loading_info=True
  )
  assert not report['missing_keys'] and not report['unexpected_keys']
  assert again.config.id2label == {0: 'wrong', 1: 'right'}
  assert np.array_equal(theirs(again).logits.numpy(), expected)


def test_a_process_reward_model_goes_out(tmp_path):
  """The published model brings its own code; its head is this one."""
  published('qwen2', tmp_path / 'in', transformers.AutoModelForCausalLM)
  params, config, _ = load(tmp_path / 'in')
  head_config = HeadConfig('two_class', hidden=config.d_model)
  head = models.init_head(jax.random.key(0), config.d_model, head_config)
  head['bias'] += 0.3
  save_model(tmp_path / 'out', params, config, 'process_reward_model', head)
  backbone = transformers.AutoModel.from_pretrained(tmp_path / 'out')
  hidden = theirs(backbone).last_hidden_state
  width = config.d_model
  score = torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
  )
  files = TensorFiles(tmp_path / 'out')
  score.load_state_dict(
    {
      name: torch.from_numpy(files.read(f'score.{name}'))
      for name in score.state_dict()
    }
  )
  everywhere = np.broadcast_to(np.arange(TOKENS.shape[1]), TOKENS.shape)
  tied = dataclasses.replace(config, tie_embeddings=True)
  ours = models.step_logits(head, our_hidden(params, tied), everywhere)
  assert np.abs(ours - score(hidden).detach().numpy()).max() < 1e-4

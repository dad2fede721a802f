"""What a server asks of a critic."""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from prm_jax.data.encoding import make_format
from prm_jax.inference.generative_prm import CritiqueConfig, GenerativePrm
from prm_jax.inference.loading import (
  ModelDescription,
  load_policy,
  write_description,
)
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.models import LoraConfig, TransformerConfig, init_params
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.serve.critics import open_critic

# It leaves room for more tokens than a SamplingConfig allows by default.
FORMAT = make_format('arithmetic_critic', 512)
MODEL = TransformerConfig(
  vocab_size=FORMAT.tokenizer.vocab_size,
  d_model=16,
  n_layers=2,
  n_heads=2,
  n_kv_heads=1,
  d_ff=16,
)
PROBLEM, STEPS = 'mod 10 : 7 * 3 + 4', ('7 * 3 = 1', '1 + 4 = 5')


class Saved(NamedTuple):
  params: Any
  key: jax.Array


@pytest.fixture
def untrained(tmp_path):
  """The workdir of a critic of random weights, which ends no critique."""
  described = ModelDescription(MODEL, None, LoraConfig(), FORMAT)
  write_description(tmp_path, described)
  backbone = init_params(jax.random.key(0), MODEL)
  embedding = backbone['embed_tokens'].at[FORMAT.end].set(0.0)
  params = {'backbone': backbone | {'embed_tokens': embedding}}
  checkpoints = Checkpoints(tmp_path / 'checkpoints', 1, '')
  state = Saved(params, jax.random.key(0))
  checkpoints.save(1, state, {'nothing': np.zeros(1)}, {})
  checkpoints.close()
  return tmp_path


def test_a_critique_may_fill_the_window(untrained):
  """As in a job whose limit is no shorter than the window."""
  served = open_critic(
    'critic', str(untrained), 'r_prm', 1, 'float32', flat_mesh()
  )
  chain = served.scorer.encode(PROBLEM, STEPS)
  [found] = served.scorer.score_ids([chain])
  sampling = SamplingConfig(0.0, max_tokens=FORMAT.max_length)
  own = GenerativePrm(
    load_policy(untrained, sampling, dtype='float32'),
    CritiqueConfig(style='r_prm'),
  )
  [[wanted]] = own.score([Scoring(PROBLEM, STEPS)])
  assert wanted.tokens >= len(STEPS) * FORMAT.max_length
  assert found == wanted

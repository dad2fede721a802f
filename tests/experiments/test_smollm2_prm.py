"""The likelihoods and the judging of smollm2_prm, beside their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.smollm2_prm import judging, likelihood
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.models import TransformerConfig, forward, init_params, lm_logits

pytestmark = pytest.mark.once


@pytest.fixture
def backbone():
  config = TransformerConfig(
    vocab_size=260, d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=32
  )
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), config)
  return params, config


def chains() -> list[Chain]:
  return [
    Chain(f'{i} and {i + 1}?', tuple(f'that is {n}' for n in range(1 + i % 3)))
    for i in range(9)
  ]


LONGEST = 64  # tokens


@functools.partial(jax.jit, static_argnums=1)
def row_logprobs(params, config, row):  # [T] -> [T]
  positions = jnp.arange(len(row))[None]
  last = jnp.full((1, len(row)), len(row) - 1)
  hidden = forward(params, config, row[None], positions, last)
  logs = jax.nn.log_softmax(lm_logits(params, config, hidden)[0])
  return jnp.r_[0.0, logs[jnp.arange(len(row) - 1), row[1:]]]


def alone(params, config, tokens: np.ndarray) -> np.ndarray:  # [T] -> [T]
  """Computes the log-probabilities of one chain, alone in its row."""
  # What stands behind the chain has no effect on it: attention is causal.
  row = np.zeros(LONGEST, tokens.dtype)
  row[: len(tokens)] = tokens
  return np.asarray(row_logprobs(params, config, row))[: len(tokens)]


def test_packed_logprobs_equal_those_of_each_chain_alone(backbone, tmp_path):
  params, config = backbone
  fmt = make_format('bytes', 256)
  encodings = [likelihood.encode(chain, fmt) for chain in chains()]
  path = tmp_path / 'logprobs.npz'
  lines = []
  likelihood.read_or_compute(
    encodings[:4], path, lambda: params, config, lines.append
  )
  known = likelihood.read_or_compute(
    encodings, path, lambda: params, config, lines.append
  )
  assert len(known) == len(encodings)
  for encoding in encodings:
    np.testing.assert_allclose(
      known[likelihood.key_of(encoding)],
      alone(params, config, encoding.tokens),
      atol=1e-5,
    )
  # The second call computed what the first had not, and no more.
  rest = sum(len(encoding.tokens) for encoding in encodings[4:])
  assert lines[-1].endswith(f'{rest} of {rest} tokens')


def test_what_is_in_the_file_needs_no_backbone(backbone, tmp_path):
  params, config = backbone
  fmt = make_format('bytes', 256)
  encodings = [likelihood.encode(chain, fmt) for chain in chains()]
  path = tmp_path / 'logprobs.npz'
  log = [].append
  first = likelihood.read_or_compute(
    encodings, path, lambda: params, config, log
  )

  def refuse():
    raise AssertionError('the backbone was loaded')

  again = likelihood.read_or_compute(encodings, path, refuse, config, log)
  assert again.keys() == first.keys()
  assert all((again[key] == first[key]).all() for key in first)


def test_step_scores_by_hand():
  fmt = make_format('bytes', 12)
  chain = Chain('q', ('a1', 'b', '23', 'far away'))
  encoding = likelihood.encode(chain, fmt)
  # <bos> q <end> | a 1 <end> | b <end> | 2 3 <end>; the last step is not read
  values = -np.arange(11, dtype=np.float32)
  scores = likelihood.step_scores(
    encoding,
    {likelihood.key_of(encoding): values},
    fmt.digit_tokens,
    len(fmt.separator),
  )
  assert scores['digits'].tolist() == [-4, 0, -17]
  assert scores['mean'].tolist() == [-3.5, -6, -8.5]
  assert scores['minimum'].tolist() == [-4, -6, -9]


def labelled(steps: int, first_error: int) -> Chain:
  values = [float(i != first_error) for i in range(steps)]
  return Chain('q', ('s',) * steps, labels=tuple(map(StepLabel, values)))


def test_length_rule_finds_the_rule_that_made_the_chains():
  part = judging.make_part(
    [labelled(n, 2 if n >= 5 else -1) for n in (1, 3, 4, 5, 6, 9)]
  )
  rule = judging.choose_length_rule(part)
  assert rule == (5, 2)
  assert judging.length_guess(part.mask, *rule).tolist() == [-1] * 3 + [2] * 3


def test_thresholds_come_from_dev_and_rows_are_paired():
  dev = judging.make_part([labelled(2, 1), labelled(2, -1)] * 3)
  test = judging.make_part([labelled(2, 1), labelled(2, -1)] * 5)
  good, bad = np.array([0.9, 0.2]), np.array([0.9, 0.8])
  shifted = [np.array([0.4, 0.1]), np.array([0.4, 0.3])]
  scores = {
    judging.REFERENCE: {'dev': [good, bad] * 3, 'test': shifted * 5},
    'other': {'dev': [good, bad] * 3, 'test': [good, bad] * 5},
  }
  found = judging.compare(scores, {'dev': dev, 'test': test}, 0, 50)['test']
  # At dev's threshold of 0.5 every first step of the shifted scores is low.
  assert found['other']['threshold'] == pytest.approx(0.5)
  assert found['other']['f1'] == 1
  assert found[judging.REFERENCE]['f1'] == 0
  assert found[judging.REFERENCE]['upper_bound']['f1'] == 1
  lead = found['other'][f'minus_{judging.REFERENCE}']
  assert lead == {'difference': 1, 'ci95': [1, 1]}
  assert found[judging.LENGTH_RULE]['f1'] == 0  # all chains are equally long


def test_sum_of_signals_is_in_units_of_their_spread_on_dev():
  logits = {'dev': [np.array([-2.0, 2.0])], 'test': [np.array([4.0])]}
  logs = {'dev': [np.array([-10.0, 0.0])], 'test': [np.array([-5.0])]}
  probabilities = {
    name: [1 / (1 + np.exp(-x)) for x in values]
    for name, values in logits.items()
  }
  both = judging.add_signals(probabilities, logs)
  np.testing.assert_allclose(both['dev'][0], [-1 - 2, 1 + 0])
  np.testing.assert_allclose(both['test'][0], [2 - 1])

"""The likelihoods and the judging of smollm2_prm, beside their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.smollm2_prm import frozen, judging, likelihood, states
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.targets import TargetConfig
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


@functools.partial(jax.jit, static_argnums=1)
def alone(params, config, row):  # [T] -> [T, D], [T]
  """Computes states and log-probabilities of one chain, alone in its row."""
  positions = jnp.arange(len(row))[None]
  last = jnp.full((1, len(row)), len(row) - 1)
  hidden = forward(params, config, row[None], positions, last)
  logs = jax.nn.log_softmax(lm_logits(params, config, hidden)[0])
  read = logs[jnp.arange(len(row) - 1), row[1:]]
  return hidden[0], jnp.r_[0.0, read]


def test_features_are_those_of_each_chain_alone(backbone, tmp_path):
  params, config = backbone
  fmt, log = make_format('bytes', 256), [].append
  found = states.read_or_load(
    chains(), tmp_path, (config, fmt), lambda: params, log
  )
  for chain, own in list(zip(chains(), found, strict=True))[:4]:
    encoding = fmt.encode(chain.problem, chain.steps)
    hidden, logs = alone(params, config, encoding.tokens)
    np.testing.assert_allclose(
      own[:, : config.d_model], hidden[encoding.step_ends], atol=1e-4
    )
    scores = likelihood.step_scores(
      encoding, np.asarray(logs), fmt.digit_tokens, 1
    )
    for name, column in zip(
      states.RULES, own[:, config.d_model :].T, strict=True
    ):
      np.testing.assert_allclose(column, scores[name], atol=1e-4)

  def refuse():
    raise AssertionError('the backbone was loaded')

  again = states.read_or_load(chains(), tmp_path, (config, fmt), refuse, log)
  assert all((a == b).all() for a, b in zip(found, again, strict=True))


def test_step_scores_by_hand():
  fmt = make_format('bytes', 12)
  chain = Chain('q', ('a1', 'b', '23', 'far away'))
  encoding = likelihood.encode(chain, fmt)
  # <bos> q <end> | a 1 <end> | b <end> | 2 3 <end>; the last step is not read
  values = -np.arange(11, dtype=np.float32)
  scores = likelihood.step_scores(
    encoding, values, fmt.digit_tokens, len(fmt.separator)
  )
  assert scores['digits'].tolist() == [-4, 0, -17]
  assert scores['mean'].tolist() == [-3.5, -6, -8.5]
  assert scores['minimum'].tolist() == [-4, -6, -9]


def test_heads_learn_what_tells_right_from_wrong():
  """The state's first number is the label, up to noise; the rest is noise."""
  rng = np.random.default_rng(0)

  def draw(count):
    made, features = [], []
    for i in range(count):
      first = int(rng.integers(-1, 3))
      values = [float(n != first) for n in range(3)]
      labels = tuple(map(StepLabel, values))
      made.append(Chain(f'q{i}', ('a', 'bb', '7'), labels=labels))
      own = rng.normal(size=(3, 4 + len(states.RULES)))
      own[:, 0] += 4 * np.array(values)
      features.append(own.astype(np.float32))
    return made, features

  parts, features = {}, {}
  for name in ('dev', 'test'):
    made, features[name] = draw(100)
    parts[name] = judging.make_part(made)
  train = draw(200)
  found = frozen.head_scores(train, parts, features, TargetConfig(), 1)
  assert found.keys() == frozen.HEADS.keys()
  scores = {judging.REFERENCE: [found['likelihood_head']]} | {
    row: [by_set] for row, by_set in found.items()
  }
  judged = judging.compare(scores, parts, 0, 50)['test']
  assert judged['state_head']['auc']['value'] > 0.95
  assert judged['both_head']['auc']['value'] > 0.95
  # Place says a little: the first error is early more often than late.
  assert judged['likelihood_head']['auc']['value'] < 0.7
  drawn = frozen.drawn_problems(train[0], 1)
  assert len(drawn) == 160 and drawn != frozen.drawn_problems(train[0], 2)


def test_rules_and_texts_are_of_the_steps_that_were_read():
  chain = Chain('q', ('a 12', 'b', 'not read'), labels=(StepLabel(1.0),) * 3)
  own = np.array([[9, -1, -2, -3], [9, -4, -5, -6]], np.float32)
  parts = {'dev': judging.make_part([chain])}
  found = frozen.untrained_scores(parts, {'dev': [own]})
  assert found[judging.REFERENCE][0]['dev'][0].tolist() == [-1, -4]
  assert found['minimum_likelihood'][0]['dev'][0].tolist() == [-3, -6]
  assert found['digit_count'][0]['dev'][0].tolist() == [-2, 0]
  assert frozen.inputs_of('both_head', chain, own).tolist() == [
    [9, -1, -2, -3, 4, 2, 0],
    [9, -4, -5, -6, 1, 0, 1],
  ]


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
  of_other = {'dev': [good, bad] * 3, 'test': [good, bad] * 5}
  scores = {
    judging.REFERENCE: [{'dev': [good, bad] * 3, 'test': shifted * 5}],
    'other': [of_other],
    'two runs': [of_other, {'dev': [bad, good] * 3, 'test': [bad, good] * 5}],
  }
  found = judging.compare(scores, {'dev': dev, 'test': test}, 0, 50)['test']
  # At dev's threshold of 0.5 every first step of the shifted scores is low.
  other, reference = found['other'], found[judging.REFERENCE]
  assert other['runs'][0]['threshold'] == pytest.approx(0.5)
  assert other['f1'] == 1
  assert reference['f1'] == 0
  assert reference['runs'][0]['upper_bound']['f1'] == 1
  lead = other[f'minus_{judging.REFERENCE}']
  assert lead == {'difference': 1, 'ci95': [1, 1], 'seeds': [1]}
  assert found[judging.LENGTH_RULE]['f1'] == 0  # all chains are equally long
  # Of the steps up to the first error only the wrong one scores low.
  assert other['auc']['value'] == 1
  assert other['auc'][f'minus_{judging.REFERENCE}']['difference'] == 0
  two = found['two runs']
  assert two['seeds'][0] == 1
  assert two['auc']['seeds'] == [1, pytest.approx(2 / 3)]
  assert two['auc']['value'] == pytest.approx(5 / 6)
  assert two['ci95'][1] - two['ci95'][0] > 1  # two seeds that differ say little


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

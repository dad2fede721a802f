"""Features of a backbone that stays as it is, and the heads on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.neutral_labels import features, heads, states
from experiments.smollm2_prm import likelihood
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.models import TransformerConfig, forward, init_params

pytestmark = pytest.mark.once

MODEL = TransformerConfig(
  vocab_size=260, d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=32
)


def chains(count: int = 20) -> list[Chain]:
  return [
    Chain(
      f'{i} and {i + 1}?',
      tuple(f'that is {n}' for n in range(1 + i % 3)),
      labels=tuple(
        StepLabel(1.0, neutral=(i + n) % 5 == 0) for n in range(1 + i % 3)
      ),
    )
    for i in range(count)
  ]


def test_states_and_likelihoods_are_those_of_each_chain_alone(tmp_path):
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), MODEL)
  fmt, log = make_format('bytes', 256), [].append
  found = states.read_or_load(
    chains(), tmp_path, (MODEL, fmt), lambda: params, log
  )
  for chain, own in list(zip(chains(), found, strict=True))[:4]:
    tokens = fmt.encode(chain.problem, chain.steps)
    row = jnp.asarray(tokens.tokens)[None]
    last = jnp.full_like(row, row.size - 1)
    hidden = forward(params, MODEL, row, jnp.arange(row.size)[None], last)
    np.testing.assert_allclose(
      own[:, : MODEL.d_model], hidden[0, tokens.step_ends], atol=1e-4
    )
    logs = likelihood.read_or_compute(
      [tokens], tmp_path / f'{chain.problem}.npz', lambda: params, MODEL, log
    )
    scores = likelihood.step_scores(tokens, logs, fmt.digit_tokens, 1)
    for name, column in zip(
      states.RULES, own[:, MODEL.d_model :].T, strict=True
    ):
      np.testing.assert_allclose(column, scores[name], atol=1e-4)

  def refuse():
    raise AssertionError('the backbone was loaded')

  again = states.read_or_load(chains(), tmp_path, (MODEL, fmt), refuse, log)
  assert all((a == b).all() for a, b in zip(found, again, strict=True))


def test_a_head_finds_the_shares_of_two_groups():
  group = np.repeat([0.0, 1.0], [4, 6])[:, None]
  targets = np.array([1, 0, 0, 0, 1, 1, 0.5, 0.5, 1, 0])
  head = heads.fit(group, targets, 1e-12)
  assert head.score(np.array([[0.0], [1.0]])) == pytest.approx(
    [0.25, 4 / 6], abs=1e-6
  )
  # With an endless decay only the constant is left.
  flat = heads.fit(group, targets, 1e9).score(group)
  assert flat == pytest.approx(np.full(10, 0.5), abs=1e-6)


def test_auc_differences_by_hand():
  right = np.array([True, False] * 6)
  good, bad = right.astype(float), 1 - right.astype(float)
  problems = np.repeat(np.arange(6), 2)
  found = heads.auc_difference(np.stack([good, bad]), right, problems, 0, 50)
  assert found == (1, 1, 1)
  found = heads.auc_difference(np.stack([good, good]), right, problems, 0, 50)
  assert found == (0, 0, 0)


def test_held_out_problems_are_not_trained_on():
  part = features.Part(chains(), [np.zeros((1, 2))] * 20)
  train, dev = features.split(part, 0)
  assert len(dev.chains) == 5 and len(train.chains) == 15
  assert not {c.problem for c in train.chains} & {c.problem for c in dev.chains}
  other, _ = features.split(part, 1)
  assert [c.problem for c in other.chains] != [c.problem for c in train.chains]


def test_neutral_steps_are_not_ranked():
  before = chains()
  after = features.without_neutral(before)
  for old, new in zip(before, after, strict=True):
    assert [it.value is None for it in new.labels] == [
      it.neutral for it in old.labels
    ]
  part = features.Part(after, [])
  steps = features.ranked(part, [np.zeros(len(c.steps)) for c in after])
  neutral = sum(it.neutral for c in before for it in c.labels)
  assert len(steps.scores) == sum(len(c.steps) for c in before) - neutral


def test_targets_of_a_neutral_step():
  chain = Chain(
    'q', ('a', 'b'), labels=(StepLabel(1.0), StepLabel(1.0, neutral=True))
  )
  part = features.Part([chain], [np.array([[1.0], [2.0]])])
  expected = {'good': [1, 1], 'bad': [1, 0], 'half': [1, 0.5], 'ignore': [1]}
  for arm, values in expected.items():
    assert features.targets_of(part, arm)[1].tolist() == values

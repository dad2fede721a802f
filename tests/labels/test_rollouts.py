"""Rollout labels against the exact values of the arithmetic domain."""

import dataclasses
import math

import numpy as np
import pytest

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.data.verify import answers
from prm_jax.inference import grading
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Completion
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.labels import rollouts
from prm_jax.labels.rollouts import RolloutConfig
from prm_jax.runtime.errors import UserError
from tests.labels.run_labellings import count_samples, run

# Less sure of its beliefs than the default solver, so that all values occur.
DOMAIN = arithmetic.ArithmeticConfig(use_wrong=0.5, slip=0.1)
# Standard errors allowed for one number at a fixed seed.
Z = 4.0


def sampled(count, samples=1, seed=0):
  """Chains, and the exact value after each of their steps, [chains, K]."""
  transitions = arithmetic.make_solver(DOMAIN)
  problems = arithmetic.sample_problems(DOMAIN, count, seed)
  results = arithmetic.sample_results(transitions, problems, samples, seed)
  values = arithmetic.prefix_values(transitions, problems, DOMAIN.modulus)
  exact = arithmetic.chain_values(values, results)
  chains = arithmetic.to_chains(DOMAIN, problems, results)
  return chains, exact.reshape(len(chains), -1)


def labelled(chains, config, policy=None):
  results, asked = run(
    [rollouts.label(chain, config) for chain in chains],
    policy or SolverPolicy(DOMAIN, seed=1),
  )
  return results, asked


@pytest.mark.slow
@pytest.mark.parametrize('k', [8, 32, 128])
def test_values_are_unbiased_and_spread_as_the_binomial(k):
  chains, exact = sampled(600)
  found, _ = labelled(chains, RolloutConfig(samples=k))
  label = [[each.successes for each in chain.labels] for chain in found]
  successes = np.array(label)[:, :-1].ravel()
  value = exact[:, :-1].ravel()
  variance = k * value * (1 - value)
  # For all prefixes together, and for every tenth of them by value.
  z = (successes - k * value).sum() / math.sqrt(variance.sum())
  assert abs(z) < Z
  for here in np.array_split(value.argsort(), 10):
    z = (successes - k * value)[here].sum() / math.sqrt(variance[here].sum())
    assert abs(z) < Z
  # Each prefix's squared deviation in units of its variance has mean 1 and
  # the binomial's own variance, 2 + (1 - 6 v (1 - v)) / (k v (1 - v)).
  sure = variance > 0.5
  squared = ((successes - k * value) ** 2 / variance)[sure]
  spread = 2 + ((1 - 6 * value * (1 - value)) / variance)[sure]
  z = (squared - 1).sum() / math.sqrt(spread.sum())
  assert abs(z) < Z
  assert sure.sum() > 1000


@pytest.mark.parametrize('k', [8, 32])
@pytest.mark.parametrize('threshold', [0.0, 0.5])
def test_hard_labels_err_as_the_binomial_says(k, threshold):
  # A hard label is wrong if k rollouts fall on the other side of the threshold
  # than the value.
  chains, exact = sampled(600, seed=2)
  found, _ = labelled(chains, RolloutConfig(samples=k))
  config = TargetConfig(after_first_error='keep', hard_above=threshold)
  hard = np.stack([step_targets(each, 5, config).values for each in found])
  value = exact[:, :-1].ravel()
  wrong = (hard[:, :-1].ravel() > 0) != (value > threshold)
  below = math.floor(threshold * k)  # successes that give label 0
  tail = sum(
    math.comb(k, i) * value**i * (1 - value) ** (k - i)
    for i in range(below + 1)
  )
  expected = np.where(value > threshold, tail, 1 - tail)
  error = math.sqrt((expected * (1 - expected)).sum())
  assert abs(wrong.sum() - expected.sum()) < Z * error
  assert expected.sum() > 30


def test_the_last_step_has_the_outcome_and_takes_no_rollouts():
  chains, _ = sampled(30)
  found, asked = labelled(chains, RolloutConfig(samples=4))
  assert {chain.outcome for chain in chains} == {True, False}
  for chain, after, rounds in zip(chains, found, asked, strict=True):
    last = after.labels[-1]
    assert last.value == float(chain.outcome)
    assert (last.successes, last.trials) == (4 * chain.outcome, 4)
    assert [len(request.steps) for request in rounds[0]] == [1, 2, 3, 4]
    assert count_samples(rounds) == 16
    assert {each.source for each in after.labels} == {'rollout'}
    meta = {**chain.meta, 'rollouts': {'unfinished': 0, 'unknown': 0}}
    assert after == dataclasses.replace(chain, labels=after.labels, meta=meta)
  # An unknown outcome is graded from the last step.
  unknown = [dataclasses.replace(chain, outcome=None) for chain in chains]
  again, _ = labelled(unknown, RolloutConfig(samples=4))
  assert [x.labels for x in again] == [x.labels for x in found]


def test_a_chain_that_was_cut_off_is_rolled_out_from_its_end():
  """Its last step may be right, although it reached no answer."""
  [chain], _ = sampled(1)
  cut = dataclasses.replace(
    chain,
    steps=chain.steps[:2],
    labels=(),
    outcome=False,
    meta={**chain.meta, 'finished': False},
  )
  [found], [rounds] = labelled([cut], RolloutConfig(samples=4))
  assert [len(request.steps) for request in rounds[0]] == [1, 2]
  whole, _ = labelled([chain], RolloutConfig(samples=4))
  assert found.labels == whole[0].labels[:2]
  one = dataclasses.replace(cut, steps=chain.steps[:1])
  [found], [rounds] = labelled([one], RolloutConfig(samples=4))
  assert count_samples(rounds) == found.labels[0].trials == 4


def test_probability_above_is_the_beta_tail():
  # By numerical integration of the posterior density of the rate.
  for successes, trials, threshold in ((0, 0, 0.3), (3, 8, 0.5), (7, 9, 0.25)):
    rate = (np.arange(200_000) + 0.5) / 200_000
    density = rate**successes * (1 - rate) ** (trials - successes)
    exact = density[rate > threshold].sum() / density.sum()
    found = rollouts.probability_above(threshold, successes, trials)
    assert found == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize('trials', [1_200, 100_000])
def test_probability_above_of_many_trials(trials):
  half = trials // 2
  assert rollouts.probability_above(0.5, half, trials) == pytest.approx(0.5)
  assert rollouts.probability_above(0.0, 0, trials) == 1
  assert rollouts.probability_above(0.9, trials, trials) == pytest.approx(1)
  assert rollouts.probability_above(0.9, half, trials) == pytest.approx(0)


def stopped_distribution(value, config):
  """P(successes, trials) at the end of early stopping, by enumeration."""
  going, ended, drawn = {0: 1.0}, {}, 0
  while drawn < config.samples and going:
    size = min(config.round_size, config.samples - drawn)
    drawn += size
    arrived = {}
    for before, probability in going.items():
      for i in range(size + 1):
        p = math.comb(size, i) * value**i * (1 - value) ** (size - i)
        arrived[before + i] = arrived.get(before + i, 0) + probability * p
    going = {}
    for successes, probability in arrived.items():
      above = rollouts.probability_above(config.threshold, successes, drawn)
      if config.delta <= above <= 1 - config.delta and drawn < config.samples:
        going[successes] = probability
      else:
        ended[successes, drawn] = probability
  return ended


def test_early_stopping_is_cheaper_and_its_soft_labels_are_biased():
  config = RolloutConfig(samples=32, round_size=4, threshold=0.5, delta=0.1)
  chains, exact = sampled(600, seed=3)
  found, asked = labelled(chains, config)
  value = exact[:, :-1].ravel()
  label = [each for chain in found for each in chain.labels[:-1]]
  soft = np.array([each.value for each in label])
  trials = np.array([each.trials for each in label])
  assert trials.sum() == sum(map(count_samples, asked))

  moments = []
  for v in value:
    ended = stopped_distribution(v, config)
    counts = np.array(list(ended))
    p = np.array(list(ended.values()))
    rate = counts[:, 0] / counts[:, 1]
    mean = p @ rate
    used = p @ counts[:, 1]
    moments.append(
      (mean, p @ (rate - mean) ** 2, used, p @ (counts[:, 1] - used) ** 2)
    )
  mean, variance, used, used_variance = np.array(moments).T
  # The labels have the mean and the cost that enumeration says ...
  above = value > 0.5
  for side in (above, ~above):
    z = (soft - mean)[side].sum() / math.sqrt(variance[side].sum())
    assert abs(z) < Z
  z = (trials - used).sum() / math.sqrt(used_variance.sum())
  assert abs(z) < Z
  assert trials.mean() < 32 / 2
  # ... and that mean is further from the threshold than the value is.
  middle = (value > 0.55) & (value < 0.8)
  assert (soft - value)[middle].mean() > 0.03
  assert (mean - value)[middle].max() > 0.05
  middle = (value > 0.2) & (value < 0.45)
  assert (soft - value)[middle].mean() < -0.03


def test_the_prior_alone_decides_nothing():
  # P(rate > .01) is .98 after one failure, by the prior alone.
  chains, _ = sampled(20)
  config = RolloutConfig(samples=6, round_size=1, threshold=0.01, delta=0.1)
  found, _ = labelled(chains, config)
  label = [each for chain in found for each in chain.labels[:-1]]
  assert {each.trials for each in label if each.successes == 0} == {6}
  assert any(each.trials < 6 for each in label)


def test_no_trial_decides_nothing():
  """The prior alone lies below a high threshold."""
  assert not rollouts._is_decided([], RolloutConfig(32, 4, threshold=0.97))


def test_threshold_zero_stops_at_the_first_success():
  chains, _ = sampled(100)
  all_at_once = RolloutConfig(samples=8, threshold=0.0)
  early = dataclasses.replace(all_at_once, round_size=1)
  whole, _ = labelled(chains, all_at_once)
  short, asked = labelled(chains, early)
  for one, other in zip(whole, short, strict=True):
    for full, cut in zip(one.labels[:-1], other.labels[:-1], strict=True):
      # Both draw the same samples, so "any success" has the same answer.
      assert (full.successes > 0) == (cut.successes > 0)
      assert cut.successes <= 1
      assert cut.successes == 1 or cut.trials == 8
  assert sum(map(count_samples, asked)) < 100 * 4 * 8 / 2


def test_stop_after_first_zero():
  chains, _ = sampled(200)
  whole, _ = labelled(chains, RolloutConfig())
  config = RolloutConfig(stop_after_first_zero=True)
  found, asked = labelled(chains, config)
  stopped = 0
  for one, other, rounds in zip(whole, found, asked, strict=True):
    values = [each.value for each in one.labels]
    keep = values.index(0) + 1 if 0 in values else len(values)
    assert other.labels[:keep] == one.labels[:keep]
    assert all(each.value is None for each in other.labels[keep:])
    assert [len(each) for each in rounds] == [1] * min(keep, 4)
    stopped += keep < 5
  assert stopped > 20


class Failing:
  """A policy some of whose completions fail."""

  name = 'failing'

  def __init__(self, keep):
    self.keep = keep
    self.solver = SolverPolicy(DOMAIN, seed=1)

  def complete(self, requests):
    return [
      [each if self.keep(request, i) else None for i, each in enumerate(had)]
      for request, had in zip(
        requests, self.solver.complete(requests), strict=True
      )
    ]


def test_failed_completions_are_no_trials():
  chains, _ = sampled(3)
  half = Failing(lambda request, i: i % 2 == 0 and len(request.steps) != 2)
  found, _ = labelled(chains, RolloutConfig(), half)
  for chain in found:
    assert [each.trials for each in chain.labels] == [4, 0, 4, 4, 8]
    assert chain.labels[1].value is None
    assert chain.meta['rollouts'] == {'unfinished': 0, 'unknown': 8 + 3 * 4}
  nothing, _ = labelled(
    chains, RolloutConfig(), Failing(lambda request, i: False)
  )
  assert all(isinstance(each, CannotDo) for each in nothing)


class Fixed:
  """A policy that always gives the same completions."""

  name = 'fixed'

  def __init__(self, *completions):
    self.completions = completions

  def complete(self, requests):
    return [list(self.completions) for _ in requests]


def test_completions_that_a_limit_cut_off_are_failures():
  chain = Chain(
    'What is 2 + 3 + 4?',
    ('2 + 3 = 5', '5 + 4 = 8'),
    outcome=False,
    meta={'id': 'sum', 'truth': '9'},
  )
  policy = Fixed(
    Completion(('5 + 4 = 9',), True, 6, 0, 0.0),
    Completion(('5 + 4 = 9',), False, 6, 0, 0.0),
    Completion(('5 + 4 = 19',), True, 6, 0, 0.0),
    Completion((), False, 3, 0, 0.0),
  )
  [found], _ = labelled([chain], RolloutConfig(samples=4), policy)
  assert (found.labels[0].successes, found.labels[0].trials) == (1, 4)
  assert found.meta['rollouts'] == {'unfinished': 2, 'unknown': 0}


def test_completions_without_room_are_no_trials():
  chain = Chain('2 + 3?', ('a', '5'), meta={'id': 'sum', 'truth': '5'})
  policy = Fixed(
    Completion(('#### 5',), True, 6, 0, 0.0),
    Completion((), False, 0, 0, 0.0, no_room=True),
  )
  [found], _ = labelled([chain], RolloutConfig(samples=2), policy)
  assert (found.labels[0].successes, found.labels[0].trials) == (1, 1)
  assert found.meta['rollouts'] == {'unfinished': 0, 'unknown': 1}


def test_an_answer_that_takes_too_long_is_no_trial(monkeypatch):
  pytest.importorskip('math_verify')
  asked, real = [], answers.compare

  def compare(answer, other, seconds=0.0):
    asked.append(answer)
    return real(answer, other, 0.2)

  monkeypatch.setattr(grading.answers, 'compare', compare)
  hostile = '9^{9^{9^9}}'
  chain = Chain(
    'x?', ('a', 'b'), outcome=True, meta={'id': 'x', 'truth': '9^{9^9}'}
  )
  policy = Fixed(
    Completion(('The answer is $9^{9^9}$',), True, 6, 0, 0.0),
    Completion((f'The answer is ${hostile}$',), True, 6, 0, 0.0),
  )
  for times in (1, 2):
    [found], _ = labelled([chain], RolloutConfig(samples=2), policy)
    assert (found.labels[0].successes, found.labels[0].trials) == (1, 1)
    assert found.meta['rollouts'] == {'unfinished': 0, 'unknown': 1}
    # A comparison that timed out is not cached.
    assert sum(hostile in answer for answer in asked) == times
  unknown = dataclasses.replace(
    chain, steps=('a', f'The answer is ${hostile}$'), outcome=None
  )
  [error], _ = labelled([unknown], RolloutConfig(samples=2), policy)
  assert 'could not be compared' in str(error)


def test_a_chain_without_a_known_answer_cannot_be_labelled():
  chain = Chain('Why?', ('so', 'thus'), meta={'id': 'x'})
  [error], _ = labelled([chain], RolloutConfig())
  assert isinstance(error, CannotDo)


def test_a_chain_of_one_step_takes_no_rollouts():
  chain = Chain('2 + 2?', ('2 + 2 = 4',), meta={'id': 'x', 'truth': '4'})
  [found], [rounds] = labelled([chain], RolloutConfig())
  assert found.labels[0].value == 1 and count_samples(rounds) == 0


@pytest.mark.parametrize(
  ('name', 'value', 'expected'),
  [
    ('samples', 0, '>= 1'),
    ('round_size', -1, '>= 0'),
    ('threshold', 1.0, r'a number in \[0, 1\)'),
    ('delta', 0.5, r'a number in \(0, 0.5\)'),
  ],
)
def test_configs_check_themselves(name, value, expected):
  with pytest.raises(UserError, match=rf'^{name}={value}: .*{expected}'):
    RolloutConfig(**{name: value})

"""OmegaPRM's search for the first error, against exact values."""

import dataclasses
import math

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.data.domains import arithmetic
from prm_jax.data.targets import step_targets
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.labels import omega, rollouts
from prm_jax.labels.omega import OmegaConfig
from prm_jax.labels.rollouts import RolloutConfig
from prm_jax.runtime.errors import UserError
from tests.labels.run_labellings import count_samples, run
from tests.labels.wrong_chains import (
  DEFAULT,
  HARD,
  LONG,
  found_error,
  stronger,
  wrong_chains,
)


def never_wrong(domain):
  return dataclasses.replace(domain, wrong_facts=0, slip=0)


def search(chains, completer, config):
  """Chains with labels (or CannotDo) and the rounds that each asked."""
  return run(
    [omega.label(chain, config) for chain in chains],
    SolverPolicy(completer, seed=1),
  )


def found_errors(found, config):
  return [found_error(each, config) for each in found]


def share_found(errors, true):
  return np.mean([a == b for a, b in zip(errors, true, strict=True)])


def first_wrong(chains):
  """The first step that calculates wrongly, of each chain."""
  return [first_error(chain.labels) for chain in chains]


def test_one_rollout_per_prefix_of_a_perfect_policy_finds_the_exact_error():
  # A completer that is never wrong has values 0 and 1 only, so the search is
  # plain bisection and can be checked chain by chain.
  completer = never_wrong(DEFAULT)
  chains, exact = wrong_chains(DEFAULT, 500, completer)
  assert set(np.unique(exact)) == {0, 1}
  config = OmegaConfig(samples=1)
  found, asked = search(chains, completer, config)
  errors = found_errors(found, config)
  lost_once = 0
  for chain, error, values, rounds in zip(
    chains, errors, exact, asked, strict=True
  ):
    # No other chain draws from its streams.
    keys = [request.key for each in rounds for request in each]
    assert all(key.startswith(f'{chain.meta["id"]}/omega/') for key in keys)
    before = values[error - 1] if error else 1.0
    assert (before, values[error]) == (1, 0)
    if (np.diff(values) <= 0).all():
      lost_once += 1
      assert error == values.argmin()
    # ceil(log2(5)) prefixes, and the bare problem if none succeeded.
    assert count_samples(rounds) <= 3 + (error == 0)
  assert lost_once > 300


@pytest.mark.parametrize(
  ('domain', 'completer', 'config', 'missed'),
  [
    # The paper's parameters.
    (LONG, never_wrong(LONG), OmegaConfig(), 0.01),
    (LONG, stronger(LONG), OmegaConfig(), 0.05),
    # With five steps, bisection alone does not save two thirds of the rollouts.
    # Stopping at the first success does, and finds the same errors.
    (DEFAULT, stronger(DEFAULT), OmegaConfig(round_size=1), 0.05),
    # Wrong prefixes seldom have a rate above 0.3, but often one success of 8.
    (
      DEFAULT,
      stronger(DEFAULT),
      OmegaConfig(threshold=0.3, round_size=1, delta=0.1),
      0.02,
    ),
  ],
)
def test_first_errors_are_found_for_a_third_of_the_rollouts(
  domain, completer, config, missed
):
  chains, exact = wrong_chains(domain, 600, never_wrong(domain), seed=4)
  found, asked = search(chains, completer, config)
  errors = found_errors(found, config)
  # Outcomes can show where the answer is lost: before this step a policy that
  # never errs would end right, and after it would not.
  held = np.pad(exact, ((0, 0), (1, 0)), constant_values=1)
  lost = held[:, :-1] > exact
  at_loss = [
    error is not None and row[error]
    for error, row in zip(errors, lost, strict=True)
  ]
  assert np.mean(at_loss) >= 0.95
  # This is not the first wrong calculation if later steps cancel that one: by a
  # product with 0 or, modulo 10, with 2 or 5, or by another error.
  true = first_wrong(chains)
  visible = share_found(lost.argmax(1), true)
  assert 0.92 < visible < 0.99
  assert share_found(errors, true) >= visible - missed
  # The alternative is k rollouts from every step but the last.
  exhaustive = len(chains) * config.samples * (domain.operations - 1)
  assert sum(map(count_samples, asked)) <= exhaustive / 3


def test_a_policy_that_errs_finds_as_much_as_by_rollouts_from_every_step():
  # The policy is the solver that wrote the chains: a right prefix can fail 8
  # times, and a wrong one succeed by errors that cancel. Both methods are far
  # from the truth, and the search is no worse.
  chains, _ = wrong_chains(DEFAULT, 1000, seed=5)
  config = OmegaConfig()
  found, _ = search(chains, DEFAULT, config)
  whole, _ = run(
    [rollouts.label(chain, RolloutConfig()) for chain in chains],
    SolverPolicy(DEFAULT, seed=2),
  )
  hard = [step_targets(chain, 5, HARD).values.argmin() for chain in whole]
  by_search = share_found(found_errors(found, config), first_wrong(chains))
  by_all = share_found(hard, first_wrong(chains))
  assert abs(by_search - by_all) < 4 * math.sqrt(0.5 / len(chains))
  assert 0.5 < by_search < 0.75


def test_labels_have_counts_where_visited_and_are_implied_elsewhere():
  chains, _ = wrong_chains(LONG, 100)
  config = OmegaConfig()
  found, asked = search(chains, stronger(LONG), config)
  for before, chain, rounds in zip(chains, found, asked, strict=True):
    error = found_error(chain, config)
    visited = {len(each[0].steps) - 1 for each in rounds}
    for i, step in enumerate(chain.labels):
      assert step.source == 'rollout'
      if i == 15:
        assert (step.successes, step.trials) == (0, 8)
      elif i in visited:
        assert step.trials == 8
        assert step.value == step.successes / 8
        assert (step.value > 0) == (i < error)
      else:
        assert (step.value, step.trials) == (float(i < error), None)
    values = step_targets(chain, 16, HARD).values
    assert (values == (np.arange(16) < error)).all()
    assert chain.meta['rollouts'] == {'unfinished': 0, 'unknown': 0}
    assert chain == dataclasses.replace(
      before, labels=chain.labels, meta=chain.meta
    )
  unknown = dataclasses.replace(config, unvisited='unknown')
  sparse, _ = search(chains, stronger(LONG), unknown)
  for full, chain in zip(found, sparse, strict=True):
    for one, other in zip(full.labels, chain.labels, strict=True):
      assert other == (one if one.trials else StepLabel(None, 'rollout'))


def test_a_chain_that_was_cut_off_is_wrong_only_if_no_rollout_of_it_succeeds():
  completer = never_wrong(DEFAULT)
  domain = never_wrong(DEFAULT)
  problems = arithmetic.sample_problems(domain, 20, 0)
  right = arithmetic.make_chains(domain, problems, 1, 0)
  wrong, exact = wrong_chains(DEFAULT, 20, completer)
  config = OmegaConfig(samples=1)

  def cut(chain):
    meta = {**chain.meta, 'finished': False}
    short = chain.steps[:4]
    return dataclasses.replace(
      chain, steps=short, labels=(), outcome=False, meta=meta
    )

  found, asked = search([cut(chain) for chain in right], completer, config)
  assert first_wrong(found) == [-1] * 20
  assert {count_samples(rounds) for rounds in asked} == {1}
  found, _ = search([cut(chain) for chain in wrong], completer, config)
  for error, values in zip(first_wrong(found), exact, strict=True):
    if values[3]:
      assert error == -1
    else:
      assert values[error] == 0


def test_a_right_chain_takes_no_rollouts():
  chain = Chain('1 + 1?', ('a', '1 + 1 = 2'), '2', True, meta={'id': 'x'})
  [found], [rounds] = run(
    [omega.label(chain, OmegaConfig())], SolverPolicy(DEFAULT)
  )
  assert [each.value for each in found.labels] == [1, 1]
  assert found.labels[1].trials == 8
  assert not rounds


def test_early_stopping_decides_as_all_rollouts_do():
  # At the paper's threshold one success decides, and both draw equal samples.
  chains, _ = wrong_chains(DEFAULT, 200)
  config = OmegaConfig()
  all_at_once, asked = search(chains, DEFAULT, config)
  one_by_one, fewer = search(chains, DEFAULT, OmegaConfig(round_size=1))
  assert found_errors(all_at_once, config) == found_errors(one_by_one, config)
  used = sum(map(count_samples, asked))
  assert sum(map(count_samples, fewer)) < 0.75 * used


def test_a_problem_that_the_policy_cannot_solve():
  # The solver has a wrong belief about every fact and always uses it.
  hopeless = arithmetic.ArithmeticConfig(wrong_facts=1, use_wrong=1, slip=0)
  chains, _ = wrong_chains(hopeless, 50)
  found, _ = search(chains, hopeless, OmegaConfig())
  hard = [str(each) for each in found if isinstance(each, CannotDo)]
  assert len(hard) > 20
  assert all('0 of 8 rollouts from the problem itself' in each for each in hard)


def test_a_policy_that_fails():
  class Failing:
    def complete(self, requests):
      return [[None] * each.samples for each in requests]

  chains, _ = wrong_chains(DEFAULT, 3)
  found, _ = run(
    [omega.label(chain, OmegaConfig()) for chain in chains], Failing()
  )
  assert all(isinstance(each, CannotDo) for each in found)


@pytest.mark.parametrize(
  ('name', 'value', 'expected'),
  [
    ('samples', 0, '>= 1'),
    ('threshold', -0.1, 'a number in'),
    ('unvisited', 'right', 'one of implied, unknown'),
    ('searches', -1, '>= 0'),
    ('alpha', 0, 'a number in'),
    ('beta', 1.5, 'a number in'),
    ('length', 0, '>= 1'),
    ('c_puct', -1, '>= 0'),
  ],
)
def test_configs_check_themselves(name, value, expected):
  with pytest.raises(UserError, match=rf'^{name}={value!r}: .*{expected}'):
    OmegaConfig(**{name: value})

"""The problems that an evaluation takes, and what it can be made of."""

import pathlib

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.datasets import Dataset
from prm_jax.data.targets import TargetConfig
from prm_jax.evals.prm import (
  PrmEvaluation,
  check_data,
  evaluate,
  some_problems,
)
from prm_jax.runtime.errors import UserError

CHAINS = [Chain(f'p{i // 2}', ('a',)) for i in range(20)]  # 10 problems, twice


def problems(count):
  return [chain.problem for chain in some_problems(CHAINS, count)]


def test_some_problems_are_spread_over_the_set():
  assert problems(3) == ['p0', 'p0', 'p3', 'p3', 'p6', 'p6']
  assert problems(1) == ['p0', 'p0']


def test_all_of_them():
  assert some_problems(CHAINS, 0) is CHAINS
  assert some_problems(CHAINS, 10) is CHAINS
  assert some_problems(CHAINS, 99) is CHAINS


def labelled(*values):
  """Chains of one step each, one problem each, with these labels."""
  return [
    Chain(f'p{i}', ('a',), labels=() if value is None else (StepLabel(value),))
    for i, value in enumerate(values)
  ]


def check(dev, test, **targets):
  dataset = Dataset([], dev, {'of_test': test}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(max_problems=2)
  check_data(wanted, TargetConfig(**targets), dataset)


BOTH = labelled(1.0, 0.0)


@pytest.mark.parametrize(
  ('dev', 'test', 'why'),
  [
    (labelled(1.0, 1.0), BOTH, r'^0 of 2 chains of dev have an error: '),
    (labelled(0.0), BOTH, r'^1 of 1 chains of dev have an error: '),
    (labelled(None, None), BOTH, r'^0 of 2 chains of dev '),
    ([], BOTH, r'^0 of 0 chains of dev '),
    # Evenly spaced, the first and the third are taken.
    (BOTH, labelled(1.0, 0.0, 1.0, 0.0), r'^0 of 2 chains of of_test '),
  ],
)
def test_chains_of_one_kind_are_refused_before_any_is_scored(dev, test, why):
  with pytest.raises(UserError, match=why):
    check(dev, test)
  check(dev, test, supervision='outcome')  # it needs no threshold


def test_chains_of_both_kinds():
  check(BOTH, BOTH)
  check(labelled(None, 0.0), labelled(None, None))


@pytest.mark.parametrize(
  ('samples', 'known', 'ns', 'why'),
  [
    (1, True, (1, 2), 'its problems have no two chains'),
    (2, False, (1, 2), 'its problems have no two chains'),
    (2, True, (4, 8), r'have 2 chains with known outcomes .*, and ns=\(4, 8\)'),
    (2, True, (1, 2), ''),
    (2, True, (2, 8), ''),
  ],
)
def test_too_few_candidates_are_refused_before_any_is_scored(
  samples, known, ns, why
):
  chains = [
    Chain(f'p{i // samples}', (str(i),), '1', outcome=known or None)
    for i in range(4 * samples)
  ]
  dataset = Dataset([], BOTH, {'pool': chains}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='pool', ns=ns)
  if not why:
    check_data(wanted, TargetConfig(), dataset)
    return
  with pytest.raises(UserError, match=why):
    check_data(wanted, TargetConfig(), dataset)


def test_an_evaluation_without_chains_is_left_out():
  dataset = Dataset([], BOTH, {'none': []}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='')
  check_data(wanted, TargetConfig(), dataset)
  said = []

  def score(chains):
    return [np.array([0.9], np.float32) for _ in chains]

  found = evaluate(wanted, TargetConfig(), dataset, score, None, 0, said.append)
  assert said == ['none has no chains, and is left out']
  assert 'localisation' not in found.results


def test_the_longest_dev_chain_may_have_no_labels():
  long = Chain('long', ('a', 'b', 'c'))
  dataset = Dataset([], [*BOTH, long], {}, '', pathlib.Path(), False)

  def score(chains):
    return [np.full(len(chain.steps), 0.5, np.float32) for chain in chains]

  wanted = PrmEvaluation(best_of_n='')
  found = evaluate(wanted, TargetConfig(), dataset, score, None, 0, print)
  assert np.isfinite(found.threshold['value'])


def test_right_candidates_without_an_answer_are_refused_before_any_is_scored():
  """ProcessBench says which solutions are right, and not what they answer."""
  chains = [Chain(f'p{i // 2}', (str(i),), outcome=True) for i in range(8)]
  dataset = Dataset([], BOTH, {'pool': chains}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='pool', ns=(1, 2))
  with pytest.raises(UserError, match='right chains name no answer'):
    check_data(wanted, TargetConfig(), dataset)


def test_votes_of_long_chains_do_not_underflow():
  """Twenty steps of .005 have a product of 1e-46, below any float32."""
  scores = {'a': 0.005, 'b': 0.001, 'c': 0.001}
  chains = [
    Chain(problem, (name,) * 20, name, outcome=name == 'a')
    for problem in ('p', 'q')
    for name in ('a', 'a', 'b', 'c')
  ]

  def score(chains):
    return [
      np.full(len(chain.steps), scores.get(chain.answer, 0.9), np.float32)
      for chain in chains
    ]

  wanted = PrmEvaluation(best_of_n='pool', ns=(1, 4), aggregate='prod')
  dataset = Dataset([], BOTH, {'pool': chains}, '', pathlib.Path(), False)
  found = evaluate(wanted, TargetConfig(), dataset, score, None, 0, print)
  assert found.results['best_of_n']['weighted_vote']['mean'][-1] == 1

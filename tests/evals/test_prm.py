"""The problems that an evaluation takes when it may not take all."""

from prm_jax.data.chains import Chain
from prm_jax.evals.prm import some_problems

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

"""Beam search, lookahead, DVTS and REBASE against known trees."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime.errors import UserError
from prm_jax.search import run
from prm_jax.search.beam import BeamConfig, LookaheadConfig
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.rebase import RebaseConfig, allot
from tests.search.scripted import (
  Scripted,
  Table,
  by_id,
  drawn,
  kept_nodes,
  noise,
  optimum,
  search,
)

DOMAIN = ArithmeticConfig()
TASKS = [
  Task(str(i), f'mod 10 : {i} * 7 + {i} - 4 * 3', truth='1') for i in range(6)
]


def solved(method, options, aggregate='min'):
  config = SearchConfig(aggregate=aggregate)
  policy, prm = SolverPolicy(DOMAIN), ExactScorer(DOMAIN)
  return by_id(run(TASKS, policy, prm, method, options, config))


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('method', ['beam', 'dvts', 'rebase'])
def test_with_exact_values_the_optimum_is_found(method, seed):
  policy = Scripted(branching=3, depth=4, uneven=seed % 2 == 1)
  best, prm = optimum(policy, seed)
  options = {'samples': 3}
  if method == 'rebase':
    options['temperature'] = 1e-9  # the best leaf gets all
  else:
    options['width'] = 3
  found = search(method, policy, prm, options, 'last')
  assert found.chosen.steps == best


@pytest.mark.parametrize('seed', range(5))
def test_a_narrower_beam_misses_what_it_does_not_propose(seed):
  policy = Scripted(branching=3, depth=4)
  best, prm = optimum(policy, seed)
  found = search('beam', policy, prm, {'samples': 1, 'width': 1}, 'last')
  assert found.chosen.steps == next(policy.chains()) != best


@pytest.mark.parametrize('seed', range(4))
def test_methods_that_equal_beam_search_with_some_options(seed):
  def tree(method, uneven=True, **options):
    policy = Scripted(branching=3, depth=5, uneven=uneven)
    return search(method, policy, noise(seed), options)

  # One tree of DVTS is one beam, unless a chain ends before others: see below.
  one = tree('beam', uneven=False, samples=4, width=4)
  assert kept_nodes(
    tree('dvts', uneven=False, samples=4, width=4)
  ) == kept_nodes(one)
  wide = tree('beam', samples=12, width=3)
  same = tree('lookahead', samples=12, width=3, steps=0)
  assert kept_nodes(same) == kept_nodes(wide)
  assert same.tree.to_dict() == wide.tree.to_dict()
  assert same.chains[0].steps == wide.chains[0].steps


@pytest.mark.parametrize('aggregate', ['min', 'prod', 'last'])
def test_beams_that_do_not_branch_are_best_of_n(aggregate):
  beams = solved('beam', {'samples': 8, 'width': 1}, aggregate)
  whole = solved('best_of_n', {'samples': 8}, aggregate)
  for name, one in whole.items():
    steps = [chain.steps for chain in one.chains]
    assert [chain.steps for chain in beams[name].chains] == steps
    assert len(steps) == 8
    for chain, other in zip(one.chains, beams[name].chains, strict=True):
      same = ('scores', 'chain_score', 'ended')
      ours, theirs = chain.meta['search'], other.meta['search']
      assert [ours[key] for key in same] == [theirs[key] for key in same]
    assert one.ledger['tokens'] == beams[name].ledger['tokens']


def test_beams_of_uneven_length_that_do_not_branch_are_best_of_n():
  for seed in range(10):
    # Rounded scores tie: among equals both take the chain drawn first.
    prm = Table(lambda steps, seed=seed: round(drawn(seed, steps), 1))
    chosen = [
      search(method, Scripted(5, 6, uneven=True), prm, options).chosen.steps
      for method, options in (
        ('beam', {'samples': 5, 'width': 1}),
        ('best_of_n', {'samples': 5}),
      )
    ]
    assert chosen[0] == chosen[1]


class EndsAtOne(Scripted):
  """Branch 1 always ends the chain."""

  def step(self, before, branch):
    step, ends = super().step(before, branch)
    return step, ends or branch == 1


@pytest.mark.parametrize('method', ['beam', 'lookahead', 'dvts'])
def test_a_chain_that_ended_leaves_its_place_to_the_next(method):
  """The chain that ends has the highest score, and there is one place."""
  prm = Table(lambda steps: 0.9 if steps[-1].endswith('1') else 0.5)
  options = {'samples': 3, 'width': 3}
  found = search(method, EndsAtOne(3, 4), prm, options, 'last')
  lengths = sorted(len(chain.steps) for chain in found.chains)
  if method == 'dvts':  # a tree ends if its best step does
    assert lengths == [1]
  else:
    assert lengths == [1, 2, 3, 4, 4, 4]


def test_open_chains_are_ranked_without_those_that_ended():
  """Branch 1 ends in the first round; both others fit the beam."""
  prm = Table(lambda steps: 0.9 if steps[-1].endswith('1') else 0.5)
  policy = EndsAtOne(3, 3)
  search('beam', policy, prm, {'samples': 6, 'width': 3}, 'last')
  assert {r.steps for r in policy.asked[1]} == {('0: x = 0',), ('0: x = 2',)}


def test_looking_ahead_sees_a_trap():
  """Branch 1 scores highest, but the steps after it score low."""

  def score(steps):
    trapped = steps[0].endswith('1')
    return (0.9 if trapped else 0.6) if len(steps) == 1 else 0.5 - 0.4 * trapped

  options = {'samples': 3, 'width': 3}
  beam = search('beam', Scripted(), Table(score), options)
  ahead = search('lookahead', Scripted(), Table(score), options)
  assert beam.chosen.steps[0] == '0: x = 1'
  assert ahead.chosen.steps[0] == '0: x = 0'
  # Rollouts are no chains, and are marked in the tree.
  scratch = [node for node in ahead.tree.nodes if node.scratch]
  assert scratch and len(ahead.chains) == len(beam.chains)
  assert ahead.ledger['samples'] == beam.ledger['samples'] + len(scratch)


@given(
  st.lists(st.floats(0, 1), min_size=1, max_size=12),
  st.integers(1, 64),
  st.floats(0.05, 10),
)
def test_rebase_allots_by_its_formula(rewards, budget, temperature):
  weights = np.exp(np.array(rewards) / temperature)
  exact = budget * weights / weights.sum()
  shares = allot(rewards, budget, temperature)
  if (exact > 0.5 + 1e-9).any():
    # A share halfway between two integers may be rounded to either.
    clear = np.abs(exact - np.floor(exact) - 0.5) > 1e-9
    assert (np.array(shares)[clear] == np.round(exact)[clear]).all()
  elif (exact < 0.5 - 1e-9).all():
    assert sum(shares) == 1
    assert shares.index(1) == rewards.index(max(rewards))


def test_rebase_splits_what_is_left_over_open_leaves():
  policy = Scripted(branching=3, depth=3, uneven=True)
  temperature, left = 0.3, 12
  found = search(
    'rebase',
    policy,
    noise(3),
    {'samples': left, 'temperature': temperature},
    'last',
  )
  scores = {
    found.tree.steps(i): found.tree.nodes[i].score
    for i in range(1, len(found.tree.nodes))
  }
  assert sum(r.samples for r in policy.asked[0]) == left
  ends = {chain.steps for chain in found.chains}
  for asked in policy.asked[1:]:
    leaves = []  # of the round before, one for each sample
    for node in range(1, len(found.tree.nodes)):
      if found.tree.nodes[node].depth == len(asked[0].steps):
        leaves.append(found.tree.steps(node))
    open_leaves = [steps for steps in leaves if steps not in ends]
    left -= len(leaves) - len(open_leaves)
    total = sum(math.exp(scores[steps] / temperature) for steps in open_leaves)
    expected = [
      round(left * math.exp(scores[steps] / temperature) / total)
      for steps in open_leaves
    ]
    got = {}
    for request in asked:
      got[request.steps] = got.get(request.steps, 0) + request.samples
    wanted = {}
    for steps, share in zip(open_leaves, expected, strict=True):
      if share:
        wanted[steps] = wanted.get(steps, 0) + share
    assert got == wanted
  assert len(policy.asked) == 3 and left < 12


def test_each_tree_of_dvts_goes_on_with_its_best_step():
  trees, width = 4, 3
  differs = 0
  options = {'samples': trees * width, 'width': width}
  beams = solved('beam', options, 'last')
  for name, found in solved('dvts', options, 'last').items():
    tree = found.tree
    firsts = tree.children[0]
    groups = [firsts[i : i + width] for i in range(0, len(firsts), width)]
    groups += [c for i, c in enumerate(tree.children) if i and c]
    for group in groups:
      best = max(group, key=lambda i: tree.nodes[i].chain_score)
      grown = [i for i in group if tree.children[i]]
      assert grown == ([] if tree.nodes[best].ended else [best])
    assert len(groups) == trees * 5  # four steps and the end
    differs += kept_nodes(found) != kept_nodes(beams[name])
  assert differs == len(TASKS)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: BeamConfig(5, 2), r'^samples=5: .* width=2'),
    (lambda: BeamConfig(4, 0), r'^width=0: expected >= 1'),
    (lambda: BeamConfig(0, 1), r'^samples=0: '),
    (lambda: LookaheadConfig(4, 4, -1), r'^steps=-1: expected >= 0'),
    (lambda: LookaheadConfig(4, 3), r'^samples=4: '),
    (lambda: RebaseConfig(0), r'^samples=0: '),
    (
      lambda: RebaseConfig(4, 0.0),
      r'^temperature=0\.0: expected a number above 0',
    ),
    (lambda: RebaseConfig(4, math.nan), r'^temperature=nan: '),
  ],
)
def test_configs_check_themselves(make, message):
  with pytest.raises(UserError, match=message):
    make()

"""Monte Carlo tree search: where it goes, what it goes on from."""

import math

import pytest

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime.errors import UserError
from prm_jax.search import RunConfig, run
from prm_jax.search.mcts import MctsConfig, priors
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.tree import ROOT, Node, Tree
from tests.search.scripted import (
  TASK,
  CutsOff,
  Scripted,
  Table,
  by_id,
  kept_nodes,
  noise,
  optimum,
  search,
)

DOMAIN = ArithmeticConfig()
TASKS = [
  Task(
    str(i),
    f'mod 10 : {i} * 7 + {i} - 4 * 3 + 5 * 2 - 1 * 6',
    truth='1',
  )
  for i in range(6)
]


def shares(found):
  """The share of visits of each first step."""
  tree = found.tree
  visits = {
    tree.nodes[i].step: tree.nodes[i].visits for i in tree.live_children(ROOT)
  }
  assert sum(visits.values()) == tree.nodes[ROOT].visits
  return {step: n / sum(visits.values()) for step, n in visits.items()}


class LosesTheFirstCall(Scripted):
  def complete(self, requests):
    found, first = super().complete(requests), not self.asked[1:]
    return [[None] * len(each) for each in found] if first else found


def test_chains_that_are_written_at_last_save_a_search_without_a_tree():
  _, prm = optimum(Scripted(), 0)
  found = search('mcts', LosesTheFirstCall(), prm, {'simulations': 8})
  assert not found.failed
  assert found.chosen.meta['search']['ended']
  assert found.ledger['lost'] == 4


@pytest.mark.parametrize('seed', [0, 1, 4])
@pytest.mark.parametrize('leaves', [1, 4])
def test_visits_converge_to_the_best_branch(seed, leaves):
  """The best branch is better than the next by 0.04 to 0.07 in these trees.

  A branch that is worse by d gets c P sqrt(N) / d of N visits, and the mean of
  the best one rises only some visits after its best chain is found.
  """
  best, prm = optimum(Scripted(branching=3, depth=4), seed)
  last = 0.0
  for simulations in (64, 256, 1024, 4096):
    options = {'simulations': simulations, 'leaves': leaves, 'c_puct': 0.5}
    found = search('mcts', Scripted(3, 4), prm, options | {'width': 3}, 'last')
    assert found.chosen.steps == best or simulations < 256
    assert shares(found)[best[0]] > last
    last = shares(found)[best[0]]
  assert last > 0.95


def test_a_tree_with_equal_branches_is_visited_evenly():
  options = {'simulations': 300, 'width': 3}
  found = search('mcts', Scripted(), Table(lambda steps: 0.5), options, 'last')
  assert all(abs(each - 1 / 3) < 0.01 for each in shares(found).values())


def test_puct_by_hand():
  """Two simulations of one leaf each, with c = 1 and uniform priors of 1/2."""

  def score(steps):
    return {
      ('0: x = 0',): 0.6,
      ('0: x = 1',): 0.5,
      ('0: x = 0', '1: x = 0'): 0.1,
      ('0: x = 0', '1: x = 1'): 0.2,
      ('0: x = 1', '1: x = 0'): 0.7,
    }.get(steps, 0.3)

  found = search(
    'mcts',
    Scripted(branching=2, depth=3),
    Table(score),
    {'simulations': 2, 'width': 2, 'c_puct': 1.0, 'leaves': 1},
    'last',
  )
  tree = found.tree
  first, second = tree.live_children(ROOT)
  # First branch 0, by 0.6 + 0.5 > 0.5 + 0.5; it is worth its best child's 0.2.
  # Then 0.2 + sqrt(2) / 2 / 2 = 0.55 < 0.5 + sqrt(2) / 2 = 1.21.
  nodes = [tree.nodes[i] for i in (first, second)]
  assert [node.visits for node in nodes] == [1, 1]
  assert [node.value for node in nodes] == pytest.approx([0.2, 0.7])
  assert tree.nodes[ROOT].value == pytest.approx((0.2 + 0.7) / 2)


def test_priors():
  tree = Tree('p')
  logs = [math.log(0.5), math.log(0.3), math.log(0.1)]
  siblings = [tree.add(Node(ROOT, 's', logprob=each)) for each in logs]
  expected = pytest.approx([0.5 / 0.9, 0.3 / 0.9, 0.1 / 0.9])
  assert priors(tree, siblings, 'policy') == expected
  assert priors(tree, siblings, 'uniform') == [1 / 3] * 3
  # One sibling without a log-probability makes all priors equal.
  siblings.append(tree.add(Node(ROOT, 's')))
  assert priors(tree, siblings, 'policy') == [1 / 4] * 4


def test_the_prior_decides_where_all_values_are_equal():
  class Leans(Scripted):
    """Its steps of branch 0 are by far the likeliest."""

    def one(self, request, number):
      done = super().one(request, number)
      likely = done.steps[0].endswith('0')
      return done._replace(logprob=-0.1 if likely else -4.0)

  def share(prior):
    options = {'simulations': 64, 'width': 3, 'c_puct': 1.0, 'prior': prior}
    flat = Table(lambda steps: 0.5)
    return shares(search('mcts', Leans(), flat, options, 'last'))['0: x = 0']

  assert share('policy') > 0.8 and share('uniform') < 0.4


def test_leaves_of_a_round_are_expanded_together():
  policy = Scripted(branching=4, depth=4)
  flat = Table(lambda steps: 0.5)
  options = {'simulations': 4, 'leaves': 4}
  search('mcts', policy, flat, options, 'last')
  assert {r.steps[-1] for r in policy.asked[1]} == {
    f'0: x = {branch}' for branch in range(4)
  }


@pytest.mark.parametrize('rollouts', [0, 2])
@pytest.mark.parametrize('simulations', [4, 8, 32])
def test_a_search_continues_a_kept_tree(simulations, rollouts):
  config = SearchConfig(aggregate='last')

  def go(count, trees=()):
    options = {'simulations': count, 'rollouts': rollouts}
    models = SolverPolicy(DOMAIN), ExactScorer(DOMAIN)
    how = RunConfig(trees=dict(trees))
    return by_id(run(TASKS, *models, 'mcts', options, config, how))

  half = go(simulations)
  # Its most visited paths were written to their ends, from nodes that the
  # continued search expands again.
  assert any(node.last for f in half.values() for node in f.tree.nodes)
  kept = {name: found.tree for name, found in half.items()}
  before = {name: tree.to_dict() for name, tree in kept.items()}
  both, whole = go(simulations, kept), go(2 * simulations)
  for name, found in whole.items():
    assert kept_nodes(both[name]) == kept_nodes(found)
    assert both[name].tree.nodes[ROOT].visits == 2 * simulations
    assert kept_nodes(half[name]) != kept_nodes(found)
    # The ledger is of the new part, and the tree that was given is unchanged.
    assert both[name].ledger['samples'] < found.ledger['samples']
    assert kept[name].to_dict() == before[name]


def test_trees_of_another_method_are_continued_and_of_another_problem_not():
  kept = {'task': search('majority', Scripted(), None).tree}
  found = search('beam', Scripted(), noise(0), trees=kept)
  # The chains of the vote were scored, and are among the beams' now.
  assert all(c.meta['search']['chain_score'] is not None for c in found.chains)
  assert len(found.chains) > 16
  kept = {'task': Tree('another problem')}
  with pytest.raises(UserError, match=r"'task' is of another one, 'another "):
    search('mcts', Scripted(), noise(0), trees=kept)


def test_kept_chains_that_were_cut_off_are_not_walked():
  policy = CutsOff()
  tree = search('majority', policy, None, {'samples': 4}).tree
  options = {'simulations': 32, 'c_puct': 1.0}
  found = search('mcts', policy, noise(0), options, trees={'task': tree})
  walked = [n for n in found.tree.nodes if n.visits and n.step]
  assert walked and not any('?' in node.step for node in walked)
  assert found.tree.nodes[ROOT].visits == 32
  assert found.chosen.meta['search']['ended']


def test_a_kept_tree_whose_chains_were_all_cut_off_is_begun_anew():
  class AllCut(CutsOff):
    def one(self, request, number):
      return super().one(request, 2 * number + 1)

  tree = search('majority', AllCut(), None, {'samples': 4}).tree
  found = search(
    'mcts', Scripted(), noise(0), {'simulations': 8}, trees={'task': tree}
  )
  assert found.tree.nodes[ROOT].visits == 8
  assert not any(n.visits and '?' in n.step for n in found.tree.nodes)
  assert found.chosen.answer is not None


@pytest.mark.parametrize('cut_off', [False, True])
def test_a_leaf_is_worth_the_mean_of_its_rollouts(cut_off):
  """A rollout that does not end counts 0."""
  policy = CutsOff(2, 4) if cut_off else Scripted(2, 4)
  options = {'simulations': 1, 'width': 2, 'rollouts': 2, 'leaves': 1}
  tree = search('mcts', policy, noise(1), options, 'last').tree
  ends = [
    node.chain_score
    for node in tree.nodes
    if node.ended and node.stream.key.endswith('ahead')
  ]
  [visited] = [node for node in tree.nodes[1:] if node.visits]
  assert len(ends) == 2 - cut_off
  assert visited.value == pytest.approx(sum(ends) / 2)


def test_a_leaf_with_only_dead_children_is_worth_nothing():
  class DeadEnd(Scripted):
    """Fails to write any second step."""

    def one(self, request, number):
      return None if request.steps else super().one(request, number)

  options = {'simulations': 1, 'width': 2, 'leaves': 1}
  tree = search('mcts', DeadEnd(2, 4), noise(1), options, 'last').tree
  [visited] = [node for node in tree.nodes[1:] if node.visits]
  assert visited.value == 0 < visited.chain_score


def test_rollouts_are_judged_by_the_prm_alone():
  options = {'simulations': 12, 'rollouts': 2, 'leaves': 2}
  [found], [other] = (
    run([TASK._replace(truth=x)], Scripted(), noise(2), 'mcts', options)
    for x in '01'
  )
  assert found.tree.to_dict() == other.tree.to_dict()
  assert found.chosen.outcome != other.chosen.outcome
  tree = found.tree
  finished = [node for node in tree.nodes if node.scratch and node.ended]
  assert finished and all(node.chain_score is not None for node in finished)
  # Rollouts may be chosen: the best of all chains is.
  own = [tree.nodes[i].chain_score for i in tree.ended()]
  best = max([node.chain_score for node in finished] + own)
  assert found.chosen.meta['search']['chain_score'] == best


def test_without_an_end_in_the_tree_the_most_visited_path_is_written():
  options = {'simulations': 4, 'width': 2}
  found = search('mcts', Scripted(2, 30), noise(0), options)
  assert not found.tree.ended() and found.chosen.meta['search']['ended']
  assert len(found.chosen.steps) == 30


def test_below_a_leaf_the_best_child_is_written_on_from():
  """Its children have no visits: their scores decide."""
  for seed in range(8):
    options = {'simulations': 1, 'width': 4}
    found = search('mcts', Scripted(4, 30), noise(seed), options)
    children = found.tree.live_children(ROOT)
    best = max(children, key=lambda i: found.tree.nodes[i].score)
    assert found.chosen.steps[0] == found.tree.nodes[best].step


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'simulations': 0}, r'^simulations=0: expected >= 1'),
    ({'width': 0}, r'^width=0: expected >= 1'),
    ({'c_puct': -1.0}, r'^c_puct=-1\.0: expected >= 0'),
    ({'c_puct': math.nan}, r'^c_puct=nan: '),
    ({'leaves': 0}, r'^leaves=0: '),
    ({'rollouts': -1}, r'^rollouts=-1: '),
    ({'prior': 'flat'}, r"^prior='flat': expected one of policy, uniform"),
  ],
)
def test_configs_check_themselves(values, message):
  with pytest.raises(UserError, match=message):
    MctsConfig(**values)

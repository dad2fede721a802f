"""Votes, refine and early rejection, which choose among whole chains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.inference.driver import AskedModels, drive
from prm_jax.inference.protocols import Completion
from prm_jax.runtime.errors import UserError
from prm_jax.search.best_of_n import BestOfNConfig
from prm_jax.search.budget import Budget
from prm_jax.search.early_rejection import EarlyRejectionConfig, saved_tokens
from prm_jax.search.method import SearchConfig
from prm_jax.search.methods import METHODS
from prm_jax.search.refine import RefineConfig
from prm_jax.search.searching import SearchPlan, search_problem
from prm_jax.search.tree import ROOT, Node, Tree
from prm_jax.search.vote import group_by_answer, majority, weighted_vote
from tests.search.scripted import (
  TASK,
  Scripted,
  Table,
  drawn,
  noise,
  search,
)


def voters(*chains):
  """A tree of one-step chains, (answer, chain score) each."""
  tree = Tree('what is it?')
  for answer, score in chains:
    step = f'so the answer is {answer}' if answer else 'who knows'
    tree.add(Node(ROOT, step, ended=True, chain_score=score))
  return tree


def vote(choose, *chains, aggregate='min'):
  tree = voters(*chains)
  config = SearchConfig(aggregate=aggregate)
  return choose(tree, tree.ended(), config) - 1


def test_the_majority():
  assert vote(majority, ('1', 0.9), ('2', 0.1), ('2', 0.2)) == 1
  # Among equally frequent answers the first wins, whatever the scores.
  chains = [('1', 0.1), ('2', 0.9), ('2', 0.9), ('1', None)]
  assert vote(majority, *chains) == 0
  # Chains that state no answer do not vote, however many there are.
  assert vote(majority, *[(None, 0.9)] * 3, ('7', None)) == 3
  assert vote(majority, *[(None, 0.9)] * 3) == 0


def test_answers_are_equal_by_what_they_mean():
  tree = voters(('0.5', 1), ('2', 1), ('1/2', 1), (None, 1), ('$0.50', 1))
  assert group_by_answer(tree, tree.ended()) == [[1, 3, 5], [2]]
  chains = [('2', 0.8), ('0.5', 0.3), ('1/2', 0.4), ('2', 0.0)]
  assert vote(weighted_vote, *chains) == 0
  assert vote(weighted_vote, *chains, ('50/100', 0.2)) == 2


def test_the_weighted_vote():
  chains = [('1', 0.5), ('2', 0.3), ('2', 0.4), ('3', 0.6)]
  assert vote(weighted_vote, *chains) == 2
  assert vote(weighted_vote, ('1', 0.5), ('2', 0.5)) == 0
  assert vote(weighted_vote, (None, 0.9), (None, 0.95)) == 1
  # Logarithms of products: exp(-1) > 2 exp(-2), and 2 exp(-1.5) > exp(-1).
  logs = [('1', -1.0), ('2', -2.0), ('2', -2.0)]
  assert vote(weighted_vote, *logs, aggregate='prod') == 0
  logs = [('1', -1.0), ('2', -1.5), ('2', -1.5)]
  assert vote(weighted_vote, *logs, aggregate='prod') == 1
  # Products too small for a float64.
  logs = [(answer, score - 2000) for answer, score in logs]
  assert vote(weighted_vote, *logs, aggregate='prod') == 1


def test_votes_have_the_chains_of_best_of_n():
  found = {
    method: search(method, Scripted(5, 3), noise(1), {'samples': 10})
    for method in ('best_of_n', 'majority', 'weighted_vote')
  }
  sets = [{chain.steps for chain in each.chains} for each in found.values()]
  assert sets[0] == sets[1] == sets[2]
  # All chains end with branch 0, so they agree and the best one is chosen.
  best = found['best_of_n'].chosen.steps
  assert found['weighted_vote'].chosen.steps == best
  assert found['majority'].ledger['scored_tokens'] == 0
  assert found['majority'].chosen.steps[0] == '0: x = 0'
  # A majority needs no PRM.
  assert search('majority', Scripted(), None).chosen.answer == '0'


class Reviser(Scripted):
  """A policy that writes the step scores into the text of its chains."""

  def one(self, request, number):
    self.written = getattr(self, 'written', -1) + 1
    steps = tuple(
      f'{self.written}/{p} = {drawn(self.written, p):.3f}'
      for p in range(len(request.steps), self.depth)
    )
    return Completion(steps, True, len(steps), 0, -1.0)


def stated(steps):
  return float(steps[-1].split(' = ')[1])


@pytest.mark.parametrize('aggregate', ['min', 'prod', 'mean'])
def test_refine_writes_again_from_the_weakest_step(aggregate):
  policy, rounds = Reviser(depth=5), 6
  options = {'samples': 3, 'rounds': rounds}
  found = search('refine', policy, Table(stated), options, aggregate)
  assert found.ledger['samples'] == 3 * (1 + rounds)
  assert len(found.chains) == 3 * (1 + rounds)
  score = {
    chain.steps: chain.meta['search']['chain_score'] for chain in found.chains
  }
  # Replays the search: which chain each round rewrote, and the result.
  by_number = {int(s[-1].split('/')[0]): s for s in score}
  chains = [by_number[n] for n in range(3)]
  for number, asked in enumerate(policy.asked[1:]):
    for n, request in enumerate(asked):
      scores = [stated((step,)) for step in chains[n]]
      assert request.steps == chains[n][: scores.index(min(scores))]
      assert request.max_steps == 0 and request.samples == 1
      new = by_number[3 + 3 * number + n]
      assert new[: len(request.steps)] == request.steps
      if score[new] > score[chains[n]]:
        chains[n] = new
  assert len(policy.asked) == 1 + rounds
  assert found.chosen.steps == max(chains, key=score.get)
  assert score[found.chosen.steps] > max(score[by_number[n]] for n in range(3))


def test_refine_never_draws_a_sample_twice():
  """The first sample after a node of a whole chain would be the same chain."""
  policy = Scripted(branching=4, depth=3)
  search('refine', policy, noise(0), {'samples': 2, 'rounds': 3})
  drawn_before = set()
  for request in (r for asked in policy.asked for r in asked):
    for n in range(request.samples):
      sample = (request.key, request.first + n)
      assert sample not in drawn_before
      drawn_before.add(sample)


class CountedNodes(list):
  """The nodes of a tree, which count how often one of them is looked up."""

  def __init__(self, nodes):
    super().__init__(nodes)
    self.looked_up = 0

  def __getitem__(self, index):
    self.looked_up += 1
    return super().__getitem__(index)


def test_the_work_of_early_rejection_grows_as_the_number_of_chains():
  """All chains fall alike, so that all of them grow side by side."""

  def looked_up(samples):
    tree = Tree(TASK.text)
    tree.nodes = nodes = CountedNodes(tree.nodes)
    plan = SearchPlan(
      METHODS['early_rejection'],
      EarlyRejectionConfig(samples),
      SearchConfig(),
      Budget(),
      key='0',
    )
    falling = Table(lambda steps: 1 - len(steps) / 100)
    models = AskedModels(policy=Scripted(samples, 20), prm=falling)
    [ended] = drive([0], lambda _: search_problem(TASK, plan, tree), models, 1)
    assert len(ended.chains[0].steps) == 20 and len(nodes) > 18 * samples
    return nodes.looked_up

  assert looked_up(128) < 2.1 * looked_up(64)


@settings(deadline=None, max_examples=60)
@given(
  seed=st.integers(0, 10_000),
  samples=st.integers(1, 12),
  width=st.integers(1, 12),
  aggregate=st.sampled_from(['min', 'prod']),
  digits=st.sampled_from([0, 1, 9]),  # with few of them there are ties
)
def test_early_rejection_chooses_as_best_of_n(
  seed, samples, width, aggregate, digits
):
  prm = Table(lambda steps: round(drawn(seed, steps), digits))

  def chosen(method, **options):
    policy = Scripted(samples, 12, uneven=True)
    return search(method, policy, prm, options, aggregate)

  whole = chosen('best_of_n', samples=samples)
  early = chosen('early_rejection', samples=samples, width=width)
  assert early.chosen.steps == whole.chosen.steps
  for key in ('scores', 'chain_score'):
    assert early.chosen.meta['search'][key] == whole.chosen.meta['search'][key]
  assert early.ledger['tokens'] <= whole.ledger['tokens']
  # Every chain ends or is dropped, and only dropped ones save tokens.
  dropped = sum(early.ledger['dead'].values())
  assert dropped + len(early.chains) == samples
  saved = whole.ledger['tokens'] - early.ledger['tokens']
  assert (saved > 0) == (dropped > 0)


def test_early_rejection_counts_what_it_dropped():
  def score(steps):  # chain 0 is good; 1 is bad at once, 2 one step later
    first = int(steps[0][-1])
    return (0.8, 0.1, 0.9 if len(steps) == 1 else 0.2)[first]

  options = {'samples': 3, 'width': 1}
  found = search('early_rejection', Scripted(3, 4), Table(score), options)
  assert found.ledger['dead'] == {
    'rejected at step 1': 1,
    'rejected at step 2': 1,
  }
  assert [chain.steps[0] for chain in found.chains] == ['0: x = 0']
  assert found.ledger['tokens'] == 10 * (4 + 1 + 2)
  # The chain that ended has four steps, of ten tokens each.
  assert found.ledger['saved_tokens'] == 10 * ((4 - 1) + (4 - 2))
  whole = search('best_of_n', Scripted(3, 4), Table(score), {'samples': 3})
  saved = whole.ledger['tokens'] - found.ledger['tokens']
  assert found.ledger['saved_tokens'] == saved  # all chains are as long
  assert whole.ledger['saved_tokens'] == 0


def test_saved_tokens_are_estimated_from_the_chains_that_ended():
  tree = Tree('p')
  for tokens in ((4, 6), (10, 10, 10, 0)):  # the last only ends the chain
    at = ROOT
    for p, n in enumerate(tokens):
      at = tree.add(Node(at, '' if p == 3 else str(p), tokens=n))
    tree.nodes[at].ended = True
  early = tree.add(Node(ROOT, 'a', dead='rejected at step 1'))
  late = ROOT
  for p in range(4):
    late = tree.add(Node(late, str(p)))
  # Mean: 2.5 steps of 8 tokens. One chain lacks 1.5 steps, the other none.
  assert saved_tokens(tree, [early, late]) == 12
  assert saved_tokens(tree, [late]) == saved_tokens(tree, []) == 0
  assert saved_tokens(Tree('p'), []) == 0


class SixOrNine(Scripted):
  """A policy whose chain 0 has six steps and chain 1 three more."""

  def step(self, before, branch):
    chain = int(before[0][-1]) if before else branch
    return f'{len(before)}: x = {branch}', len(before) + 1 == 6 + 3 * chain


def test_sums_of_logarithms_may_rise_by_their_rounding():
  """Three more steps of log(1) = 0 change the float32 sum."""
  scores = [0.4412, 0.9214, 0.0492, 0.7254, 0.6078, 0.0394, 1.0, 1.0, 1.0]
  prm = Table(lambda steps: scores[len(steps) - 1])
  options = {'samples': 2}
  whole = search('best_of_n', SixOrNine(2), prm, options, 'prod')
  six, nine = sorted(whole.chains, key=lambda chain: len(chain.steps))
  worth = [c.meta['search']['chain_score'] for c in (six, nine)]
  assert worth[0] < worth[1] < worth[0] + 1e-5
  assert whole.chosen.steps == nine.steps
  early = search('early_rejection', SixOrNine(2), prm, options, 'prod')
  assert early.chosen.steps == nine.steps


@pytest.mark.parametrize('aggregate', ['mean', 'last', 'sum', 'max'])
def test_early_rejection_needs_an_aggregate_that_only_falls(aggregate):
  with pytest.raises(UserError, match=rf"'{aggregate}': may rise .* min, prod"):
    search('early_rejection', Scripted(), noise(0), aggregate=aggregate)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: BestOfNConfig(0), r'^samples=0: '),
    (lambda: RefineConfig(0), r'^samples=0: '),
    (lambda: RefineConfig(rounds=-1), r'^rounds=-1: '),
    (lambda: EarlyRejectionConfig(0), r'^samples=0: '),
    (lambda: EarlyRejectionConfig(width=0), r'^width=0: '),
  ],
)
def test_configs_check_themselves(make, message):
  with pytest.raises(UserError, match=message):
    make()

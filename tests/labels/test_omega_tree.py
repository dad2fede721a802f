"""OmegaPRM's tree: what it searches next, and the chains that it adds."""

import dataclasses

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.targets import step_targets
from prm_jax.inference.driver import CannotDo, GaveUp
from prm_jax.inference.protocols import Completion
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.labels import omega
from prm_jax.labels.omega import OmegaConfig, State
from tests.labels.run_labellings import run
from tests.labels.wrong_chains import (
  DEFAULT,
  HARD,
  LONG,
  found_error,
  stronger,
  wrong_chains,
)


def state(successes, wrong, visits=0):
  label = StepLabel(successes / 8, 'rollout', successes, 8)
  return State((), label, wrong, visits)


def test_select_by_hand():
  # Q(s, r) + U(s) with alpha .5, beta .9, L 500, c .125, sum N = 4:
  #   MC 6/8, 2 words, N 3: .5^.25 * .9^.004 + .125 * 2 / 4 = .90304
  #   MC 4/8, 2 words, N 1: .5^.5 * .9^.004 + .125 * 2 / 2 = .83181
  #   MC 4/8, 2 words, N 0: .5^.5 * .9^.004 + .125 * 2 / 1 = .95681
  #   MC 6/8, 900 words, N 0: .5^.25 * .9^1.8 + .125 * 2 / 1 = .94564
  short, long = ('two words',), ('word ' * 900,)
  seldom = state(4, [short])
  states = [
    state(6, [short], visits=3),
    state(4, [short], visits=1),
    state(6, [long]),
    seldom,
    state(8, [short]),  # no error can be seen from here
    state(0, [short]),
  ]
  assert omega.select(states, OmegaConfig()) == (seldom, short)
  assert omega.select(states[:3], OmegaConfig()) == (states[2], long)
  assert omega.select(states[:2], OmegaConfig()) == (states[0], short)
  assert omega.select(states[4:], OmegaConfig()) is None
  # At a threshold of a half only MC above it can be searched.
  assert omega.select([seldom], OmegaConfig(threshold=0.5)) is None
  # A convincing rollout first, then the shorter of two.
  both = state(6, [('five words and no more',), short])
  assert omega.select([both, seldom], OmegaConfig(c_puct=0)) == (both, short)


def test_the_tree_adds_chains_and_rolls_out_no_prefix_twice():
  chains, _ = wrong_chains(LONG, 20)
  completer = dataclasses.replace(LONG, use_wrong=0.3, slip=0.01)
  config = OmegaConfig(searches=6)
  trees, asked = run(
    [omega.label_tree(chain, config) for chain in chains],
    SolverPolicy(completer),
  )
  again, _ = run([omega.label_tree(chains[0], config)], SolverPolicy(completer))
  assert again[0] == trees[0]
  [alone], _ = run(
    [omega.label_tree(chains[0], OmegaConfig())], SolverPolicy(completer)
  )
  assert [each.steps for each in alone] == [chains[0].steps]
  added, hit = 0, 0
  for chain, grown, rounds in zip(chains, trees, asked, strict=True):
    if isinstance(grown, CannotDo):
      continue
    requests = [each for (each,) in rounds]
    assert requests[0].steps == ()
    assert len({each.key for each in requests}) == len(requests)
    assert len({each.steps for each in requests}) == len(requests)
    assert grown[0].steps == chain.steps
    assert len({each.steps for each in grown}) == len(grown) <= 7
    assert len({each.meta['id'] for each in grown}) == len(grown)
    for other in grown[1:]:
      added += 1
      error = found_error(other, config)
      values = step_targets(other, 16, HARD).values
      assert (values == (np.arange(16) < error)).all()
      assert other.outcome is False and other.problem == chain.problem
      assert other.answer == other.steps[-1].split()[-1]
      right = arithmetic_text.check_steps(other.problem, other.steps)
      hit += right.index(False) == error
  assert added > 80
  assert hit / added > 0.8


def test_the_tree_of_a_right_chain_searches_every_wrong_rollout_once():
  completer = dataclasses.replace(DEFAULT, slip=0.5)
  chain = Chain('mod 10 : 7 * 3', ('7 * 3 = 1',), '1', True, meta={'id': 'x'})
  config = OmegaConfig(samples=32, searches=99)
  policy = SolverPolicy(completer)
  [found], [[[request]]] = run([omega.label_tree(chain, config)], policy)
  [rollouts] = policy.complete([request])
  wrong = {each.steps for each in rollouts} - {chain.steps}
  assert len(wrong) > 5
  assert [each.value for each in found[0].labels] == [1]
  assert {each.steps for each in found[1:]} == wrong
  assert len(found) == 1 + len(wrong)
  assert all(each.labels[0].value == 0 for each in found[1:])


def test_rollouts_that_a_limit_cut_off_are_not_searched():
  class Cut:
    def complete(self, requests):
      right = Completion(('1 + 1 = 2',), True, 6, 0, 0.0)
      cut = Completion(('1 + 1 = 4',), False, 6, 0, 0.0)
      return [[right, cut] for _ in requests]

  chain = Chain(
    '1 + 1?', ('1 + 1 = 3',), '3', False, meta=dict(id='x', truth=2)
  )
  config = OmegaConfig(samples=2, searches=3)
  [found], [rounds] = run([omega.label_tree(chain, config)], Cut())
  assert len(found) == 1 and len(rounds) == 1
  assert found[0].labels[0].value == 0
  assert found[0].meta['rollouts'] == {'unfinished': 1, 'unknown': 0}


def test_chains_of_the_tree_are_whole_although_the_first_was_cut_off():
  """Their last step has the outcome of an end that the policy wrote."""

  class Errs:
    def complete(self, requests):
      right = Completion(('1 + 1 = 2',), True, 6, 0, 0.0)
      wrong = Completion(('1 + 1 = 4', 'so 4'), True, 6, 0, 0.0)
      return [[right, wrong] for _ in requests]

  about_it = dict(finished=False, tokens=6, judge={}, kind='right', active={})
  meta = dict(id='x', truth=2, dataset='d') | about_it
  chain = Chain('1 + 1?', ('1 + 1 = 3',), meta=meta)
  config = OmegaConfig(samples=2, searches=1)
  [[_, added]], _ = run([omega.label_tree(chain, config)], Errs())
  assert added.steps == ('1 + 1 = 4', 'so 4')
  assert added.meta == {'id': 'x/omega/1', 'truth': '2', 'dataset': 'd'}
  last = added.labels[-1]
  assert (last.value, last.successes, last.trials) == (0.0, 0, 2)


def test_chains_found_before_the_policy_fails_are_kept():
  class FailsLater:
    asked = 0

    def complete(self, requests):
      self.asked += len(requests)
      if self.asked > 5:  # the problem, and log2 of 16 steps
        return [[None] * each.samples for each in requests]
      return SolverPolicy(stronger(LONG), seed=1).complete(requests)

  [chain, *_], _ = wrong_chains(LONG, 3)
  config = OmegaConfig(searches=9)
  [found], [rounds] = run([omega.label_tree(chain, config)], FailsLater())
  [whole], _ = run(
    [omega.label_tree(chain, config)], SolverPolicy(stronger(LONG), seed=1)
  )
  assert len(rounds) > 5
  assert 1 <= len(found) < len(whole)
  # Only the first chain differs, in its count of failed completions.
  assert found[0].meta.pop('rollouts')['unknown'] > 0
  assert whole[0].meta.pop('rollouts') == {'unfinished': 0, 'unknown': 0}
  assert found == whole[: len(found)]
  # Requests with equal keys are the same, so each prefix needs its own.
  keys = [request.key for [request] in rounds]
  assert len(set(keys)) == len(keys)


@pytest.mark.parametrize('refused', [False, True])
def test_a_chain_is_labelled_without_rollouts_from_its_problem(refused):
  """Of a right chain `label` asks for none, and the tree gives no less."""
  chain = Chain('1 + 1?', ('1 + 1 = 2',), '2', True, meta={'id': 'x'})
  config = OmegaConfig(searches=3)
  work = omega.label_tree(chain, config)
  next(work)
  with pytest.raises(StopIteration) as end:
    if refused:
      work.throw(CannotDo('the server refused'))
    work.send([[None] * 8])
  [found] = end.value.value
  [alone], _ = run([omega.label(chain, config)], SolverPolicy(DEFAULT))
  assert found.labels == alone.labels
  unknown = 0 if refused else 8
  assert found.meta['rollouts'] == {'unfinished': 0, 'unknown': unknown}


def test_a_wrong_chain_is_searched_without_rollouts_from_its_problem():
  class FailsAtTheProblem:
    def complete(self, requests):
      drawn = SolverPolicy(DEFAULT).complete(requests)
      return [
        answer if request.steps else [None] * request.samples
        for request, answer in zip(requests, drawn, strict=True)
      ]

  chains, _ = wrong_chains(DEFAULT, 50)
  config = OmegaConfig(searches=3)
  trees, _ = run(
    [omega.label_tree(chain, config) for chain in chains], FailsAtTheProblem()
  )
  labelled = [found for found in trees if not isinstance(found, CannotDo)]
  assert 0 < len(labelled) < len(chains)
  for (found,) in labelled:
    assert found_error(found, config) > 0


def test_a_search_that_ends_early_returns_what_it_has():
  """The driver says that the model gave up, and asks nothing more."""
  [chain, *_], _ = wrong_chains(LONG, 3)
  policy = SolverPolicy(stronger(LONG), seed=1)
  work = omega.label_tree(chain, OmegaConfig(searches=9))
  asked = next(work)
  for _ in range(5):  # the problem, and log2 of 16 steps: the chain is labelled
    asked = work.send(policy.complete(asked))
  with pytest.raises(StopIteration) as end:
    work.throw(GaveUp('the server is away'))
  first, *_ = end.value.value
  assert first.steps == chain.steps and len(first.labels) == 16


def test_a_right_chain_gives_its_answer_to_the_wrong_ones():
  """They do not have it themselves, and later labels need it."""
  chain = Chain('1 + 1?', ('1 + 1 = 2',), '2', True, meta={'id': 'x'})

  class Errs:
    def complete(self, requests):
      ends = [('1 + 1 = 2',), ('1 + 1 = 4',)]
      drawn = [Completion(end, True, 6, 0, 0.0) for end in ends]
      return [drawn for _ in requests]

  config = OmegaConfig(samples=2, searches=1)
  [[_, added]], _ = run([omega.label_tree(chain, config)], Errs())
  assert added.meta['truth'] == '2'

"""The problems that an evaluation takes, and what it can be made of."""

import pathlib

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.datasets import Dataset
from prm_jax.data.targets import TargetConfig
from prm_jax.evals.enough_data import check_data, check_outcomes
from prm_jax.evals.prm import PrmEvaluation, evaluate, some_problems
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
    (
      labelled(1.0, 1.0),
      BOTH,
      r'^0 of 2 labelled chains of dev have an error: ',
    ),
    (labelled(0.0), BOTH, r'^1 of 1 labelled chains of dev have an '),
    (labelled(None, None), BOTH, r'^0 of 0 labelled chains of dev '),
    ([], BOTH, r'^0 of 0 labelled chains of dev '),
    # Evenly spaced, the first and the third are taken.
    (
      BOTH,
      labelled(1.0, 0.0, 1.0, 0.0),
      r'^0 of 2 labelled chains of of_test ',
    ),
  ],
)
def test_chains_of_one_kind_are_refused_before_any_is_scored(dev, test, why):
  with pytest.raises(UserError, match=why):
    check(dev, test)
  check(dev, test, supervision='outcome')  # it needs no threshold


def test_chains_of_both_kinds():
  check(BOTH, BOTH)
  check(labelled(None, 0.0, 1.0), labelled(None, None))


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


def test_an_outcome_model_needs_outcomes_to_learn_and_on_dev():
  known = [Chain('p', ('1',), '1', outcome=False)]
  for train, dev, why in (
    (BOTH, known, 'none of 2 training chains has an outcome.* or x=False'),
    (known, BOTH, 'none of 2 dev chains has an outcome.* or x=False'),
    ([*BOTH, *known], [*BOTH, *known], ''),
  ):
    dataset = Dataset(train, dev, {}, '', pathlib.Path(), False)
    if not why:
      check_outcomes(PrmEvaluation(), dataset, 'x=False')
      continue
    with pytest.raises(UserError, match=why):
      check_outcomes(PrmEvaluation(), dataset, 'x=False')


def test_an_evaluation_without_chains_is_left_out():
  dataset = Dataset([], BOTH, {'none': []}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='')
  check_data(wanted, TargetConfig(), dataset)
  said = []

  def score(chains):
    return [np.array([0.9], np.float32) for _ in chains]

  found = evaluate(wanted, TargetConfig(), dataset, score, None, 0, said.append)
  assert said[1:] == ['none has no chains, and is left out']
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


def test_the_pool_is_judged_by_the_score_that_was_trained():
  """Right chains end best, and have a step that is worse than all others."""
  scores = {'a': [0.1, 0.9], 'b': [0.5, 0.5]}
  chains = [
    Chain(problem, (name, 'x'), name, outcome=name == 'a')
    for problem in ('p', 'q')
    for name in ('a', 'b')
  ]

  def score(chains):
    return [
      np.array(scores.get(chain.answer, [0.9] * len(chain.steps)), np.float32)
      for chain in chains
    ]

  wanted = PrmEvaluation(best_of_n='pool', ns=(1, 2))
  dataset = Dataset([], BOTH, {'pool': chains}, '', pathlib.Path(), False)

  def accuracy(targets, orm):
    found = evaluate(wanted, targets, dataset, score, orm, 0, print)
    by_n = found.results['best_of_n']
    return {name: by_n[name]['mean'][-1] for name in by_n if 'rm' in name}

  assert accuracy(TargetConfig('outcome'), None) == {'orm': 1}
  assert accuracy(TargetConfig(), score) == {
    'prm_min': 0,
    'prm_prod': 0,
    'prm_mean': 0.5,
    'prm_last': 1,
    'orm': 1,
  }


def half(chains):
  """Scores every step .5, but those of 'bad' steps .1."""
  return [
    np.array(
      [0.1 if step == 'bad' else 0.5 for step in chain.steps], np.float32
    )
    for chain in chains
  ]


def steps_of(problem, *labels, **about):
  """A chain whose wrong steps read 'bad'."""
  steps = tuple(
    'bad' if label == 0 else f's{i}' for i, label in enumerate(labels)
  )
  known = tuple(map(StepLabel, labels))
  return Chain(problem, steps, labels=known, **about)


MIXED = [steps_of('p', 1.0, 1.0), steps_of('q', 1.0, 0.0)]


def judged(evaluations, dev=MIXED, **changes):
  supervision = changes.pop('supervision', 'process')
  dataset = Dataset([], dev, evaluations, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='', **changes)
  targets = TargetConfig(supervision=supervision)
  check_data(wanted, targets, dataset)
  said = []
  found = evaluate(wanted, targets, dataset, half, None, 0, said.append)
  return found, said


@pytest.mark.parametrize('share', [0.0, 0.3])
def test_chains_without_labels_say_nothing_of_errors(share):
  """Neither do they count among those of which a share is flagged."""
  bare = [Chain(f'u{i}', ('bad',), outcome=False) for i in range(3)]
  found, said = judged({'some': [*MIXED, *bare]}, wrong_share=share)
  of_some = found.results['localisation']['some']
  assert (of_some['acc_error'], of_some['acc_correct']) == (1.0, 1.0)
  assert of_some['count_error'] + of_some['count_correct'] == 2
  assert 'some: 3 chains without step labels are left out' in said
  # They are scored, and the page may show them.
  assert sum(line['set'] == 'some' for line in found.step_scores) == 5


def test_a_right_answer_with_a_wrong_step_is_found_at_the_threshold():
  some = [
    steps_of('p', 1.0, 1.0, outcome=True),
    steps_of('q', 1.0, 0.0, outcome=True),
  ]
  found, _ = judged({'some': some})
  assert 0.1 < found.threshold['value'] <= 0.5
  of_some = found.results['diagnostics']['some']
  assert of_some['right_answer_wrong_process']['found'] == 1


def test_a_share_of_wrong_chains_is_each_sets_own():
  """Whether a set has labels, and which came before, makes no difference."""
  labelled = [steps_of(f'p{i}', 1.0, float(i > 0)) for i in range(4)]
  bare = [Chain(f'u{i}', ('s0', 'bad' if i else 's1')) for i in range(4)]
  sets = {'labelled': labelled, 'bare': bare}
  for names in (('labelled', 'bare'), ('bare', 'labelled')):
    evaluations = {name: sets[name] for name in names}
    found, _ = judged(evaluations, wrong_share=0.75)
    flagged = {
      record['problem']: min(record['scores']) < record['threshold']
      for record in found.shown
    }
    assert [flagged[f'u{i}'] for i in range(4)] == [False, True, True, True]


def test_a_set_of_which_nothing_was_read_is_not_judged():
  dataset = Dataset(
    [], MIXED, {'long': MIXED, 'some': MIXED}, '', pathlib.Path(), False
  )
  said = []

  def score(chains):  # dev is scored first, then the set that is too long
    read = half(chains)
    if said[-1].endswith('of long'):
      return [row[:0] for row in read]
    return read

  for share in (0.0, 0.5):
    wanted = PrmEvaluation(best_of_n='', wrong_share=share)
    targets = TargetConfig()
    found = evaluate(wanted, targets, dataset, score, None, 0, said.append)
    assert 'long: no step was read, so steps are not judged' in said
    assert set(found.results['localisation']) == {'some'}
    assert 'long' in found.results['unread']


def test_a_file_of_prmbench_has_errors_alone():
  chains = [
    steps_of(
      f'p{i}',
      1.0,
      0.0,
      meta={'dataset': 'prmbench', 'classification': 'circular'},
    )
    for i in range(4)
  ]
  found, _ = judged({'circular': chains})
  assert 'circular' in found.results['prmbench']
  assert 'circular' in found.results['calibration']
  assert 'localisation' not in found.results
  with pytest.raises(UserError, match=r'^4 of 4 labelled chains of dev'):
    judged({}, dev=chains)  # no threshold can be chosen by them


def test_an_outcome_model_judges_the_last_step_alone():
  found, _ = judged({'some': MIXED}, supervision='outcome')
  for record in found.shown:
    assert record['scores'][0] is None and record['scores'][1] is not None
    assert record['threshold'] == 0


def test_an_outcome_model_has_no_score_of_a_chain_that_was_cut():
  """The last step that was read is no last step."""
  dataset = Dataset([], MIXED, {'some': MIXED}, '', pathlib.Path(), False)

  def score(chains):
    return [np.array([0.5, 0.7][: 1 + (c.problem == 'p')]) for c in chains]

  targets = TargetConfig(supervision='outcome')
  wanted = PrmEvaluation(best_of_n='')
  found = evaluate(wanted, targets, dataset, score, None, 0, print)
  shown = {record['problem']: record['scores'] for record in found.shown}
  assert shown == {'p': [None, 0.7], 'q': [None, None]}


def test_dev_chains_are_numbered_in_their_set():
  dev = [*MIXED, *(steps_of(f'p{i}', 1.0, 0.0) for i in range(6))]
  found, _ = judged({}, dev, max_dev_problems=4)
  indices = [line['chain'] for line in found.step_scores]
  assert indices == [0, 2, 4, 6]


def test_equal_chains_with_other_outcomes_are_refused_before_any_is_scored():
  chains = [Chain('p', ('a',), '1', outcome=right) for right in (True, False)]
  dataset = Dataset([], BOTH, {'pool': chains}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='pool', ns=(1, 2))
  with pytest.raises(
    UserError, match=r'equal chains of .* both right and wrong'
  ):
    check_data(wanted, TargetConfig(), dataset)


def test_scores_that_are_not_finite_are_one_line():
  def broken(chains):
    return [np.full(len(chain.steps), np.nan) for chain in chains]

  dataset = Dataset([], MIXED, {}, '', pathlib.Path(), False)
  wanted = PrmEvaluation(best_of_n='')
  with pytest.raises(UserError, match="a chain of dev for 'p' has scores that"):
    evaluate(wanted, TargetConfig(), dataset, broken, None, 0, print)

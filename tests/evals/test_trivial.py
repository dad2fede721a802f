"""Features of a step's text as baselines of a scorer."""

import dataclasses

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import suite, trivial


def labelled(steps, wrong, problem):
  """A chain whose step `wrong` is its first error; -1 for none."""
  labels = tuple(
    StepLabel(float(wrong < 0 or i < wrong)) for i in range(len(steps))
  )
  return Chain(problem, tuple(steps), '', wrong < 0, labels)


# Wrong steps are the long ones, on both sets.
DEV = [
  labelled(['ab', 'abcd12345', 'a'], 1, 'p'),
  labelled(['a1', 'abc', 'ab'], -1, 'q'),
]
OTHERS = [
  labelled(['abcdefgh'], 0, 'r'),
  labelled(['a', 'ab'], -1, 'r'),
  labelled(['ab', 'abcdefghi'], 1, 's'),
]


def scores_of(chains):
  return [np.full(len(chain.steps), 0.5) for chain in chains]


def test_a_rule_is_chosen_on_dev_and_used_on_others():
  chosen = suite.choose_on_dev(DEV, scores_of(DEV))
  rule = chosen.rules['length']
  assert rule.sign == -1
  assert -9 < rule.threshold <= -3
  found = suite.localisation_section(OTHERS, scores_of(OTHERS), chosen, 0, 100)
  assert found['baselines']['length']['f1'] == 1
  # A constant score finds nothing, and noise is above it.
  assert found['f1'] == 0
  assert 0 < found['baselines']['noise']['f1'] < 1
  steps = suite.calibration_section(
    OTHERS, scores_of(OTHERS), chosen.rules, 0, 100
  )
  assert steps['ranking']['auc'] == 0.5
  assert steps['baselines']['length']['auc'] == 1
  assert steps['baselines'].keys() == trivial.FEATURES.keys()


def test_thresholds_flag_a_share_of_the_chains_without_their_labels():
  chosen = suite.choose_on_dev(DEV, scores_of(DEV))
  scores = [np.array([0.3]), np.array([0.9, 0.8]), np.array([0.7, 0.2])]
  here = suite.flag_share(chosen, OTHERS, scores, 0.67)
  assert 0.3 < here.threshold <= 0.8
  # The longest steps of two chains have 8 and 9 letters, of the third 2.
  assert -8 < here.rules['length'].threshold <= -2
  unlabelled = [
    dataclasses.replace(chain, labels=(), outcome=None) for chain in OTHERS
  ]
  assert suite.flag_share(chosen, unlabelled, scores, 0.67) == here
  found = suite.localisation_section(OTHERS, scores, here, 0, 100)
  assert (found['f1'], found['threshold']) == (1, here.threshold)


def test_features_by_hand():
  assert trivial.scores(DEV, 'length').tolist() == [[2, 9, 1], [2, 3, 2]]
  assert trivial.scores(DEV, 'digits').tolist() == [[0, 5, 0], [1, 0, 0]]
  assert trivial.scores(OTHERS, 'place').tolist() == [[0, 0], [0, 1], [0, 1]]


def test_chain_scores_are_ranked_within_problems():
  right = labelled(['a'], -1, 'p')
  wrong = labelled(['b'], 0, 'p')
  found = suite.chain_ranking_section(
    [right, wrong, right, labelled(['c'], 0, 'q')],
    {'prm': np.array([0.6, 0.4, 0.6, 0.9])},
    0,
    100,
  )
  assert found['prm']['auc'] == 0.5
  assert found['prm']['within_problem']['value'] == 1
  assert found['distinct_texts'] == 1.5

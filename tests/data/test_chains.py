"""Tests the checks of chains and step labels, and their JSON form."""

import dataclasses
import json

import pytest
from hypothesis import given

from prm_jax.data.chains import (
  Chain,
  StepLabel,
  first_error,
  from_dict,
  to_dict,
)
from prm_jax.runtime.errors import UserError
from tests.data.chain_strategies import any_chain


@given(any_chain())
def test_a_chain_is_the_same_after_json(chain):
  assert from_dict(json.loads(json.dumps(to_dict(chain)))) == chain


def test_to_dict_returns_plain_json_types():
  label = StepLabel(0.25, 'rollout', 1, 4)
  chain = Chain('p', ('s',), '7', True, (label,), {'id': 'x'})
  assert to_dict(chain) == {
    'problem': 'p',
    'steps': ['s'],
    'answer': '7',
    'outcome': True,
    'labels': [
      {
        'value': 0.25,
        'source': 'rollout',
        'successes': 1,
        'trials': 4,
        'neutral': False,
      }
    ],
    'meta': {'id': 'x'},
  }


def test_from_dict_needs_only_problem_and_steps():
  assert from_dict({'problem': 'p', 'steps': ['s']}) == Chain('p', ('s',))


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'problem': ''}, 'chain without a problem'),
    ({'problem': ' \n'}, 'chain without a problem'),
    ({'problem': 3}, 'chain without a problem'),
    ({'steps': []}, 'chain without steps'),
    ({'steps': ['a', '\t']}, r"step 1 is '\\t': expected a non-blank"),
    ({'steps': ['a', None]}, 'step 1 is None'),
    ({'steps': 'ab'}, "steps is 'ab': expected a list"),
    ({'steps': None}, 'steps is None: expected a list'),
    ({'answer': 7}, 'answer is 7: expected text'),
    ({'answer': ['7']}, 'answer is a list of 1: expected text'),
    ({'outcome': 1}, 'outcome is 1: expected true, false'),
    ({'outcome': 'true'}, "outcome is 'true'"),
    ({'meta': None}, 'meta is None: expected an object'),
    ({'meta': [['id', 1]]}, 'meta is a list of 1: expected an object'),
    ({'labels': None}, 'labels is None: expected a list'),
    ({'labels': {'value': 1}}, 'labels is an object of 1: expected a list'),
    ({'labels': [1.0, 0.0]}, 'chain record of the wrong shape'),
    ({'labels': [{'value': 1.0}]}, '1 labels for 2 steps'),
    ({'labels': [{'value': 1.0, 'x': 1}] * 2}, "unexpected .* 'x'"),
    ({'labels': [{'source': 'human'}] * 2}, "missing .* 'value'"),
    ({'labels': [{'value': '1'}] * 2}, "step label '1'"),
    (
      {'labels': [{'value': 0.5, 'successes': 'a', 'trials': 2}] * 2},
      "'a' successes of 2 trials: expected whole",
    ),
    ({'lables': []}, "unknown field 'lables'"),
  ],
)
def test_from_dict_rejects_bad_fields(change, message):
  record = {'problem': 'p', 'steps': ['a', 'b']} | change
  with pytest.raises(UserError, match=message) as caught:
    from_dict(record)
  assert '\n' not in str(caught.value)


LONG = 'x' * 10_000


@pytest.mark.parametrize(
  'change',
  [
    {'steps': LONG},
    {'steps': ['a', [LONG]]},
    {'answer': [LONG]},
    {'outcome': LONG},
    {'meta': LONG},
    {'meta': {'original_problem': [LONG]}},
    {'labels': {LONG: 1}},
    {'labels': [{LONG: 1}] * 2},
    {'labels': [{'value': LONG}] * 2},
    {'labels': [{'value': 1.0, 'source': LONG}] * 2},
    {'labels': [{'value': 1.0, 'neutral': LONG}] * 2},
    {'labels': [{'value': 1.0, 'successes': LONG, 'trials': 2}] * 2},
    {LONG: 1},
  ],
)
def test_a_long_value_is_cropped_in_the_error(change):
  record = {'problem': 'p', 'steps': ['a', 'b']} | change
  with pytest.raises(UserError) as error:
    from_dict(record)
  assert len(str(error.value)) < 200


@pytest.mark.parametrize('name', ['problem', 'steps'])
def test_from_dict_names_the_missing_field(name):
  record = {'problem': 'p', 'steps': ['a']}
  del record[name]
  with pytest.raises(UserError, match=f'without {name!r}'):
    from_dict(record)


@pytest.mark.parametrize('record', [None, 3, 'text', [['problem', 'p']]])
def test_from_dict_rejects_records_that_are_not_objects(record):
  with pytest.raises(UserError, match='expected an object'):
    from_dict(record)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'value': 1.5}, r'step label 1.5: expected a number in \[0, 1\]'),
    ({'value': -0.1}, 'step label -0.1'),
    ({'value': float('nan')}, 'step label nan'),
    ({'value': 1.0, 'source': 'oracle'}, "label source 'oracle'"),
    ({'value': 0.5, 'trials': 2}, 'come together'),
    ({'value': 0.5, 'successes': 2}, 'come together'),
    ({'value': 0.5, 'successes': 3, 'trials': 2}, '3 successes of 2 trials'),
    ({'value': 0.5, 'successes': -1, 'trials': 2}, '-1 successes'),
    ({'value': 0.6, 'successes': 1.5, 'trials': 2.5}, 'whole numbers'),
    ({'value': 0.5, 'successes': True, 'trials': 2}, 'whole numbers'),
    ({'value': 1.0, 'neutral': 'no'}, "neutral is 'no': expected true or"),
    ({'value': 0.0, 'neutral': True}, 'neutral step label 0.0: expected 1'),
    ({'value': None, 'neutral': True}, 'neutral step label None: expected 1'),
  ],
)
def test_a_step_label_checks_itself(fields, message):
  with pytest.raises(UserError, match=message):
    StepLabel(**fields)


def test_records_cannot_be_changed():
  label = StepLabel(1.0)
  with pytest.raises(dataclasses.FrozenInstanceError):
    label.value = 0.0
  with pytest.raises(dataclasses.FrozenInstanceError):
    Chain('p', ('s',)).problem = 'q'


def test_first_error_is_below_one_half_or_not_above_the_threshold():
  right, wrong, unknown = StepLabel(0.5), StepLabel(0.49), StepLabel(None)
  assert first_error([right, unknown, wrong, wrong]) == 2
  assert first_error([right, unknown]) == -1
  assert first_error([right, wrong, StepLabel(0.0)], hard_above=0.0) == 2
  assert first_error([unknown, right, wrong], hard_above=0.5) == 1
  assert first_error([]) == -1


def test_a_fault_is_one_line_whatever_the_key():
  record = {'problem': 'p', 'steps': ['a'], 'labels': [{'a\nb': 1}]}
  with pytest.raises(UserError, match='wrong shape') as error:
    from_dict(record)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('value', [float('nan'), float('inf'), 10**400])
def test_a_label_that_is_no_probability_is_refused(value):
  with pytest.raises(UserError, match=r'expected a number in \[0, 1\]'):
    StepLabel(value)

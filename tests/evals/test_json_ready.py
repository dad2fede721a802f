"""All results consist of plain Python values, undefined ones included."""

import json

import numpy as np
import pytest

from prm_jax.evals import best_of_n, diagnostics, localisation
from prm_jax.evals.calibration import calibration
from prm_jax.evals.prmbench import prmbench

PLAIN = (dict, list, str, int, float, bool, type(None))


def walk(value):
  yield value
  children = []
  if isinstance(value, dict):
    children = [*value, *value.values()]
  elif isinstance(value, list):
    children = value
  for child in children:
    yield from walk(child)


def results(right):
  """Results of every metric.

  With `right`, all labels are right, so that many results are undefined.
  """
  rng = np.random.default_rng(0)
  scores = rng.random((6, 4), np.float32)
  mask = np.ones((6, 4), bool)
  labels = np.ones((6, 4)) if right else rng.integers(2, size=(6, 4))
  labels[0] = 1  # there are always chains without an error
  firsts = np.where((labels < 0.5).any(1), (labels < 0.5).argmax(1), -1)
  data = scores, mask, firsts
  curve = best_of_n.random_curve(mask, [1, 2])
  found = {
    'curves': best_of_n.curves({'a': curve}, np.array([1, 2]), 0),
    'calibration': calibration(scores, labels, mask),
    'prmbench': prmbench(scores, labels, mask, np.array(list('aabbcc'))),
    'last': diagnostics.minimum_at_last(scores, mask),
    'length': diagnostics.length_correlation(scores[:, 0], mask),
    'process': diagnostics.wrong_process_found(*data, firsts >= -1),
    'localisation': localisation.at_threshold(*data, np.float32(0.5)),
    'baselines': localisation.baselines(mask, firsts, np.int64(1)),
  }
  if not right:
    found['threshold'] = list(localisation.choose_threshold(*data))
    found['position'] = list(localisation.choose_position(mask, firsts))
    problems = np.arange(len(firsts))
    found['interval'] = list(localisation.f1_ci(firsts, firsts, problems, 0))
    found['difference'] = list(
      localisation.f1_difference_ci((firsts, 0 * firsts), firsts, problems, 0)
    )
  return found


@pytest.mark.parametrize('right', [False, True])
def test_json_ready(right):
  found = results(right)
  # json.dumps accepts np.float64 as a float, so the types are tested as well.
  for value in walk(found):
    assert type(value) in PLAIN, (type(value), value)
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert (found['calibration']['step_auroc'] is None) == right

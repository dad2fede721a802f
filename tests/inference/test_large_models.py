"""Models of 2 GB: what each of eight devices holds, what opening one takes."""

import pytest

from tests.shared.command_line import run_module

pytestmark = pytest.mark.slow
MODULE = 'tests.shared.large_models'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  run_module(MODULE, folder, 'make')
  return folder


def test_a_device_holds_at_most_a_seventh_of_each_model(folder):
  found = run_module(MODULE, folder, 'use')
  assert found['bytes'] > 1.9e9
  assert found['policy'] < 1 / 7 and found['prm'] < 1 / 7
  assert found['tokens'] >= 8
  assert all(0 < score < 1 for score in found['scores'])


@pytest.mark.parametrize(
  ('dtype', 'most'),
  # Beside the model its largest array, a quarter of it, is read in float32.
  [('float32', 1.5), ('bfloat16', 1.85)],
)
def test_opening_takes_the_model_and_one_array(folder, dtype, most):
  assert run_module(MODULE, folder, 'open', dtype) < most

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
  ('which', 'dtype', 'most'),
  # The compiler and its programs take some 50 MB, whatever the model's size. A
  # policy has its largest leaf twice for a moment, which is a quarter of it.
  [
    ('prm', 'float32', 1.1),
    ('prm', 'bfloat16', 1.15),
    ('policy', 'float32', 1.4),
  ],
)
def test_opening_takes_little_more_than_the_model(folder, which, dtype, most):
  assert run_module(MODULE, folder, 'open', which, dtype) < most

"""The flag with which GPU programs repeat themselves."""

import subprocess
import sys

import pytest

from prm_jax.runtime import determinism
from prm_jax.runtime.determinism import FLAG, ask_for_same_bits


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    ({}, f'{FLAG}=true'),
    ({'XLA_FLAGS': '--xla_x=1'}, f'--xla_x=1 {FLAG}=true'),
    ({'XLA_FLAGS': f'{FLAG}=false'}, f'{FLAG}=false'),
  ],
)
def test_the_flag_is_added_unless_it_is_there(given, expected, monkeypatch):
  monkeypatch.setattr(determinism, 'GPU_PLUGINS', ('json',))
  ask_for_same_bits(given)
  assert given['XLA_FLAGS'] == expected


def test_without_a_gpu_nothing_is_asked_for(monkeypatch):
  monkeypatch.setattr(determinism, 'GPU_PLUGINS', ('no_such_plugin',))
  given = {'XLA_FLAGS': '--xla_x=1'}
  ask_for_same_bits(given)
  assert given == {'XLA_FLAGS': '--xla_x=1'}


def test_this_version_of_xla_knows_the_flag():
  """An unknown flag ends the process."""
  done = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.numpy.zeros(1) + 1)'],
    env={'XLA_FLAGS': f'{FLAG}=true', 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.stdout == '[1.]\n', done.stderr

"""Tests in which dtype a job computes whose config leaves it open."""

import dataclasses

import pytest

from prm_jax.data.encoding import make_format
from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription
from prm_jax.jobs import dtypes, settings
from prm_jax.jobs.settings.shared import ComputeConfig, ModelConfig
from prm_jax.models.lora import LoraConfig
from prm_jax.runtime.workdir import Workdir
from tests.shared import configs, tiny_training


def settle(tmp_path, model, task='prm'):
  told = []
  of_task = {'prm': ModelConfig, 'rl': ComputeConfig}[task]
  before = settings.read_settings(configs.raw(f'{task}_math', 'tiny'))
  before = dataclasses.replace(before, model=of_task(**model))
  after = dtypes.settle_dtype(before, Workdir(tmp_path, {}), told.append)
  assert dataclasses.replace(after, model=before.model) == before
  return after.model, told


@pytest.mark.parametrize('model', [{}, {'dtype': 'bfloat16'}])
def test_what_is_not_open_stays(tmp_path, model):
  assert settle(tmp_path, model) == (ModelConfig(**model), [])


@pytest.mark.parametrize('task', ['prm', 'rl'])
@pytest.mark.parametrize('multiplies', [True, False])
def test_the_cpu_decides(tmp_path, monkeypatch, multiplies, task):
  monkeypatch.setattr(dtypes, 'multiplies_bfloat16', lambda: multiplies)
  given = {'dtype': 'auto', 'param_dtype': 'float32'}
  model, told = settle(tmp_path, given, task)
  assert model.param_dtype == 'float32'
  assert model.dtype == ('bfloat16' if multiplies else 'float32')
  assert [line.partition(',')[0] for line in told] == (
    [] if multiplies else ['model.dtype=float32']
  )


@pytest.mark.parametrize('task', ['prm', 'rl'])
@pytest.mark.parametrize('own', ['float32', 'bfloat16'])
def test_parameters_follow_the_dtype_of_an_opened_model(tmp_path, own, task):
  """Where the config does not say in which dtype it computes."""
  model, told = settle(tmp_path, {'param_dtype': 'auto'}, task)
  assert (model.given(own), told) == ({'param_dtype': own}, [])


@pytest.mark.parametrize('multiplies', [True, False])
@pytest.mark.parametrize('before', ['float32', 'bfloat16'])
@pytest.mark.parametrize('stored', ['float32', 'bfloat16'])
def test_a_resumed_run_keeps_its_dtypes(
  tmp_path, monkeypatch, multiplies, before, stored
):
  monkeypatch.setattr(dtypes, 'multiplies_bfloat16', lambda: multiplies)
  described = ModelDescription(
    dataclasses.replace(tiny_training.MODEL, dtype=before, param_dtype=stored),
    tiny_training.HEAD,
    LoraConfig(),
    make_format('arithmetic', 46),
  )
  loading.write_description(tmp_path, described)
  model, told = settle(tmp_path, {'dtype': 'auto', 'param_dtype': 'auto'})
  assert (model.dtype, model.param_dtype, told) == (before, stored, [])
  model, told = settle(tmp_path, {'dtype': before, 'param_dtype': 'auto'})
  assert (model.param_dtype, told) == (stored, [])


@pytest.mark.parametrize('given', ['float32', 'bfloat16'])
def test_parameters_follow_what_is_given(tmp_path, monkeypatch, given):
  monkeypatch.setattr(dtypes, 'multiplies_bfloat16', lambda: False)
  model, told = settle(tmp_path, {'dtype': given, 'param_dtype': 'auto'})
  assert (model.dtype, model.param_dtype, told) == (given, given, [])


def test_for_other_devices_it_is_bfloat16():
  """The description alone does not know the devices: `prm_jax.aot` reads it."""
  assert ModelConfig(dtype='auto').given() == {'dtype': 'bfloat16'}
  assert ComputeConfig(dtype='auto').given() == {'dtype': 'bfloat16'}

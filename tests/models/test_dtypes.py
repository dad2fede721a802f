"""The dtype in which a model is opened, on CPUs of several kinds."""

import logging

import pytest

from prm_jax.models import dtypes
from prm_jax.runtime.sharding import flat_mesh


@pytest.fixture
def cpu(tmp_path, monkeypatch):
  """Lets a test choose the CPU's instructions and the version of jaxlib."""
  dtypes.multiplies_bfloat16.cache_clear()

  def choose(flags, version):
    info = tmp_path / 'cpuinfo'
    info.write_text(f'model name : any\nflags : fpu avx512f {flags} sse\n')
    monkeypatch.setattr(dtypes, 'CPU_INFO', info)
    monkeypatch.setattr(dtypes.jaxlib, '__version__', version)

  yield choose
  dtypes.multiplies_bfloat16.cache_clear()


@pytest.mark.parametrize(
  'flags, version, opened',
  [
    ('amx_bf16', '0.12.0.1', 'bfloat16'),
    ('avx512_bf16', '1.0.0', 'bfloat16'),
    ('amx_bf16', '0.10.2', 'float32'),
    ('avx512_bf162', '0.12.0', 'float32'),
  ],
)
def test_a_cpu_opens_bfloat16_where_it_multiplies_it(
  cpu, caplog, flags, version, opened
):
  caplog.set_level(logging.INFO)
  cpu(flags, version)
  assert dtypes.fast_dtype(flat_mesh(), 'bfloat16') == opened
  assert ('opened in float32' in caplog.text) == (opened == 'float32')
  # A run in float32 stays as it is, under its own name.
  assert not dtypes.fast_dtype(flat_mesh(), 'float32')

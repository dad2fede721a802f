"""What aot counts, by hand; the compiler itself where libtpu is installed."""

import importlib.util
import json
import subprocess
import sys

import pytest

from prm_jax import aot
from prm_jax.errors import UserError
from prm_jax.models import TransformerConfig
from prm_jax.tpu_chips import CHIPS, chip_of
from tests.command_line import ROOT

HAS_TPU_COMPILER = importlib.util.find_spec('libtpu') is not None
needs_compiler = pytest.mark.skipif(
  not HAS_TPU_COMPILER, reason="needs: pip install 'jax[tpu]'"
)


def run(*args):
  return subprocess.run(
    [sys.executable, '-m', 'prm_jax.aot', *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def test_layers_are_counted_along_a_line():
  one = aot.Count(10.0, 5.0, {'all-reduce': 1.0})
  two = aot.Count(13.0, 6.0, {'all-reduce': 1.0, 'all-gather': 4.0})
  assert aot.count_layers(one, two, 5) == aot.Count(
    22.0, 9.0, {'all-reduce': 1.0, 'all-gather': 16.0}
  )


def test_times_are_work_over_rates():
  chip = CHIPS['TPU v5 lite']
  count = aot.Count(197e12, 819e9 / 2, {'all-gather': 100e9, 'x': 100e9})
  assert count.times(chip) == {
    'compute': 1.0,
    'hbm': 0.5,
    'interconnect': 1.0,
  }


def test_useful_flops_by_hand():
  # A layer has 8 x (2 x (2 + 1) x 4 + 3 x 16) = 576 parameters.
  model = TransformerConfig(50, 8, 3, 2, 1, 16, head_dim=4)
  config = {'data': {'batch_size': 2, 'row_length': 3}}
  products, attention = aot.useful_flops('score', config, model)
  assert products == 2 * (2 * 3) * 576 * 3
  # Six pairs a row, two heads, q k and p v.
  assert attention == 2 * 6 * 2 * (2 * 2 * 4) * 3
  both = aot.useful_flops('train', config, model)
  assert both == (3 * products, 3 * attention)


def test_a_chip_without_figures_is_named():
  with pytest.raises(UserError, match=r"'TPU v1': expected .* v4, v5e"):
    chip_of('TPU v1')


def test_smaller_changes_are_in_order():
  config = {
    'model': {'remat': 'dots'},
    'train': {'microbatches': 1},
    'data': {'batch_size': 12},
  }
  changes = aot.smaller_changes(config)
  assert list(changes) == [
    '--config.model.remat=full',
    '--config.model.remat=full --config.train.microbatches=2',
    '--config.model.remat=full --config.train.microbatches=4',
  ]
  last = list(changes.values())[-1]
  assert last['model'] == {'remat': 'full'}
  assert last['train'] == {'microbatches': 4}


@needs_compiler
def test_a_tiny_config_compiles_for_four_chips(tmp_path):
  output = tmp_path / 'aot.json'
  done = run(
    '--config=configs/prm_math.py:human,tiny',
    '--topology=v5e:2x2',
    f'--output={output}',
    '--config.data.batch_size=4',
  )
  assert done.returncode == 0, done.stderr
  assert '4 x v5e (v5e:2x2)' in done.stdout
  written = json.loads(output.read_text())
  for name in ('train', 'score'):
    found = written['programs'][name]
    assert found['fits']
    assert 0 < found['mfu_at_most'] < 1
    assert found['flops'] >= found['useful_flops'] > 0
  # Parameters are gathered, gradients reduced.
  assert set(written['programs']['train']['sent_bytes']) >= {'all-gather'}


@needs_compiler
@pytest.mark.parametrize(
  ('args', 'said'),
  [
    (['--topology=v5e:7x7x7'], "topology 'v5e:7x7x7' is unknown"),
    (['--topology=v5e:2x2', '--config.mesh.model=3'], 'model=3 does not fit 4'),
    ([], '--topology is missing'),
  ],
)
def test_what_cannot_be_compiled_is_named(args, said):
  done = run('--config=configs/prm_math.py:human,tiny', *args)
  assert done.returncode == 2
  (line,) = [x for x in done.stderr.splitlines() if x.startswith('error:')]
  assert said in line


@pytest.mark.skipif(HAS_TPU_COMPILER, reason='libtpu is installed')
def test_without_the_compiler_it_says_what_to_install():
  done = run('--config=configs/prm_math.py:human,tiny', '--topology=v5e:2x2')
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith(
    "error: libtpu is missing: pip install 'jax[tpu]'"
  )

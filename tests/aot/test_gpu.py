"""Programs through XLA's compiler for GPUs, where its plugin is installed."""

import dataclasses
import json

import pytest

from prm_jax.aot import estimate, programs, rl_programs, useful_flops
from prm_jax.aot.chips import CHIPS, chip_of
from prm_jax.aot.compiler import compile_program, open_topology
from prm_jax.aot.hlo import read_program
from prm_jax.aot.work import count_work
from prm_jax.jobs.settings import read_settings
from prm_jax.runtime.determinism import has_gpu_plugin
from tests.shared.compiled_elsewhere import run_aot, small_rl
from tests.shared.configs import settings

HAS_GPU_COMPILER = has_gpu_plugin()
needs_compiler = pytest.mark.skipif(
  not HAS_GPU_COMPILER, reason="needs: pip install 'jax[cuda13]'"
)
GPUS = [chip.name for chip in CHIPS.values() if chip.gpu]


def describe_all(plan, devices, *names):
  """Compiles the programs of these names, all without; returns the reports."""
  chip = chip_of(devices[0].device_kind)
  return {
    name: estimate.describe(plan.programs[name], chip)
    for name in names or plan.programs
  }


def check(found, loops=0):
  """What is so of every program."""
  assert found['fits']
  assert found['rematerialized'] == []
  assert found['unknown_loops'] == loops
  assert found['flops'] >= found['useful_flops']
  assert 0 <= found['mfu_at_most'] <= 1 + 1e-9  # rounded


def small_prm(dtype):
  """A PRM whose rows of 128 tokens compute all their scores at once."""
  return settings(
    'prm_math',
    'human,tiny',
    **{
      'model.dtype': dtype,
      'data.batch_size': 4,
      'data.max_length': 128,
      'data.row_length': 128,
    },
  )


def again(config, name):
  """FLOPs of the logits, which the gradient of the LM loss computes again."""
  model = programs.model_of(config)
  return 2.0 * 4 * 128 * model.d_model * model.vocab_size * (name == 'train')


@needs_compiler
@pytest.mark.parametrize('count', [1, 4])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_work_of_a_prm_is_what_the_formula_counts(dtype, count):
  config, devices = small_prm(dtype), open_topology(f'h100:{count}')
  plan = programs.plan(config, devices)
  found = describe_all(plan, devices)
  for name, each in found.items():
    check(each)
    program = plan.programs[name]
    # The kernel is in the program where it computes in bfloat16. Without it,
    # scores of all pairs of tokens are computed, not only of those that count.
    attention = program.kernels[useful_flops.GPU_KERNEL]
    if dtype == 'float32':
      attention = program.attention * 128 / ((128 + 1) / 2)
    work = (program.products + again(config, name) + attention) / count
    # The head and the sums over rows are no more than this.
    assert work <= each['flops'] < 1.02 * work, name
  sent = found['train']['sent_bytes']
  # Parameters are gathered, and of the embedding the tokens' vectors alone; a
  # gradient is scattered, as is the optimizer.
  assert ({'all-gather', 'reduce-scatter'} <= sent.keys()) == (count > 1)
  assert found['score']['sent_bytes'].keys() == (
    {'all-gather', 'all-to-all'} if count > 1 else set()
  )


@needs_compiler
@pytest.mark.parametrize(
  ('gpu', 'dtype', 'fused'),
  [(gpu, 'bfloat16', True) for gpu in GPUS] + [('h100', 'float32', False)],
)
def test_the_fused_kernel_is_in_the_program(gpu, dtype, fused):
  devices = open_topology(gpu)
  plan = programs.plan(small_prm(dtype), devices)
  compiled, _ = compile_program(plan.programs['score'].lower())
  assert (useful_flops.GPU_KERNEL in compiled.as_text()) == fused


@needs_compiler
@pytest.mark.parametrize(
  ('remat', 'kernels'), [('none', 2), ('dots', 2), ('full', 3)]
)
def test_remat_of_dots_keeps_attention(remat, kernels):
  """Forward and gradient; where nothing is kept, forward again."""
  config = small_prm('bfloat16')
  config = dataclasses.replace(
    config, model=dataclasses.replace(config.model, remat=remat)
  )
  program = programs.plan(config, open_topology('h100')).programs['train']
  compiled, _ = compile_program(program.lower())
  layers = config.model.n_layers // config.model.scan_unroll
  found = compiled.as_text().count('custom_call_target="__cudnn$fmha')
  assert found in (kernels, kernels * layers)


@needs_compiler
@pytest.mark.parametrize('name', ['train', 'score'])
def test_the_work_is_the_same_with_cublas(name):
  """On a GPU the compiler may choose cuBLAS for any product."""
  devices = open_topology('h100')
  config = small_prm('bfloat16')
  program = programs.plan(config, devices).programs[name]
  compiled = program.lower().compile(
    compiler_options={'xla_gpu_enable_triton_gemm': False}
  )
  text = compiled.as_text()
  assert '__cublas$' in text and 'triton_nested_gemm' not in text
  work = count_work(read_program(text), 1)
  wanted = program.products + again(config, name)
  assert wanted <= work.flops < 1.02 * wanted
  assert work.unknown_loops == 0


@needs_compiler
@pytest.mark.parametrize('count', [1, 4])
def test_a_policy_reads_and_samples(count):
  """One token of 64 slots, by hand: weights, cache, and what is read."""
  config = settings(
    'policy_math',
    'smollm2,tiny',
    **{
      'sampling.slots': 64,
      'sampling.top_p': 0.9,
      'model.n_heads': 4,
      'model.n_kv_heads': 2,
      'model.dtype': 'bfloat16',
      'mesh.model': 1 + count // 4,
    },
  )
  devices = open_topology(f'h100:{count}')
  plan = programs.plan(config, devices)
  found = describe_all(plan, devices, 'read', 'sample')
  check(found['read'])
  check(found['sample'], loops=1)  # over tokens
  model = programs.model_of(config)
  row = 2 * config.data.max_length * model.n_kv_heads * model.head_dim * 2
  memory = found['sample']['memory_bytes']
  assert memory['cache'] == 64 * model.n_layers * row / count
  assert memory['outputs'] < memory['cache'] / 10  # written in place
  assert found['sample']['flops'] == found['sample']['useful_flops']


@needs_compiler
@pytest.mark.parametrize('count', [1, 4])
def test_all_programs_of_rl(count):
  config = small_rl('ppo', max_length=64)
  devices = open_topology(f'h100:{count}')
  plan = rl_programs.plan(read_settings(config), devices)
  found = describe_all(plan, devices)
  names = ['take', 'read', 'sample', 'resize', 'reference', 'score']
  assert [*found] == [*names, 'values', 'advantages', 'train']
  for name, each in found.items():
    check(each, loops=name == 'sample')


@needs_compiler
@pytest.mark.slow
def test_a_7b_trains_beside_4_bits_on_a_gpu_of_24_gb():
  config = settings(
    'prm_math',
    'qwen2_5_math_7b,qlora',
    **{
      'mesh.model': 1,
      'data.batch_size': 4,
      'data.shards': 1,
      'train.microbatches': 4,
    },
  )
  plan = programs.plan(config, open_topology('l4:1'))
  found = describe_all(plan, open_topology('l4:1'))
  held = found['train']['memory_bytes']
  assert held['total'] < 12e9  # half of it: also beside what loading takes
  check(found['score'])
  check(found['train'])


@needs_compiler
def test_by_command_line(tmp_path):
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny',
    '--topology=a100:2',
    f'--output={output}',
    '--config.data.batch_size=4',
    '--config.data.row_length=128',
    '--config.data.max_length=128',
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ''  # the compiler's own words are taken
  assert '2 x a100 (a100:2): replica 1, fsdp 2, model 1' in done.stdout
  written = json.loads(output.read_text())
  assert written['chip']['gpu']['capability'] == [8, 0]
  assert written['programs'].keys() == {'train', 'score'}


@needs_compiler
@pytest.mark.slow
def test_a_real_size_compiles_fits_and_may_reach_half_of_peak(tmp_path):
  """As docs/hardware.md says."""
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/prm_math.py:qwen2_5_math_1_5b',
    '--topology=h100:1',
    '--config.data.batch_size=4',
    '--config.data.shards=1',
    f'--output={output}',
  )
  assert done.returncode == 0, done.stdout + done.stderr
  for found in json.loads(output.read_text())['programs'].values():
    check(found)
    assert found['mfu_at_most'] >= 0.5


@needs_compiler
@pytest.mark.parametrize('name', ['h100:0', 'h100:x'])
def test_a_number_of_gpus_is_expected(name):
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny', f'--topology={name}'
  )
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert line == (
    f"error: topology '{name}': expected a number of GPUs, such as h100:8"
  )


def test_an_unknown_chip_is_named():
  done = run_aot('--config=configs/prm_math.py:human,tiny', '--topology=b100:8')
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert line == (
    "error: topology 'b100:8': no such chip; expected one of v5e, v5p, v6e, "
    'h100, h200, a100, l4, as in v5e:4x4 or h100:8'
  )


@pytest.mark.skipif(HAS_GPU_COMPILER, reason='the plugin is installed')
def test_without_the_compiler_it_says_what_to_install():
  done = run_aot('--config=configs/prm_math.py:human,tiny', '--topology=h100:1')
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1] == (
    "error: XLA's compiler for NVIDIA GPUs is missing: "
    "pip install 'jax[cuda13]'"
  )

"""What aot counts, by hand; the compiler itself where libtpu is installed."""

import dataclasses
import importlib.util
import json

import jax
import pytest

from configs import rl_math
from prm_jax.aot import (
  estimate,
  item_programs,
  programs,
  rl_programs,
  useful_flops,
)
from prm_jax.aot.chips import CHIPS, chip_of
from prm_jax.aot.compiler import compile_program, open_topology
from prm_jax.aot.work import Count
from prm_jax.data.shards import rows_of_processes, share_of_rows
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.settings.shared import MeshConfig
from prm_jax.models import TransformerConfig
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import batch_sharding, make_mesh
from tests.models.hub.published_architectures import PUBLISHED
from tests.shared.compiled_elsewhere import run_aot, small_rl
from tests.shared.configs import settings

HAS_TPU_COMPILER = importlib.util.find_spec('libtpu') is not None
needs_compiler = pytest.mark.skipif(
  not HAS_TPU_COMPILER, reason="needs: pip install 'jax[tpu]'"
)


def test_times_are_work_over_rates():
  chip = CHIPS['TPU v5 lite']
  count = Count(197e12, 819e9 / 2, {'all-gather': 100e9, 'all-reduce': 100e9})
  assert estimate.times(count, chip) == {
    'compute': 1.0,
    'hbm': 0.5,
    'interconnect': 1.0,
  }


def test_rates_of_tokens_count_shared_ones_once_for_each_chain():
  found = {'seconds_at_least': {'compute': 0.5, 'hbm': 2.0}}
  rates = estimate.token_rates(found, 1000, 6.0)
  assert rates == {'unique': 500.0, 'flat': 3000.0}
  assert estimate.token_rates({'fits': False}, 1000, 6.0) == {}


def test_useful_flops_by_hand():
  # A layer has 8 x (2 x (2 + 1) x 4 + 3 x 16) = 576 parameters.
  model = TransformerConfig(50, 8, 3, 2, 1, 16, head_dim=4)
  found = useful_flops.reading(model, 2, 3)
  assert found['products'] == 2 * (2 * 3) * 576 * 3
  # Six pairs a row, two heads, q k and p v.
  assert found['attention'] == 2 * 6 * 2 * (2 * 2 * 4) * 3
  # On a TPU kernels have heads of 128.
  tpu, gpu = useful_flops.TPU_KERNEL, useful_flops.GPU_KERNEL
  kernels = {tpu: 32 * found['attention'], gpu: found['attention']}
  assert found['kernels'] == kernels
  trained = useful_flops.learning(model, 2, 3)
  assert trained['products'] == 3 * found['products']
  assert trained['attention'] == 3 * found['attention']
  # Nine products for two, or eleven where forward runs again; on GPUs two less.
  assert trained['kernels'] == {
    tpu: 9 / 2 * kernels[tpu],
    gpu: 7 / 2 * kernels[gpu],
  }
  again = useful_flops.learning(dataclasses.replace(model, remat='full'), 2, 3)
  assert again['kernels'] == {
    tpu: 11 / 2 * kernels[tpu],
    gpu: 9 / 2 * kernels[gpu],
  }
  logits = useful_flops.reading(model, 2, 3, logits=True)
  assert logits['products'] - found['products'] == 2 * (2 * 3) * 8 * 50
  # Adapters: no gradient of kernels, and none of what the first layer reads.
  adapted = useful_flops.learning(model, 2, 3, frozen=True)
  first = 2 * (2 * 3) * 8 * (2 + 2 * 1) * 4
  assert adapted['products'] == 2 * found['products'] - first
  # An unrolled last layer has its products after attention where asked alone.
  assert useful_flops.reading(model, 2, 3, ends=1) == found
  unrolled = dataclasses.replace(model, scan_unroll=3)
  few = useful_flops.reading(unrolled, 2, 3, ends=1)
  after = 8 * (2 * 4 + 3 * 16)
  assert found['products'] - few['products'] == 2 * (2 * 2) * after
  assert few['attention'] == found['attention']


@pytest.mark.parametrize(
  ('variant', 'published'),
  [
    ('qwen2_5_math_7b', 'Qwen2.5-Math-PRM-7B'),
    ('llama3_8b', 'Llama-3.1-8B'),
  ],
)
def test_a_real_size_is_the_published_one(variant, published):
  ours = programs.model_of(settings('prm_math', variant))
  theirs = PUBLISHED[published][1]
  # Positions cost the same, however scaled; a PRM has no output embedding.
  same = ('rope_theta', 'rope_scaling', 'norm_eps', 'dtype', 'remat')
  same += ('tie_embeddings',) * (variant == 'qwen2_5_math_7b')
  assert (
    dataclasses.replace(ours, **{name: getattr(theirs, name) for name in same})
    == theirs
  )


def test_a_chip_without_figures_is_named():
  with pytest.raises(UserError, match=r"'TPU v1': expected .* v5e, v5p"):
    chip_of('TPU v1')


def test_smaller_changes_are_in_order():
  before = settings('prm_math', **{'mesh.model': 8, 'mesh.fsdp': 4})
  changes = list(estimate.smaller_changes(before, 'none', 12, 8))
  full = {'model.remat': 'full'}
  assert changes == [
    {'model.remat': 'dots'},
    full,
    full | {'train.microbatches': 2},
    full | {'train.microbatches': 4},
    full | {'mesh.model': 16, 'mesh.fsdp': -1},
  ]
  after = {'model.remat': 'full', 'mesh.model': 16, 'mesh.fsdp': -1}
  assert estimate.with_changes(before, changes[-1]) == (
    settings('prm_math', **after)
  )
  # The config's -1 is what is left by the other axes.
  rest = settings('prm_math', **{'mesh.model': -1, 'mesh.fsdp': 1})
  assert list(estimate.smaller_changes(rest, 'none', 12, 8)) == changes


@needs_compiler
def test_a_tiny_config_compiles_for_four_chips(tmp_path):
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny',
    '--topology=v5e:2x2',
    f'--output={output}',
    '--config.data.batch_size=4',
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ''  # the compiler's own words are taken
  assert '4 x v5e (v5e:2x2): replica 1, fsdp 4, model 1' in done.stdout
  written = json.loads(output.read_text())
  for name in ('train', 'score'):
    found = written['programs'][name]
    assert found['fits']
    assert found['rematerialized'] == []
    assert found['unknown_loops'] == 0
    assert 0 < found['mfu_at_most'] < 1
    assert found['flops'] >= found['useful_flops'] > 0
  # Parameters are gathered, gradients reduced.
  sent = written['programs']['train']['sent_bytes']
  assert sent['all-gather'] > 0
  assert sent['all-reduce'] > 0


@needs_compiler
def test_a_policy_compiles_with_its_cache():
  """One token of 64 slots, by hand: weights, cache, and what is read."""
  config = settings(
    'policy_math',
    'smollm2,tiny',
    **{
      'sampling.slots': 64,
      'sampling.top_p': 0.9,
      'model.n_heads': 4,
      'model.n_kv_heads': 2,
      'mesh.model': 2,
    },
  )
  devices = open_topology('v5e:2x2')
  program = programs.plan(config, devices).programs['sample']
  found = estimate.describe(program, chip_of(devices[0].device_kind))
  model = programs.model_of(config)
  S = config.data.max_length
  row = 2 * S * model.n_layers * model.n_kv_heads * model.head_dim * 4
  memory = found['memory_bytes']
  assert memory['cache'] == 64 * row / 4  # each device has its rows and heads
  assert memory['outputs'] < memory['cache'] / 10  # written in place
  assert found['rematerialized'] == []
  assert found['unknown_loops'] == 1  # over tokens
  assert found['largest_gather_bytes'] < memory['cache'] / 10
  assert found['flops'] >= found['useful_flops'] > 0


def test_what_lies_beside_the_programs_of_rl_by_hand():
  config = small_rl()
  config['aot']['model'] |= {'vocab_size': 100, 'd_model': 8, 'n_heads': 2}
  config['aot']['model'] |= {'n_kv_heads': 1, 'd_ff': 16}
  programs = rl_programs.plan(read_settings(config), jax.devices()[:1]).programs
  # Two embeddings; q, o and k, v; the feed-forward; biases; three norms.
  matrices = 2 * 100 * 8 + 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16
  biases, norms = 8 + 2 * 4, 3 * 8
  backbone = 4 * (matrices + biases + norms)
  reference = backbone // 2  # in bfloat16, as the PRM's
  # Two moments; three counters of the loop, two of the optimizer, a key.
  rest = 2 * backbone + 4 * 5 + 8
  prm = backbone // 2 + 4 * (8 * 2 + 2)
  written_with = 2 * matrices + 4 * (biases + norms)
  # Keys and values of a head of 4, in bfloat16. While 8 prompts are read, the
  # chains of all 16 slots are there; then both are.
  token = 2 * 4 * 2
  cache, prompts = 16 * 512 * token, 8 * 512 * token
  beside = {
    'take': rest + reference + prm,  # reads what is trained, makes the form
    'read': backbone + rest + reference + prm + cache,
    'sample': backbone + rest + reference + prm + prompts,
    'resize': backbone + rest + reference + prm + written_with + prompts,
    'reference': backbone + rest + written_with + prm,
    'score': backbone + rest + reference + written_with,
    'advantages': backbone + rest + reference + written_with + prm,
    'train': reference + written_with + prm,
  }
  assert {name: p.beside for name, p in programs.items()} == beside
  # Without a reference and a PRM there is as much less.
  config['loss']['kl_weight'], config['prm']['kind'] = 0.0, 'none'
  config['reward'] |= {'form': 'outcome'}
  alone = rl_programs.plan(read_settings(config), jax.devices()[:1]).programs
  assert alone.keys() == beside.keys() - {'reference', 'score'}
  assert alone['train'].beside == written_with
  # With a value head its view, and with staleness a copy on its way.
  config['advantage']['estimator'] = 'gae'
  config['train']['staleness'] = 1
  ppo = rl_programs.plan(read_settings(config), jax.devices()[:1]).programs
  assert 'values' in ppo
  assert ppo['train'].beside == written_with + backbone
  # An implicit PRM has moments of its own; the reference waits elsewhere.
  config['prm'] |= {'kind': 'implicit', 'dtype': ''}
  config['reward']['centre'] = 0.0
  config['reference']['offload'] = True
  prime = rl_programs.plan(read_settings(config), jax.devices()[:1]).programs
  assert prime['train'].beside == written_with + 2 * backbone + rest
  assert prime['learn_prm'].beside < prime['score'].beside


CRITIC = {'prm.kind': 'generative', 'prm.generative.path': '/critic'}


@pytest.mark.parametrize(
  ('job', 'values', 'name'),
  [
    ('rl_math:grpo', CRITIC, 'prm.kind'),
    ('search_math:beam', CRITIC, 'prm.kind'),
    ('label_math:active', {'prm.path': '/prm'}, 'select'),
  ],
)
def test_what_is_not_counted_is_refused(job, values, name):
  """Else it would say that a job fits, with a model too few."""
  file, _, variant = job.partition(':')
  known = dict(vocab_size=100, d_model=8, n_layers=1, n_heads=2, n_kv_heads=1)
  known |= {'d_ff': 16}
  given = {f'aot.model.{key}': each for key, each in known.items()} | values
  chosen = settings(file, f'{variant},tiny', **given)
  module = rl_programs if file == 'rl_math' else item_programs
  with pytest.raises(UserError, match=rf'config\.{name}=.* not compiled'):
    module.read_models(chosen)


@needs_compiler
def test_the_policy_and_its_reference_compile_apart():
  """Two chips that train and two that sample, each with what is its own."""
  config = small_rl(max_length=64)
  config['sampling']['devices'], config['train']['staleness'] = 2, 1
  devices = open_topology('v5e:2x2')
  plan = rl_programs.plan(read_settings(config), devices)
  training, sampling = (set(mesh.devices.flat) for mesh in plan.meshes)
  assert training | sampling == set(devices) and not training & sampling
  chip = chip_of(devices[0].device_kind)
  found = {
    name: estimate.describe(plan.programs[name], chip)
    for name in ('take', 'reference', 'advantages')
  }
  for name, each in found.items():
    assert each['fits'], name
    assert each['rematerialized'] == []
    assert each['flops'] >= each['useful_flops']
  assert found['reference']['useful_flops'] > 0
  # The form that writes is whole on every chip, and beside the PRM.
  assert found['take']['sent_bytes'].keys() == {'all-gather'}
  assert plan.programs['take'].beside < plan.programs['reference'].beside


@needs_compiler
def test_the_compilers_warnings_are_read():
  """Or `rematerialized` would be empty whatever the compiler had to say."""
  devices = open_topology('v5e:2x2')
  mesh = make_mesh({'replica': 1, 'fsdp': 2, 'model': 2}, devices)
  x = jax.ShapeDtypeStruct((8, 8), 'float32', sharding=batch_sharding(mesh))
  compiled, said = compile_program(jax.jit(lambda x: x @ x).lower(x))
  assert compiled is not None
  assert any('spmd_partitioner' in line for line in said)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize('variant', ['qwen2_5_math_7b', 'llama3_8b'])
def test_a_real_size_compiles_fits_and_may_reach_half_of_peak(
  variant, tmp_path
):
  output = tmp_path / 'aot.json'
  done = run_aot(
    f'--config=configs/prm_math.py:{variant}', f'--output={output}'
  )
  assert done.returncode == 0, done.stdout + done.stderr
  train = json.loads(output.read_text())['programs']['train']
  assert train['mfu_at_most'] >= 0.5
  assert train['rematerialized'] == []
  # Never all parameters at once: one matrix of this device's share of heads.
  all_parameters = 2 * 7e9
  assert train['largest_gather_bytes'] < all_parameters / 40


@needs_compiler
@pytest.mark.slow
def test_rl_by_command_line(tmp_path):
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/rl_math.py:outcome,ppo,qwen2_5_math_7b,tiny',
    '--topology=v5e:2x2',
    '--config.aot.max_length=64',
    '--config.aot.model.n_layers=1',
    '--config.loss.kl_weight=0.0',
    f'--output={output}',
  )
  assert done.returncode == 0, done.stdout + done.stderr
  written = json.loads(output.read_text())
  assert written['tokens'] == 16 * 64
  names = ['take', 'read', 'sample', 'resize', 'values', 'advantages', 'train']
  assert [*written['programs']] == names
  for name, found in written['programs'].items():
    assert found['fits'] and found['rematerialized'] == [], name
    assert found['flops'] >= found['useful_flops']


@needs_compiler
@pytest.mark.slow
def test_a_search_by_command_line(tmp_path):
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/search_math.py:beam,qwen2_5_math_7b,tiny',
    '--config.aot.max_length=256',
    '--config.mesh.model=2',
    '--config.policy.sampling.spread=True',
    f'--output={output}',
  )
  assert done.returncode == 0, done.stdout + done.stderr
  written = json.loads(output.read_text())
  found = written['programs']
  assert [*found] == ['open', 'read', 'sample', 'resize', 'score']
  for name, each in found.items():
    assert each['fits'] and each['rematerialized'] == [], name
    # One token's attention is no product in a TPU's program.
    assert each['flops'] >= each['useful_flops'] or name == 'sample', name
  slots, seconds = 32, max(found['sample']['seconds_at_least'].values())
  assert written['written_per_second_at_most'] == pytest.approx(slots / seconds)
  assert 'tokens written a second at most' in done.stdout


def test_what_lies_beside_the_programs_of_a_search_by_hand():
  """A chip holds both models, and the chains that each of them keeps."""
  config = settings('search_math', 'beam,qwen2_5_math_7b')
  mesh = {'replica': 1, 'fsdp': 1, 'model': 1}
  config = dataclasses.replace(config, mesh=MeshConfig(**mesh))
  plan = item_programs.plan(config, jax.devices()[:1])
  weights = 2 * 7_615_616_512  # parameters of Qwen2.5-7B, in bfloat16
  # 16 chains of 2,048 tokens and an empty slot: keys and values of 4 heads.
  kept = (16 * 2048 + 1) * 2 * 2 * 28 * 4 * 128
  found = {name: each.beside for name, each in plan.programs.items()}
  # While the policy is opened a leaf at a time, the PRM is there, and the rest
  # of the policy: here all but the kernels of a layer's largest product.
  largest = 2 * 28 * 3584 * 18_944
  opened = 2 * weights + kept - largest
  assert found['open'] == pytest.approx(opened, rel=1e-3)
  # A cache grows beside both models and all that they keep.
  token = 2 * 2 * 28 * 4 * 128
  cache, prompts = 32 * 2048 * token, 4096 * token
  grown = 2 * (weights + kept) + prompts
  assert found['resize'] == pytest.approx(grown, rel=1e-3)
  # Prompts are read for some slots while the others hold their chains.
  assert found['read'] == pytest.approx(weights + 2 * kept + cache, rel=1e-3)
  written = weights + 2 * kept + prompts
  assert found['sample'] == pytest.approx(written, rel=1e-3)
  assert found['score'] == pytest.approx(weights + kept, rel=1e-3)
  assert plan.programs['score'].cache == kept


@needs_compiler
@pytest.mark.slow
def test_rl_of_a_real_size_fits_and_may_reach_half_of_peak():
  config = rl_math.get_config('qwen2_5_math_7b').to_dict()
  devices = open_topology(config['aot']['topology'])
  programs = rl_programs.plan(read_settings(config), devices).programs
  chip = chip_of(devices[0].device_kind)
  for name in ('take', 'score', 'train'):
    found = estimate.describe(programs[name], chip)
    assert found['fits'] and found['rematerialized'] == [], name
    assert found['mfu_at_most'] >= 0.5 or name == 'take'


@needs_compiler
@pytest.mark.slow
def test_what_does_not_fit_is_said_with_a_cure(tmp_path):
  output = tmp_path / 'aot.json'
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny',
    '--topology=v5e:2x2',
    '--config.data.batch_size=16384',  # 36 GB on a chip of 16
    f'--output={output}',
  )
  assert done.returncode == 1, done.stdout + done.stderr
  cure = json.loads(output.read_text())['fits_with']
  assert cure.startswith('--config.model.remat=')
  assert f'train fits with {cure}' in done.stdout


@needs_compiler
@pytest.mark.parametrize(
  ('args', 'said'),
  [
    (['--topology=v5e:7x7x7'], "topology 'v5e:7x7x7' is unknown"),
    (['--topology=v5e:2x2', '--config.mesh.model=3'], 'model=3 does not fit 4'),
    ([], '--topology is missing'),
    (
      ['--config=configs/sample_math.py', '--topology=v5e:2x2'],
      'no model that is opened here, so there is nothing to compile',
    ),
    (
      ['--config=configs/rl_math.py', '--topology=v5e:2x2'],
      "config.policy.workdir='': expected the --workdir",
    ),
  ],
)
def test_what_cannot_be_compiled_is_named(args, said):
  done = run_aot('--config=configs/prm_math.py:human,tiny', *args)
  assert done.returncode == 2
  (line,) = [x for x in done.stderr.splitlines() if x.startswith('error:')]
  assert said in line


@pytest.mark.skipif(HAS_TPU_COMPILER, reason='libtpu is installed')
def test_without_the_compiler_it_says_what_to_install():
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny', '--topology=v5e:2x2'
  )
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith(
    "error: libtpu is missing: pip install 'jax[tpu]'"
  )


@needs_compiler
def test_only_replica_goes_across_slices():
  done = run_aot(
    '--config=configs/prm_math.py:human,tiny',
    '--topology=v5e:2x2',
    '--slices=2',
    '--config.data.batch_size=8',
  )
  assert done.returncode == 2
  assert 'mesh.replica=1 does not divide over 2 slices' in done.stderr
  devices = open_topology('v5e:2x2', 2)
  mesh = make_mesh({'replica': 2, 'fsdp': -1, 'model': 1}, devices)
  assert mesh.shape == {'replica': 2, 'fsdp': 4, 'model': 1}
  for slice_index, row in enumerate(mesh.devices):
    assert {device.slice_index for device in row.flat} == {slice_index}


@needs_compiler
@pytest.mark.parametrize(
  'variant',
  [
    'qwen2_5_math_1_5b',
    'qwen2_5_math_7b',
    'llama3_8b',
    'qwen2_5_72b',
  ],
)
def test_every_row_is_read_once_on_the_topology_of_a_config(variant):
  config = settings('prm_math', variant)
  devices = open_topology(config.aot.topology)
  mesh = make_mesh(dataclasses.asdict(config.mesh), devices)
  batch_size = config.data.batch_size
  rows = rows_of_processes(mesh, batch_size)
  assert set().union(*rows.values()) == set(range(batch_size))
  for shards in (config.data.shards, 0):
    saved = [
      shard
      for process in rows
      for shard in share_of_rows(rows, process, batch_size, shards).saved
    ]
    assert sorted(saved) == list(range(len(saved)))

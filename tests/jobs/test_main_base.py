"""A job that starts from a language model: trained, opened, exported."""

import json
import pathlib

import jax
import numpy as np
import pytest

import prm_jax
from prm_jax import export
from prm_jax.inference import loading
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.models import quantize_backbone
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh, path_name
from tests.shared.command_line import copy_run, run, run_all, the_error
from tests.shared.files_job import bench_records, write_job
from tests.shared.published_models import write_model

pytestmark = [pytest.mark.job, pytest.mark.slow]

CHANGE = """config.base = {base!r}
  config.model = ml_collections.ConfigDict(
    dict(dtype='float32', remat='none', scan_unroll=1)
  )
  config.data.update(tokenizer='', separator='<|eot_id|>')
  config.data.update(max_length=128, row_length=128)
  config.head.kind = 'two_class'
  config.loss.update(name='cross_entropy', lm_weight=0.0)
  {more}"""
LORA = 'config.lora.update(rank=2); config.train.head_only_steps = 1'
QUANTIZED = f"{LORA}; config.lora.quantized = 'nf4'"
BFLOAT16 = "config.model.param_dtype = 'bfloat16'"
LIKELIHOOD = 'config.head.likelihood = True'
FROZEN = (
  f'{LIKELIHOOD}; config.evaluation.wrong_share = 0.5; '
  "config.frozen.update(heads=('both', 'state', 'mlp'), seeds=2, chains=9)"
)
JOBS = ('whole', 'lora', 'quantized', 'bfloat16', 'both')
CHAINS = [(r['problem'], r['steps']) for r in bench_records()]


@pytest.fixture(scope='module')
def base(tmp_path_factory) -> pathlib.Path:
  """A small random Llama with a tokenizer of the real construction."""
  folder = tmp_path_factory.mktemp('base')
  write_model('rlhflow', folder)
  return folder


def job(folder, base, more='pass'):
  folder.mkdir()
  return write_job(folder, CHANGE.format(base=str(base), more=more))


@pytest.fixture(scope='module')
def trained(base, tmp_path_factory):
  """Name -> workdir of a finished run: JOBS, and a head with likelihood."""
  root = tmp_path_factory.mktemp('trained')
  jobs = {
    'whole': job(root / 'whole', base),
    'lora': job(root / 'lora', base, LORA),
    'quantized': job(root / 'quantized', base, QUANTIZED),
    'likelihood': job(root / 'likelihood', base, LIKELIHOOD),
    'frozen': job(root / 'frozen', base, FROZEN),
    'bfloat16': job(root / 'bfloat16', base, BFLOAT16),
    'both': job(root / 'both', base, f'{BFLOAT16}; {LORA}'),
  }
  for name, done in zip(jobs, run_all(list(jobs.values())), strict=True):
    assert done.returncode == 0, (name, done.stderr)
  return {name: root / name / 'run' for name in jobs}


def leaves(tree):
  found = jax.tree_util.tree_leaves_with_path(tree)
  return {path_name(path): np.asarray(leaf) for path, leaf in found}


def trained_params(workdir):
  described = loading.read_description(workdir)
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  checkpoints = Checkpoints(workdir / 'checkpoints', 2, '', writes=False)
  return checkpoints.load_params(
    described.abstract_params(mesh), checkpoints.latest
  )


def test_adapters_are_trained_and_the_base_is_kept(base, trained):
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  before = leaves(open_pretrained(str(base)).load(mesh))
  kept = trained_params(trained['lora'])
  after = leaves(kept['backbone'])
  assert before.keys() == after.keys()
  for name, value in before.items():
    np.testing.assert_array_equal(after[name], value)
  assert any(np.abs(x).max() > 0 for x in leaves(kept['lora']).values())
  whole = leaves(trained_params(trained['whole'])['backbone'])
  assert (whole['embed_tokens'] != before['embed_tokens']).any()


def test_adapters_beside_kernels_in_4_bits(base, trained):
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  before = open_pretrained(str(base)).load(mesh)
  stored = jax.jit(quantize_backbone, static_argnums=1)(before, 'nf4')
  kept = trained_params(trained['quantized'])
  jax.tree.map(np.testing.assert_array_equal, kept['backbone'], stored)
  assert any(np.abs(x).max() > 0 for x in leaves(kept['lora']).values())
  opened = loading.load(trained['quantized']).params['backbone']
  assert leaves(opened).keys() == leaves(before).keys()


def test_a_base_in_bfloat16(base, trained):
  """Adapters leave it as it was read; its own training moves it."""
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  before = leaves(open_pretrained(str(base)).load(mesh, dtype='bfloat16'))
  for name in ('both', 'bfloat16'):
    params = trained_params(trained[name])
    after = leaves(params['backbone'])
    assert {x.dtype.name for x in after.values()} == {'bfloat16'}
    assert params['head']['kernel'].dtype == 'float32'
    same = [(after[at] == x).all() for at, x in before.items()]
    assert all(same) if name == 'both' else not all(same)


@pytest.mark.parametrize('name', [*JOBS, 'likelihood', 'frozen'])
def test_a_run_opens_without_its_base(trained, name, tmp_path):
  """model.json and tokenizer.json are all that is needed, anywhere."""
  moved = tmp_path / 'moved'
  (trained[name]).rename(moved)
  try:
    scores = prm_jax.load(moved).score_many(CHAINS)
  finally:
    moved.rename(trained[name])
  shown = [
    json.loads(line)
    for line in (trained[name] / 'chains.jsonl').read_text().splitlines()
  ]
  by_problem = {p: s for (p, _), s in zip(CHAINS, scores, strict=True)}
  for record in shown:
    apart = by_problem[record['problem']] - np.array(record['scores'])
    assert np.abs(apart).max() < 1e-4  # written with four digits


@pytest.mark.parametrize('name', JOBS)
def test_an_export_opens_with_the_scores_of_the_run(trained, name, tmp_path):
  """Its own separator and prompt, not those of the layout it went out in."""
  to = tmp_path / 'out'
  export.export(str(trained[name]), to, 'token_classification')
  expected = prm_jax.load(trained[name]).score_many(CHAINS)
  found = prm_jax.load(to).score_many(CHAINS)
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  (to / 'prm_jax_format.json').unlink()
  other = prm_jax.load(to).score_many(CHAINS)
  assert max(abs(a - b).max() for a, b in zip(other, expected, strict=True)) > (
    1e-3
  )


def test_a_head_with_likelihood_is_trained_and_not_exported(trained, tmp_path):
  workdir = trained['likelihood']
  after = leaves(trained_params(workdir)['head'])
  assert after['likelihood_kernel'].shape == (2, 2)
  # Both weights moved.
  assert (after['likelihood_kernel'][:, 0] != [-0.5, -0.05]).all()
  assert np.abs(after['kernel']).min() > 0
  with pytest.raises(UserError, match='reads more than hidden states'):
    export.export(str(workdir), tmp_path / 'out', 'token_classification')
  assert not (tmp_path / 'out').exists()


def test_heads_alone_are_fitted_on_a_base_that_stays(base, trained):
  workdir = trained['frozen']
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  before = leaves(open_pretrained(str(base)).load(mesh))
  params = trained_params(workdir)
  for name, value in leaves(params['backbone']).items():
    np.testing.assert_array_equal(value, before[name])
  assert np.abs(params['head']['kernel']).max() > 0
  document = json.loads((workdir / 'results.json').read_text())
  heads = document['results']['heads']
  assert heads['dev'].keys() == {'untrained', 'both', 'state', 'mlp'}
  assert [len(x['seeds']) for x in heads['dev'].values()] == [1, 2, 2, 2]
  source = document['manifest']['threshold']['source']
  assert source == "each set's own, flagging 50% of its chains"


def test_a_job_with_frozen_heads_reads_no_chain_twice(trained):
  """A run that lost its results makes them again, from what it has read."""
  workdir = trained['frozen']
  before = (workdir / 'results.json').read_text()
  (workdir / 'results.json').unlink()
  config = workdir.parent / 'job.py'
  done = run(f'--config={config}', f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  assert 'features of' not in done.stdout
  again = json.loads((workdir / 'results.json').read_text())
  assert again['results'] == json.loads(before)['results']


def test_other_heads_are_fitted_on_what_was_read(base, trained, tmp_path):
  """In a workdir of their own, after a command whose window fits no step."""
  own = 'config.evaluation.max_problems = 3'
  kept = trained['frozen'] / 'features'
  shared = f'{FROZEN}; config.frozen.features = {str(kept)!r}; {own}'
  short, new = f'{own}; config.data.max_length = 2', 'config.frozen.decay = 1.0'
  heads = "config.frozen.heads = ('state',)"
  calls = [
    job(tmp_path / 'short', base, f'{FROZEN}; {short}'),
    job(tmp_path / 'new', base, f'{shared}; {heads}; {new}'),
  ]
  refused, done = run_all(calls)
  assert 'no chain to train on: of 9 chains 9 are too long' in (
    the_error(refused)
  )
  assert not (tmp_path / 'short/run/config.json').exists()  # not claimed
  assert done.returncode == 0, done.stderr
  assert 'features of' not in done.stdout
  assert not (tmp_path / 'new/run/features').exists()
  results = json.loads((tmp_path / 'new/run/results.json').read_text())
  assert results['results']['heads']['dev'].keys() == {'untrained', 'state'}


def test_a_job_with_frozen_heads_finds_damage_and_faults(trained, tmp_path):
  """A damaged checkpoint, and a loss of counts before anything is read."""
  workdir = copy_run(trained['frozen'], tmp_path / 'run')
  (workdir / 'results.json').unlink()
  (checkpoint,) = (p for p in (workdir / 'checkpoints').iterdir() if p.is_dir())
  largest = max(checkpoint.rglob('*'), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  config = f'--config={trained["frozen"].parent / "job.py"}'
  counts = '--config.loss.name=beta_binomial'
  damaged, wrong = run_all(
    [
      (config, f'--workdir={workdir}'),
      (config, counts, f'--workdir={tmp_path / "counts"}'),
    ]
  )
  assert f'checkpoint {checkpoint} is damaged' in the_error(damaged)
  assert 'beta_binomial' in the_error(wrong)
  assert not (tmp_path / 'counts/config.json').exists()
  assert 'features of' not in wrong.stdout


def test_training_goes_on_from_the_head_of_a_run(base, trained, tmp_path):
  """At a rate of 0 it scores as the run does."""
  still = (
    "config.optim.lr = 0.0; config.head.kind = 'two_class'; "
    f'{LIKELIHOOD}; config.keep_head = True'
  )
  jobs = {
    'same': (trained['frozen'], still),
    'other': (trained['frozen'], f'{still}; config.head.hidden = 3'),
    'elsewhere': (
      trained['frozen'],
      f"{still}; config.data.separator = '<|begin_of_text|>'",
    ),
    'none': (base, still),
  }
  calls = [
    job(tmp_path / name, given, more) for name, (given, more) in jobs.items()
  ]
  same, *refused = run_all(calls)
  assert same.returncode == 0, same.stderr
  scores, expected = (
    prm_jax.load(path).score_many(CHAINS)
    for path in (tmp_path / 'same/run', trained['frozen'])
  )
  for ours, theirs in zip(scores, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  other, elsewhere, none = map(the_error, refused)
  assert 'trained with other settings; add --config.head.hidden=0, or' in other
  assert "add '--config.data.separator=<|eot_id|>', or" in elsewhere
  assert 'has no head; name the workdir of a PRM' in none


def test_a_run_as_the_base_of_another(finished, tmp_path):
  """Its weights, tokenizer and sizes; the head is a new one."""
  config = '--config=configs/prm_math.py:from_run,tiny'
  flags = (f'--config.base={finished}', '--config.orm_baseline=False')
  # At a rate of 0 nothing moves.
  still = ('--config.optim.lr=0.0', f'--workdir={tmp_path / "still"}')
  done, refused = run_all(
    [
      (config, *flags, *still),
      (config, f'--workdir={tmp_path / "none"}'),
    ]
  )
  assert done.returncode == 0, done.stderr
  assert "config.model.d_model=None: base='' leaves it open; set" in the_error(
    refused
  )
  before, after = (
    loading.load(workdir) for workdir in (finished, tmp_path / 'still')
  )
  assert after.model == before.model
  assert after.format.fingerprint() == before.format.fingerprint()
  for name, leaf in leaves(before.params['backbone']).items():
    assert (leaves(after.params['backbone'])[name] == leaf).all(), name
  head = leaves(before.params['head'])['kernel']
  assert (leaves(after.params['head'])['kernel'] != head).any()


REFUSED = {
  "config.data.separator = '<none>'": "no token '<none>'",
  "config.data.tokenizer = 'bytes'": 'brings its own; set it',
  'config.data.update(max_length=9999, row_length=9999)': (
    'reads at most 1024 tokens; lower it'
  ),
  'config.model.d_model = 8': 'model.d_model=8: base=',
  'config.train.head_only_steps = 6': 'expected less than steps=6',
  "config.base = ''": "model.d_model=None: base='' leaves it open",
}


def test_configs_that_do_not_fit_the_base(base, tmp_path):
  jobs = [
    job(tmp_path / str(i), base, change) for i, change in enumerate(REFUSED)
  ]
  for refused, said in zip(run_all(jobs), REFUSED.values(), strict=True):
    assert said in the_error(refused)


def test_another_tokenizer_on_resume(base, tmp_path):
  """New ids would mean something else to the old parameters."""
  arguments = job(tmp_path / 'job', base)
  done = run(*arguments)
  assert done.returncode == 0, done.stderr
  changed = tmp_path / 'job' / 'run' / 'tokenizer.json'
  tokenizer = json.loads(changed.read_text())
  vocab = tokenizer['model']['vocab']
  vocab['a'], vocab['b'] = vocab['b'], vocab['a']
  changed.write_text(json.dumps(tokenizer))
  assert 'begun with another tokenizer' in the_error(run(*arguments))

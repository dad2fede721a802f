"""The policy job from the command line: trained, resumed, opened, exported."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import prm_jax
from prm_jax import export
from prm_jax.data.datasets import load_dataset
from prm_jax.evals import policy as policy_evaluation
from prm_jax.inference.loading import (
  load_policy,
  open_checkpoint,
  read_description,
)
from prm_jax.inference.protocols import Request
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs.settings import read_settings
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from tests.shared.command_line import (
  SMALL_POLICY,
  copy_run,
  run_all,
  the_error,
)
from tests.shared.files_job import write_lines
from tests.shared.published_models import write_model
from tests.shared.saved_runs import load_state, read_metrics, saved_steps

pytestmark = pytest.mark.job

TINY = '--config=configs/policy_math.py:tiny'
# Refused before anything is made.
REFUSED = {
  'train.best_metric=eval/auc': 'best_metric=.eval/auc.: expected one of '
  'eval/log_likelihood',
  'data.end=x': "data.end='x': the tokenizer 'arithmetic' has its own",
  'sampling.slots=0': 'sampling.slots=0: expected >= 1',
  'sampling.top_p=0.0': r'sampling.top_p=0.0: expected a number in \(0, 1\]',
  'evaluation.samples=2': 'evaluation.samples=2: expected at least the 4',
  'evaluation.ns=(2, 1)': 'evaluation.ns=.*: expected ascending',
  'lora.rank=2': 'config.lora.rank=2: adapters need a trained backbone',
  'task=prm': "config.task='prm': .* has no sampling; take configs/prm_math.py",
}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """The small run, and every command line that is refused."""
  folder = tmp_path_factory.mktemp('policy')
  command_lines = {
    'trained': [*SMALL_POLICY, f'--workdir={folder / "trained"}']
  }
  command_lines |= {
    name: [TINY, f'--config.{name}', f'--workdir={folder / str(i)}']
    for i, name in enumerate(REFUSED)
  }
  command_lines['slots'] = [
    TINY,
    '--config.cpu_devices=3',
    '--config.data.batch_size=9',
    f'--workdir={folder / "slots"}',
  ]
  command_lines['lora'] = [
    '--config=configs/policy_math.py:lora',
    f'--workdir={folder / "lora"}',
  ]
  command_lines['completion'] = [
    '--config=configs/prm_math.py:tiny',
    '--config.targets.supervision=completion',
    f'--workdir={folder / "completion"}',
  ]
  command_lines['task'] = [
    '--config=configs/prm_math.py:tiny',
    '--config.task=policy',
    f'--workdir={folder / "task"}',
  ]
  finished = dict(
    zip(command_lines, run_all(list(command_lines.values())), strict=True)
  )
  return folder, finished


@pytest.fixture(scope='module')
def trained(runs):
  folder, finished = runs
  assert finished['trained'].returncode == 0, finished['trained'].stderr
  return folder / 'trained'


def results_of(workdir):
  return json.loads((workdir / 'results.json').read_text())


@pytest.mark.parametrize('name', REFUSED)
def test_a_value_is_refused_before_data_is_made(runs, name):
  refused = runs[1][name]
  assert re.search(REFUSED[name], the_error(refused))
  assert not refused.stdout


def test_other_refused_commands(runs):
  _, finished = runs
  assert re.search(
    'sampling.slots=8 .* = 3 devices', the_error(finished['slots'])
  )
  assert 'lora needs a base before it' in the_error(finished['lora'])
  refused = the_error(finished['completion'])
  assert 'expected process or outcome; configs/policy_math.py' in refused
  refused = the_error(finished['task'])
  assert (
    "config.task='policy': a config of this task has no frozen, head, "
    in refused
  )


def test_it_learns_to_end_its_chains(trained):
  results = results_of(trained)['results']
  found = results['sampling']['arithmetic']['policy']
  # Of 32 chains; one token in 110 is the end.
  assert found['finished'] > 0.8
  lines = read_metrics(trained)
  rated = [
    x['eval/log_likelihood'] for x in lines if 'eval/log_likelihood' in x
  ]
  assert len(rated) == 3
  assert results['dev']['log_likelihood'] == pytest.approx(max(rated), abs=1e-6)
  assert max(rated) > -1.0  # at random -log 110 = -4.7


def test_no_policy_beats_the_solver_on_its_own_chains_by_much(trained):
  """By chance it can: dev has 16 chains of a few results."""
  dev = results_of(trained)['results']['dev']
  assert dev['log_likelihood'] < dev['solver_log_likelihood'] + 0.1
  assert dev['solver_log_likelihood'] < 0


def test_results_say_what_they_were_made_with(trained):
  manifest = results_of(trained)['manifest']
  assert manifest['name'] == 'Policy on modular arithmetic (tiny)'
  assert manifest['sampled_tokens'] > 0
  assert manifest['encoding_fingerprint'] == (
    read_description(trained).format.fingerprint()
  )


def test_it_is_opened_and_writes_what_it_wrote(trained):
  settings = read_settings(json.loads((trained / 'config.json').read_text()))
  seed = settings.seed
  policy = load_policy(trained, settings.sampling, seed=seed)
  data = load_dataset(settings.data, seed, trained, lambda _: None)
  problems, truths = policy_evaluation.known_answers(
    'test', data.evaluations['arithmetic']
  )
  completions = policy_evaluation.complete(policy, problems, 4)
  section = policy_evaluation.sampling_section(
    problems, truths, completions, (1, 2, 4), seed, 200
  )
  written = results_of(trained)['results']['sampling']['arithmetic']['policy']
  assert section == written


def test_a_policy_s_name_says_which_it_is(trained, tmp_path):
  sampling = SamplingConfig(slots=4, max_tokens=8)
  moved = copy_run(trained, tmp_path / 'moved')
  here = load_policy(trained, sampling).name
  assert load_policy(moved, sampling).name == here
  names = {load_policy(moved, sampling, step=s).name for s in (50, 100, 150)}
  assert here in names and len(names) == 3
  assert load_policy(moved, sampling, seed=1).name != here


def test_resumed_equals_uninterrupted(trained, tmp_path):
  """From an earlier checkpoint on: everything, bit for bit, samples too."""
  again = copy_run(trained, tmp_path / 'again')
  assert saved_steps(again) == [50, 100, 150]
  for step in ('100', '150'):
    shutil.rmtree(again / 'checkpoints' / step)
  (again / 'results.json').unlink()
  (done,) = run_all([[*SMALL_POLICY, f'--workdir={again}']])
  assert done.returncode == 0, done.stderr
  assert 'policy: resuming from step 50' in done.stdout
  ours, theirs = load_state(again), load_state(trained)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
  told = [
    [
      {k: v for k, v in line.items() if not k.endswith('tokens_per_second')}
      for line in x
    ]
    for x in (read_metrics(again), read_metrics(trained))
  ]
  assert told[0] == told[1]
  assert results_of(again)['results'] == results_of(trained)['results']


def test_the_wrong_kind_is_told(trained, finished, tmp_path):
  sampling = SamplingConfig()
  with pytest.raises(UserError, match='holds a policy, which scores nothing'):
    prm_jax.load(trained)
  with pytest.raises(UserError, match='a reward model, which writes nothing'):
    load_policy(finished, sampling)
  with pytest.raises(UserError, match=r'holds no model\.json'):
    load_policy(tmp_path, sampling)
  with pytest.raises(UserError, match='has no head; use --layout lm'):
    export.export(str(trained), tmp_path / 'out', 'token_classification')
  with pytest.raises(UserError, match='no checkpoint of step 7: expected'):
    load_policy(trained, sampling, step=7)


def test_it_goes_out_as_a_language_model(trained, tmp_path):
  export.export(str(trained), tmp_path / 'out', 'lm')
  config, longest = read_architecture(tmp_path / 'out')
  assert longest == 15
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  read_back = load_backbone(TensorFiles(tmp_path / 'out'), config, mesh)
  params, _, _ = open_checkpoint(trained, read_description(trained))
  assert params.keys() == {'backbone'}
  jax.tree.map(np.testing.assert_array_equal, read_back, params['backbone'])
  stops = json.loads((tmp_path / 'out' / 'generation_config.json').read_text())
  assert stops == {'eos_token_id': read_description(trained).format.end}


CONFIG = """
base = {{}}
exec(open('configs/policy_math.py').read(), base)


def get_config(arg=''):
  config = base['get_config']('smollm2,lora')
  config.unlock()
  config.base = {base!r}
  config.model.dtype = 'float32'
  config.lora.rank = 2
  config.data.update(root={root!r}, separator={separator!r}, end={end!r})
  config.data.update(dev_share=0.3, decontaminate=(), on_error='quarantine')
  config.data.update(max_length=128, row_length=128, batch_size=2)
  config.train.update(steps=2, checkpoint_every=1)
  config.sampling.update(slots=2, max_tokens=4)
  config.evaluation.update(samples=2, ns=(1, 2), max_problems=2)
  return config.lock()
"""


@pytest.mark.slow
def test_worked_answers_and_a_pretrained_base(tmp_path):
  """Adapters over a Llama whose tokenizer has separator and end."""
  base, root = tmp_path / 'base', tmp_path / 'data'
  write_model('rlhflow', base)
  (root / 'gsm8k').mkdir(parents=True)
  for name, first, count in (('train', 0, 24), ('test', 50, 4)):
    write_lines(
      root / 'gsm8k' / f'{name}.jsonl',
      [
        {
          'question': f'{i} and 1?',
          'answer': f'{i}+1=<<x>>{i + 1}\n#### {i + 1}',
        }
        for i in range(first, first + count)
      ],
    )
  values = dict(base=str(base), root=str(root), separator='<|eot_id|>')
  jobs = {}
  for name, end in (
    ('job', '<|end_header_id|>'),
    ('none', ''),
    ('same', '<|eot_id|>'),
  ):
    path = tmp_path / f'{name}.py'
    path.write_text(CONFIG.format(end=end, **values))
    jobs[name] = [f'--config={path}', f'--workdir={tmp_path / name}']
  done, none, same = run_all(list(jobs.values()))
  assert "data.end='': a policy ends its chains" in the_error(none)
  assert 'is data.separator, too; choose another' in the_error(same)
  assert done.returncode == 0, done.stderr
  results = results_of(tmp_path / 'job')['results']
  assert results['sampling']['gsm8k']['policy']['samples'] == 2
  assert results['dev'].keys() == {'log_likelihood'}
  policy = load_policy(tmp_path / 'job', SamplingConfig(slots=2, max_tokens=4))
  ((one,),) = policy.complete([Request('1 and 1?', (), key='', samples=1)])
  assert 1 <= one.tokens <= 4
  assert -100 < one.logprob < 0

"""What a person can get wrong at the command line: one line each, exit code 2.

Most go through `run_all`, forks of one process that has the package imported;
a few through `python -m prm_jax.main` itself. Faults of data files are in
`test_main_files.py`, of checkpoints in `test_checkpoints.py`.
"""

import json
import re
import signal
import time

import pytest

import prm_jax
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import (
  LONG,
  SMALL,
  TINY,
  contents,
  copy_run,
  run,
  run_all,
  start,
  the_error,
)

pytestmark = pytest.mark.job

HUMAN = '--config=configs/prm_math.py:human,tiny'
NO_CONFIG = 'module .* has no attribute .get_config.*see the config file'

# name -> (arguments; {tmp} is a folder of the test, what the line has to say).
# A workdir of its own is added where none is given.
BEFORE_PARSING = {
  'no config': (['{work}'], '--config is missing.*configs/prm_math.py'),
  'no such config': (['--config=nope.py', '{work}'], "No such file.*'nope.py'"),
  'config is a folder': (['--config=configs', '{work}'], 'directory.*FILE.py'),
  'config is nothing': (['--config=', '{work}'], 'empty string.*FILE.py'),
  'empty config': (['--config={tmp}/empty.py', '{work}'], NO_CONFIG),
  'config without get_config': (['--config={tmp}/x.py', '{work}'], NO_CONFIG),
  'config of another type': (
    ['--config={tmp}/dict.py', '{work}'],
    '--config: get_config .* returned a dict; expected a ConfigDict',
  ),
  'config without return': (
    ['--config={tmp}/none.py', '{work}'],
    '--config: get_config .* returned a NoneType; .*return config.lock',
  ),
  'syntax error': (['--config={tmp}/syntax.py', '{work}'], 'syntax.py:2: '),
  'unknown variant': (
    ['--config=configs/prm_math.py:tyni', '{work}'],
    "unknown variant 'tyni'.*expected orm, logic, code, words, .*, tiny",
  ),
  'misspelt value': (
    [TINY, '--config.optim.lrr=1', '{work}'],
    r"config\.optim\.lrr='1': there is no 'lrr' there; did you mean lr\?",
  ),
  'misspelt section': (
    [TINY, '--config.optm.lr=1', '{work}'],
    r"config\.optm\.lr='1': there is no 'optm' there; did you mean optim\?",
  ),
  'text for a number': (
    [TINY, '--config.optim.lr=abc', '{work}'],
    r"config\.optim\.lr='abc': expected a number",
  ),
  'fraction for a whole number': (
    [TINY, '--config.train.steps=2.5', '{work}'],
    r"config\.train\.steps='2\.5': expected a whole number",
  ),
  'value for a section': (
    [TINY, '--config.optim=3', '{work}'],
    r"config\.optim='3': expected a value of this section",
  ),
  'index into a tuple': (
    [TINY, '--config.evaluation.ns[0]=1', '{work}'],
    r'evaluation.ns\[0\]',
  ),
  'misspelt flag': (
    [TINY, '--wrokdir=x', '{work}'],
    "'wrokdir'. Did you mean: workdir",
  ),
  'override before the config': (
    ['--config.optim.lr=1', TINY, '{work}'],
    'before a value for --config',
  ),
  'loose argument': ([TINY, 'extra', '{work}'], "unknown argument 'extra'"),
  'no workdir': ([TINY], '--workdir is missing'),
  'workdir is nothing': ([TINY, '--workdir='], '--workdir is missing'),
  'workdir without value': ([TINY, '--workdir'], 'Missing value.*--workdir'),
  'workdir is a file': (
    [TINY, '--workdir={tmp}/file'],
    'workdir .*/file: File exists; choose one that can be written',
  ),
  'workdir below a file': (
    [TINY, '--workdir={tmp}/file/run'],
    'workdir .*/file/run: Not a directory; choose one',
  ),
  # Where not even root may make a folder.
  'workdir not writable': (
    [TINY, '--workdir=/proc/prm_jax'],
    'workdir /proc/prm_jax: .*; choose one that can be written',
  ),
  'corrupt config.json': (
    [TINY, '--workdir={tmp}/corrupt'],
    'corrupt/config.json is no JSON .* delete it, and the command of its job',
  ),
  'config.json of something else': (
    [TINY, '--workdir={tmp}/foreign'],
    'foreign/config.json holds a JSON .*; else choose another --workdir',
  ),
  'heads over too many devices': (
    [TINY, '--config.cpu_devices=4', '--config.mesh.model=4', '{work}'],
    'model.n_heads=2 does not divide over mesh.model=4 .* one of 1, 2',
  ),
  'batch over an odd number of devices': (
    [TINY, '--config.cpu_devices=3', '{work}'],
    'batch_size=8 does not divide .* fsdp = 3 devices; make it a multiple of 3',
  ),
  'files without a root': ([HUMAN, '{work}'], 'data.root=DIR.*PRM_JAX_DATA'),
  'root that is not there': (
    [HUMAN, '--config.data.root={tmp}/nowhere', '{work}'],
    'nowhere/.*cannot be read .No such file',
  ),
}
# Overrides that a config takes and a run refuses, before it makes any data.
REFUSED = {
  'task=swim': "config.task='swim': expected one of prm",
  'task=policy': "config.task='policy': .* no frozen, head, .*policy_math",
  'seed=-1': 'seed=-1',
  'mesh.model=3': 'mesh .*model=3 does not fit 1 devices; set --config.mesh',
  'mesh.model=0': 'mesh .*model=0 does not fit 1 devices',
  'loss.name=cross_entropy': 'cross_entropy.*head.kind=.logit.*two_class',
  'loss.name=bec': "loss.name='bec': expected one of bce, ",
  'head.kind=foo': "head.kind='foo': expected one of logit, ",
  'data.tokenizer=gpt': "tokenizer 'gpt': expected one of bytes, arithmetic",
  'data.kind=foo': "data.kind='foo': expected one of arithmetic, logic, code",
  'data.row_length=10': 'data.row_length=10: is shorter than max_length=46',
  'data.batch_size=0': 'data.batch_size=0: expected >= 1',
  'data.max_steps_per_row=0': 'max_steps_per_row=0: expected >= 1',
  'model.remat=foo': "model.remat='foo': expected one of",
  'model.param_dtype=foo': "model.param_dtype='foo': expected one of",
  'model.n_kv_heads=3': 'model.n_kv_heads=3 must divide',
  'optim.schedule=foo': "optim.schedule='foo': expected one of constant, ",
  'optim.name=foo': "optim.name='foo': expected one of adamw, adafactor",
  'optim.moments=foo': "optim.moments='foo': expected one of float32, ",
  'optim.clip=inf': 'config holds inf or nan',
  'targets.supervision=foo': "supervision='foo': expected one of process, ",
  'targets.hard_above=nan': 'targets.hard_above=nan: expected a number',
  'targets.neutral=foo': "targets.neutral='foo': expected one of good, ",
  'train.steps=0': 'train.steps=0: expected >= 1',
  'train.checkpoint_every=0': 'train.checkpoint_every=0: expected >= 1',
  'train.keep=0': 'train.keep=0: expected >= 1',
  'train.best_metric=eval/acu': 'best_metric=.eval/acu.: expected .*eval/auc',
  'train.microbatches=3': 'batch_size=8 .* 3 microbatches .* multiple of 3',
  'profile.steps=3': 'profile.first_step=0: .* train.steps=6; 2 is',
  'profile.steps=-1': 'profile.steps=-1: expected >= 0',
  'evaluation.aggregate=foo': "evaluation.aggregate='foo': .*aggregates: min",
  'evaluation.aggregates=foo': r"aggregates=\('foo',\): expected one of min",
  'evaluation.best_of_n=foo': "best_of_n='foo': expected one of arithmetic",
  'evaluation.ns=0': 'evaluation.ns=.*: expected >= 1',
}


@pytest.fixture(scope='module')
def faults(tmp_path_factory):
  """Runs them all: name -> (finished process, its workdir's files)."""
  tmp = tmp_path_factory.mktemp('faults')
  (tmp / 'empty.py').write_text('')
  (tmp / 'x.py').write_text('x = 1\n')
  (tmp / 'syntax.py').write_text('x = 1\ndef get_config(:\n')
  (tmp / 'dict.py').write_text('def get_config(_=""):\n  return {}\n')
  (tmp / 'none.py').write_text('def get_config(_=""):\n  pass\n')
  (tmp / 'file').write_text('mine')
  for name, text in (('corrupt', '{"task": '), ('foreign', '[1, 2]')):
    (tmp / name).mkdir()
    (tmp / name / 'config.json').write_text(text)
  before = contents(tmp)
  cases = {name: arguments for name, (arguments, _) in BEFORE_PARSING.items()}
  cases |= {name: [*SMALL, f'--config.{name}', '{work}'] for name in REFUSED}
  workdirs = {name: tmp / f'work{i}' for i, name in enumerate(cases)}
  ran = run_all(
    [
      [a.format(tmp=tmp, work=f'--workdir={workdirs[name]}') for a in arguments]
      for name, arguments in cases.items()
    ]
  )
  assert contents(tmp) == before  # no file was made, changed or removed
  return dict(zip(cases, ran, strict=True))


@pytest.mark.parametrize('name', BEFORE_PARSING)
def test_a_fault_in_the_command(faults, name):
  assert re.search(BEFORE_PARSING[name][1], the_error(faults[name]))


@pytest.mark.parametrize('name', REFUSED)
def test_a_value_is_refused_before_data_is_made(faults, name):
  assert re.search(REFUSED[name], the_error(faults[name]))
  assert not faults[name].stdout


@pytest.mark.parametrize(
  'faults',
  [
    {
      'sead=-1': "'-1': there is no 'sead' there; did you mean seed?",
      'train.stepz=0': "'0': there is no 'stepz' there; did you mean steps?",
      'optim.lr=abc': "'abc': expected a number",
    },
    {
      'seed=-1': '-1: expected >= 0',
      'train.steps=0': '0: expected >= 1',
      'optim.name=sgd': "'sgd': expected one of adamw, adafactor",
      'data.arithmetic.slip=2.0': '2.0: expected a number in [0, 1]',
    },
  ],
  ids=['misspelt', 'impossible'],
)
def test_each_of_several_faults_gets_a_line(tmp_path, faults):
  flags = [f'--config.{fault}' for fault in faults]
  (refused,) = run_all([[*SMALL, *flags, f'--workdir={tmp_path / "run"}']])
  assert refused.returncode == 2
  assert sorted(refused.stderr.strip().splitlines()) == sorted(
    f'error: config.{fault.partition("=")[0]}={expected}'
    for fault, expected in faults.items()
  )
  assert not refused.stdout
  assert not (tmp_path / 'run').exists()


def test_a_batch_that_does_not_divide_over_devices(tmp_path):
  (refused,) = run_all(
    [[*SMALL, '--config.cpu_devices=3', f'--workdir={tmp_path}']]
  )
  assert 'replica x fsdp = 3 devices; make it a multiple of 3' in the_error(
    refused
  )


def test_really_from_the_command_line(tmp_path):
  """That the forks above behave as the command does."""
  line = the_error(run(TINY, '--config.optim.lrr=1', f'--workdir={tmp_path}'))
  assert "config.optim.lrr='1': there is no 'lrr' there" in line
  line = the_error(run(TINY, '--config.optim.lr=abc', f'--workdir={tmp_path}'))
  assert "config.optim.lr='abc': expected a number" in line
  line = the_error(run())
  assert line.startswith('error: --config is missing')
  assert not list(tmp_path.iterdir())


def test_the_workdir_of_another_config_is_left_alone(finished, tmp_path):
  workdir = copy_run(finished, tmp_path / 'run')
  before = contents(workdir)
  line = the_error(
    run(
      *LONG,
      '--config.optim.lr=0.5',
      '--config.train.keep=3',
      f'--workdir={workdir}',
    )
  )
  assert f'{workdir} belongs to another config' in line
  assert '(differs in optim.lr, train.keep)' in line
  assert contents(workdir) == before


def test_a_second_job_in_the_same_workdir_is_refused(tmp_path):
  command = (*LONG, f'--workdir={tmp_path}')
  first = start(*command)
  try:
    end = time.monotonic() + 120
    while not (tmp_path / 'config.json').exists():
      assert first.poll() is None and time.monotonic() < end
      time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    line = the_error(run(*command))
  finally:
    first.kill()
    first.communicate()
  assert line == (
    f'error: workdir {tmp_path}: a job that is running writes there; stop that '
    'one, or wait for its end'
  )


@pytest.mark.slow
def test_a_fault_leaves_the_workdir_free_for_the_corrected_command(tmp_path):
  command = (*SMALL, f'--workdir={tmp_path}')
  wrong, right = run_all([[*command, '--config.model.remat=foo'], command])
  assert 'model.remat' in the_error(wrong)
  assert right.returncode == 0, right.stderr
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['model']['remat'] == 'none'


def test_no_usable_chain_is_told_with_the_census(tmp_path):
  (refused,) = run_all(
    [[*SMALL, '--config.data.max_length=4', f'--workdir={tmp_path}']]
  )
  assert 'of 128 chains 128 are too long' in the_error(refused)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_help_names_the_flags():
  told = run('--help')
  assert told.returncode == 0
  assert not told.stderr
  for flag, meaning in (
    ('--config:', 'a file of configs/'),
    ('--workdir:', 'Folder for checkpoints'),
    ('--config.optim.lr=1e-4', 'Any value of the config can be set'),
  ):
    assert flag in told.stdout
    assert meaning in told.stdout


@pytest.fixture
def broken_workdirs(finished, tmp_path):
  """Folders that hold no trained model, and what has to be said of them."""
  good = json.loads((finished / 'model.json').read_text())
  described = {
    'corrupt': '{"data"',
    'list': '[]',
    'other': json.dumps({'format': {}}),
    'newer': json.dumps(good | {'head': {'kind': 'logit', 'bias': 1}}),
    'unlike': json.dumps(good | {'model': good['model'] | {'dtype': 'f'}}),
    'listed': json.dumps(good | {'format': []}),
    'untrained': json.dumps(good),
    'emptied': json.dumps(good),
  }
  for name, text in described.items():
    (tmp_path / name).mkdir()
    (tmp_path / name / 'model.json').write_text(text)
  (tmp_path / 'emptied' / 'checkpoints').mkdir()
  (tmp_path / 'older' / 'checkpoints').mkdir(parents=True)
  (tmp_path / 'older' / 'config.json').write_text('{}')
  (tmp_path / 'nothing').mkdir()
  (tmp_path / 'file').write_text('')
  return tmp_path


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('nowhere', 'holds neither the model.json .* name a folder'),
    ('nothing', 'holds neither the model.json .* name a folder'),
    ('file', 'holds neither the model.json .* name a folder'),
    ('corrupt', 'model.json is no JSON'),
    ('list', 'model.json holds a JSON list'),
    ('other', 'does not describe a model of this version'),
    ('newer', 'does not describe a model of this version'),
    ('unlike', r'does not describe a model .*dtype.*expected one of'),
    ('listed', 'does not describe a model of this version'),
    ('older', 'of an earlier version: train again'),
    ('untrained', 'checkpoints does not exist; train first'),
    ('emptied', 'holds no checkpoint yet; train first'),
  ],
)
def test_load_names_what_is_missing(broken_workdirs, name, said):
  before = contents(broken_workdirs)
  with pytest.raises(UserError, match=said) as raised:
    prm_jax.load(broken_workdirs / name)
  assert str(broken_workdirs / name) in str(raised.value)
  assert '\n' not in str(raised.value)
  assert contents(broken_workdirs) == before


PARTIAL = """
import ml_collections


def get_config():
  return ml_collections.ConfigDict(
    dict(
      task='sample',
      samples=2,
      problems=dict(train_problems=8, dev_problems=8, test_problems=0),
    )
  )
"""


def test_a_config_of_some_keys_runs_again_and_again(tmp_path):
  """What it does not say has its default, in config.json too."""
  (tmp_path / 'mine.py').write_text(PARTIAL)
  arguments = [f'--config={tmp_path}/mine.py', f'--workdir={tmp_path}/run']
  for says in ('8 of 8 to do', 'all is done'):
    (done,) = run_all([arguments])
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert config['seed'] == 0 and config['problems']['kind'] == 'arithmetic'

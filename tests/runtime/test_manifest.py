"""The manifest says how to repeat a run; config.json guards a workdir."""

import json
import pathlib
import shlex
import subprocess
import sys

import jax
import pytest

from configs import label_math, search_math
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError


def test_describe(monkeypatch):
  arguments = ['--config', 'configs/a b.py:tiny', '--config.seed=3']
  monkeypatch.setattr(sys, 'argv', ['main.py', *arguments])
  about = manifest.describe({'seed': 3})
  command = shlex.split(about['command'])
  assert command == ['python', '-m', 'prm_jax.main', *arguments]
  assert about['seeds'] == {'seed': 3}
  assert about['versions']['jax'] == jax.__version__
  python = f'{sys.version_info.major}.{sys.version_info.minor}.'
  assert about['versions']['python'].startswith(python)
  assert about['devices'].startswith(f'{jax.device_count()} x ')
  json.dumps(about, allow_nan=False)


def test_git_commit_is_this_checkout():
  here = pathlib.Path(manifest.__file__).parent
  head = subprocess.run(
    ['git', 'rev-parse', 'HEAD'],
    cwd=here,
    capture_output=True,
    text=True,
    check=False,
  )
  if head.returncode:
    assert manifest.git_commit() is None
  else:
    commit = manifest.git_commit().removesuffix('+')
    # A tag may stand before the commit: v0.1-3-gabcdef.
    assert head.stdout.startswith(commit.rpartition('-g')[2][:12])


def test_write_json_is_all_or_nothing(tmp_path):
  path = tmp_path / 'results.json'
  manifest.write_json(path, {'a': [1, 2]})
  with pytest.raises(ValueError, match='not JSON compliant'):
    manifest.write_json(path, {'a': float('nan')})
  assert json.loads(path.read_text()) == {'a': [1, 2]}
  assert [p.name for p in tmp_path.iterdir()] == ['results.json']


@pytest.mark.parametrize(
  ('ours', 'theirs', 'names'),
  [
    ({'a': 1, 'b': {'c': 2}}, {'b': {'c': 2}, 'a': 1}, []),
    ({'a': 1, 'b': {'c': 2}}, {'a': 0, 'b': {'c': 3}}, ['a', 'b.c']),
    ({'a': 1}, {'a': 1, 'b': {'c': 2}}, ['b']),
    ({'a': {'b': 1}}, {'a': 1}, ['a']),
    ({'a': [1, 2]}, {'a': [1, 3]}, ['a']),
    ({'a': {'b': {'c': None}}}, {'a': {'b': {'c': 0.0}}}, ['a.b.c']),
  ],
)
def test_differences(ours, theirs, names):
  assert manifest.differences(ours, theirs) == names


def test_a_job_may_go_on_faster_and_at_another_server(tmp_path):
  config = label_math.get_config('rollouts').to_dict()
  manifest.claim_workdir(tmp_path, config, 'abc')
  endpoint = config['policy']['endpoint']
  changes = {'base_url': 'http://b/v1', 'timeout': 1.0, 'attempts': 9}
  policy = config['policy'] | {'endpoint': endpoint | changes, 'cache': '/c'}
  faster = {'concurrent': 64, 'price': {'tokens': 1.0}, 'policy': policy}
  manifest.claim_workdir(tmp_path, config | faster, 'abc')
  for name, value in (('model', 'm'), ('temperature', 0.0)):
    other = config['policy'] | {'endpoint': endpoint | {name: value}}
    with pytest.raises(UserError, match=rf'policy\.endpoint\.{name}\)'):
      manifest.check_workdir(tmp_path, config | {'policy': other})
  # A name that only begins like one of them is another.
  with pytest.raises(UserError, match='concurrently'):
    manifest.check_workdir(tmp_path, config | {'concurrently': 1})


def test_every_value_that_may_change_is_one_of_a_config():
  def has(config, name):
    for part in name.split('.'):
      if part not in config:
        return False
      config = config[part]
    return True

  configs = [math.get_config().to_dict() for math in (label_math, search_math)]
  gone = {'policy.endpoint.backoff', 'policy.endpoint.max_wait'}
  for name in manifest.FREE:
    assert any(has(config, name) for config in configs) != (name in gone), name


def test_a_workdir_takes_one_config_again_and_again(tmp_path):
  workdir = tmp_path / 'a' / 'run'
  config = {'seed': 0, 'optim': {'lr': 0.1}, 'ns': (1, 2)}
  for _ in range(2):
    manifest.claim_workdir(workdir, config, 'abc')
  assert json.loads((workdir / 'config.json').read_text()) == {
    'seed': 0,
    'optim': {'lr': 0.1},
    'ns': [1, 2],
  }
  before = (workdir / 'config.json').read_text()
  with pytest.raises(UserError, match=r'another config .* optim\.lr\)'):
    manifest.claim_workdir(workdir, config | {'optim': {'lr': 0.2}}, 'abc')
  with pytest.raises(UserError, match='begun with other data'):
    manifest.claim_workdir(workdir, config, 'abd')
  assert (workdir / 'config.json').read_text() == before
  manifest.claim_workdir(workdir, config, 'abc')


def test_checking_leaves_a_workdir_free(tmp_path):
  manifest.check_workdir(tmp_path, {'seed': 0})
  manifest.check_workdir(tmp_path, {'seed': 1})
  assert not list(tmp_path.iterdir())


def test_workdirs_that_cannot_be_claimed(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='choose one that can be written'):
    manifest.check_workdir(tmp_path / 'file', {})
  for damaged in ('{"seed": ', '[]', ''):
    (tmp_path / 'config.json').write_text(damaged)
    with pytest.raises(UserError, match=r'config\.json .*; if the workdir'):
      manifest.check_workdir(tmp_path, {})


@pytest.mark.parametrize('value', [float('inf'), float('nan')])
def test_a_config_that_json_cannot_keep(tmp_path, value):
  with pytest.raises(UserError, match='config holds inf or nan'):
    manifest.check_workdir(tmp_path / 'run', {'optim': {'clip': value}})
  assert not (tmp_path / 'run').exists()

"""config.json and data.json guard a workdir."""

import dataclasses
import json

import pytest

from prm_jax.jobs.settings.critics import GenerativeConfig
from prm_jax.runtime import workdir as workdir_lib
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from tests.shared import configs


def claim(path, config, fingerprint, defaults=None):
  """Opens a workdir and claims it, as a job does."""
  Workdir.open(path, config, defaults or {}).claim(fingerprint)


def check(path, config):
  Workdir.open(path, config, {})


def test_write_json_is_all_or_nothing(tmp_path):
  path = tmp_path / 'results.json'
  workdir_lib.write_json(path, {'a': [1, 2]})
  with pytest.raises(ValueError, match='not JSON compliant'):
    workdir_lib.write_json(path, {'a': float('nan')})
  assert json.loads(path.read_text()) == {'a': [1, 2]}
  assert [p.name for p in tmp_path.iterdir()] == ['results.json']


def test_results_that_a_second_start_finds_again_are_kept(tmp_path):
  """And with them the manifest of the start that trained."""
  workdir = Workdir(tmp_path, {})
  path = tmp_path / 'results.json'
  workdir.write_results({'wall_seconds': 600.0}, {'f1': 0.5, 'ns': (1, 2)})
  first = path.read_bytes()
  workdir.write_results({'wall_seconds': 3.0}, {'f1': 0.5, 'ns': (1, 2)})
  assert path.read_bytes() == first
  workdir.write_results({'wall_seconds': 3.0}, {'f1': 0.6, 'ns': (1, 2)})
  assert json.loads(path.read_text()) == {
    'manifest': {'wall_seconds': 3.0},
    'results': {'f1': 0.6, 'ns': [1, 2]},
  }


@pytest.mark.parametrize(
  'text', ['', '[]', '{"results": {"f1": 0.5}}', '{"manifest": {}}']
)
def test_results_that_are_broken_are_written_again(tmp_path, text):
  path = tmp_path / 'results.json'
  path.write_text(text)
  Workdir(tmp_path, {}).write_results({'seed': 0}, {'f1': 0.5})
  written = {'manifest': {'seed': 0}, 'results': {'f1': 0.5}}
  assert json.loads(path.read_text()) == written


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
  assert workdir_lib.differences(ours, theirs) == names


def test_a_job_may_go_on_faster_and_at_another_server(tmp_path):
  config = configs.raw('label_math', 'rollouts')
  claim(tmp_path, config, 'abc')
  endpoint = config['policy']['endpoint']
  changes = {'base_url': 'http://b/v1', 'timeout': 1.0, 'attempts': 9}
  policy = config['policy'] | {'endpoint': endpoint | changes, 'cache': '/c'}
  faster = {'concurrent': 64, 'price': {'tokens': 1.0}, 'policy': policy}
  claim(tmp_path, config | faster, 'abc')
  for name, value in (('model', 'm'), ('temperature', 0.0)):
    other = config['policy'] | {'endpoint': endpoint | {name: value}}
    with pytest.raises(UserError, match=rf'policy\.endpoint\.{name}\)'):
      check(tmp_path, config | {'policy': other})
  search = configs.raw('search_math', **{'prm.kind': 'endpoint'})
  claim(tmp_path / 'search', search, 'abc')
  server = dict(base_url='http://b/v1', concurrency=2, chains=4, attempts=1)
  endpoint = search['prm']['endpoint'] | server
  prm = search['prm'] | {'endpoint': endpoint}
  claim(tmp_path / 'search', search | {'prm': prm}, 'abc')
  other = search['prm'] | {'endpoint': endpoint | {'separator': '|'}}
  with pytest.raises(UserError, match=r'prm\.endpoint\.separator\)'):
    check(tmp_path / 'search', search | {'prm': other})
  # A name that only begins like one of them is another.
  with pytest.raises(UserError, match='concurrently'):
    check(tmp_path, config | {'concurrently': 1})


def test_every_value_that_may_change_is_one_of_a_config():
  def has(config, name):
    for part in name.split('.'):
      if part not in config:
        return False
      config = config[part]
    return True

  files = ('label_math', 'search_math', 'prm_math')
  every = [configs.raw(file) for file in files]
  gone = {'policy.endpoint.backoff', 'policy.endpoint.max_wait'}
  for name in workdir_lib.MAY_CHANGE:
    assert any(has(config, name) for config in every) != (name in gone), name


def test_a_critic_stays_the_same_where_a_job_may_be_resumed():
  identity = GenerativeConfig().identity
  prefix = 'prm.generative.'
  names = [
    name.removeprefix(prefix)
    for name in workdir_lib.MAY_CHANGE
    if name.startswith(prefix)
  ]
  assert len(names) == 10
  for name in names:
    section, _, field = name.rpartition('.')
    if not section:
      changed = GenerativeConfig(**{field: '/other'})
    else:
      values = getattr(GenerativeConfig(), section)
      old = getattr(values, field)
      new = f'{old}2' if isinstance(old, str) else old + 1
      values = dataclasses.replace(values, **{field: new})
      changed = GenerativeConfig(**{section: values})
    assert changed != GenerativeConfig(), name
    assert changed.identity == identity, name


def test_a_workdir_takes_one_config_again_and_again(tmp_path):
  workdir = tmp_path / 'a' / 'run'
  config = {'seed': 0, 'optim': {'lr': 0.1}, 'ns': (1, 2)}
  for _ in range(2):
    claim(workdir, config, 'abc')
  assert json.loads((workdir / 'config.json').read_text()) == {
    'seed': 0,
    'optim': {'lr': 0.1},
    'ns': [1, 2],
  }
  before = (workdir / 'config.json').read_text()
  with pytest.raises(UserError, match=r'another config .* optim\.lr\)'):
    claim(workdir, config | {'optim': {'lr': 0.2}}, 'abc')
  with pytest.raises(UserError, match='begun with other data'):
    claim(workdir, config, 'abd')
  assert (workdir / 'config.json').read_text() == before
  claim(workdir, config, 'abc')


def test_checking_leaves_a_workdir_free(tmp_path):
  check(tmp_path, {'seed': 0})
  check(tmp_path, {'seed': 1})
  assert not list(tmp_path.iterdir())


def test_workdirs_that_cannot_be_claimed(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='choose one that can be written'):
    check(tmp_path / 'file', {})
  for damaged in ('{"seed": ', '[]', ''):
    (tmp_path / 'config.json').write_text(damaged)
    with pytest.raises(UserError, match=r'config\.json .*; if the workdir'):
      check(tmp_path, {})


@pytest.mark.parametrize('name', ['lr[1e-3]', 'a\\b'])
def test_names_in_which_checkpoints_would_be_lost_are_refused(tmp_path, name):
  """Orbax looks for their parts by a pattern made of the path."""
  for path in (tmp_path / name, tmp_path / name / 'run'):
    with pytest.raises(UserError, match='cannot be read again; take another'):
      Workdir.open(str(path), {}, {})
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('value', [float('inf'), float('nan')])
def test_a_config_that_json_cannot_keep(tmp_path, value):
  with pytest.raises(UserError, match='config holds inf or nan'):
    check(tmp_path / 'run', {'optim': {'clip': value}})
  assert not (tmp_path / 'run').exists()


def test_a_key_that_an_earlier_version_did_not_write_has_its_default(tmp_path):
  before = {'seed': 0, 'data': {'kind': 'words'}}
  claim(tmp_path, before, 'abc')
  rest = {'shards': 0, 'kinds': ('a', 'b')}  # JSON makes a list of a tuple
  defaults = {'seed': 0, 'data': {'kind': 'arithmetic', **rest}}
  now = {'seed': 0, 'data': {'kind': 'words', **rest}}
  claim(tmp_path, now, 'abc', defaults)
  other = now | {'data': now['data'] | {'shards': 4}}
  with pytest.raises(UserError, match=r'differs in data\.shards\)'):
    claim(tmp_path, other, 'abc', defaults)

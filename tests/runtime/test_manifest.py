"""The manifest says how to repeat a run."""

import json
import pathlib
import shlex
import shutil
import subprocess
import sys

import jax

from prm_jax.runtime import manifest


def test_describe(monkeypatch):
  arguments = ['--config', 'configs/a b.py:tiny', '--config.seed=3']
  monkeypatch.setattr(sys, 'argv', ['main.py', *arguments])
  about = manifest.describe(3)
  command = shlex.split(about['command'])
  assert command == ['python', '-m', 'prm_jax.main', *arguments]
  assert about['seeds'] == {'seed': 3}
  assert about['versions']['jax'] == jax.__version__
  python = f'{sys.version_info.major}.{sys.version_info.minor}.'
  assert about['versions']['python'].startswith(python)
  assert about['devices'].startswith(f'{jax.device_count()} x ')
  json.dumps(about, allow_nan=False)


def test_a_checkout_on_the_path_has_no_version():
  assert manifest.version_of('jax') == jax.__version__
  assert manifest.version_of('no_such_package') == 'not installed'


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
    short = commit.rpartition('-g')[2][:12]
    assert len(short) >= 7 and head.stdout.startswith(short)


def test_the_commit_of_another_repository_is_not_named(tmp_path, monkeypatch):
  """The package may be installed in a folder of its user's own repository."""
  installed = tmp_path / '.venv' / 'manifest.py'
  installed.parent.mkdir()
  shutil.copy(manifest.__file__, installed)
  (tmp_path / '.gitignore').write_text('.venv')
  author = ('-c', 'user.name=a', '-c', 'user.email=a@example.com')
  for command in (
    ('init',),
    ('add', '.gitignore'),
    (*author, 'commit', '--message=first'),
  ):
    subprocess.run(['git', *command], cwd=tmp_path, check=True)
  monkeypatch.setattr(manifest, '__file__', str(installed))
  assert manifest.git_commit() is None
  # Unless the repository has the package in it.
  subprocess.run(['git', 'add', '--force', installed], cwd=tmp_path, check=True)
  assert manifest.git_commit().endswith('+')

"""The archive for machines without network: cut, joined, installed, checked.

The packages are made up; what pip collects for a real machine needs network.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from experiments.accelerator.lacking import lacking
from tests.shared.command_line import ROOT

pytestmark = pytest.mark.slow

FOLDER = ROOT / 'experiments' / 'accelerator'
OLD = 'old; python_version < "3"'
PARTS = ['weights.00', 'weights.01', 'weights.02', 'wheels.00', 'wheels.01']


def run(script, *arguments):
  return subprocess.run(
    [FOLDER / script, *map(str, arguments)],
    capture_output=True,
    text=True,
    check=False,
    env=os.environ | {'PYTHONPATH': ''},
  )


def unpack(parts, target, *arguments):
  return run('unpack.sh', parts, target, *arguments, '--python', sys.executable)


def make_wheel(folder, name, size, version='1.0', needs=''):
  """Writes a wheel with one module, whose SIZE is `size`, and random data."""
  about = f'{name}-{version}.dist-info'
  metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
  files = {
    f'{name}.py': f'SIZE = {size}\n'.encode(),
    f'{name}.bin': os.urandom(size),
    f'{about}/METADATA': (metadata + needs).encode(),
    f'{about}/WHEEL': b'Wheel-Version: 1.0\nRoot-Is-Purelib: true\n'
    b'Tag: py3-none-any\n',
  }
  record = f'{about}/RECORD'
  rows = [f'{record},,\n']
  for path, data in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    rows.append(f'{path},sha256={digest.rstrip("=")},{len(data)}\n')
  files[record] = ''.join(rows).encode()
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{name}-{version}-py3-none-any.whl'
  with zipfile.ZipFile(path, 'w') as wheel:
    for inner, data in files.items():
      wheel.writestr(inner, data)


@pytest.fixture(scope='module')
def packed(tmp_path_factory):
  """Folder with two packages and made-up weights, cut into parts of 1 MB."""
  folder = tmp_path_factory.mktemp('packed')
  make_wheel(folder / 'wheels', 'made_up', 1_500_000)
  needs = 'Requires-Dist: numpy>=999\nRequires-Dist: made_up>=1.0\n'
  make_wheel(folder / 'wheels', 'too_new', 10, needs=needs)
  make_wheel(folder / 'weights', 'made_up_weights', 2_500_000)
  done = run('cut.sh', folder, 1)
  assert done.returncode == 0, done.stderr
  return folder


@pytest.fixture(scope='module')
def installed(packed, tmp_path_factory):
  """Where the packages were installed, and what unpack.sh said."""
  target = tmp_path_factory.mktemp('installed')
  return target, unpack(packed / 'parts', target)


def environment(line):
  """The environment that the last line of unpack.sh asks for."""
  key, value = line.removeprefix('export ').split('=', 1)
  return os.environ | {key: value}


def test_parts_are_of_the_size_asked_and_equal_when_cut_again(packed):
  parts = packed / 'parts'
  found = {path.name: path.read_bytes() for path in parts.iterdir()}
  assert sorted(found) == ['SHA256SUMS', *PARTS]
  assert len(found['wheels.00']) == len(found['weights.01']) == 2**20
  assert all(len(data) <= 2**20 for data in found.values())
  assert run('cut.sh', packed, 1).returncode == 0
  assert found == {path.name: path.read_bytes() for path in parts.iterdir()}


def test_what_is_unpacked_is_found_with_the_line_printed(installed):
  target, done = installed
  assert done.returncode == 0, done.stderr
  *said, line = done.stdout.splitlines()
  assert said == ['wheels: installed', 'weights: installed']
  code = (
    'import importlib.metadata, made_up, made_up_weights, prm_jax.runtime\n'
    'print(made_up.SIZE, made_up_weights.SIZE, prm_jax.runtime.__file__)\n'
    'print(importlib.metadata.version("prm_jax"))'
  )
  answer = subprocess.run(
    [sys.executable, '-c', code],
    cwd=target,
    env=environment(line),
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()
  source = str(ROOT / 'prm_jax' / 'runtime' / '__init__.py')
  assert answer[:3] == ['1500000', '2500000', source]
  version = re.search(
    r'^version = "(.*)"$', (ROOT / 'pyproject.toml').read_text(), re.MULTILINE
  )
  assert answer[3] == version[1]
  data = target / 'weights' / 'made_up_weights.bin'
  assert data.stat().st_size == 2_500_000


def test_a_package_that_does_not_fit_the_machine_is_named(installed):
  warnings = installed[1].stderr.splitlines()
  [warning] = [each for each in warnings if 'numpy' in each]
  assert warning.startswith('warning: too-new 1.0 has requirement numpy>=999')
  assert not any('made_up' in each for each in warnings)


def test_a_second_time_changes_nothing(packed, installed):
  target, first = installed
  before = {path: path.stat().st_mtime_ns for path in target.rglob('*.bin')}
  again = unpack(packed / 'parts', target)
  assert again.returncode == 0
  assert again.stdout == first.stdout.replace('installed', 'already there', 2)
  assert again.stderr == first.stderr
  assert before == {p: p.stat().st_mtime_ns for p in target.rglob('*.bin')}


def test_another_archive_takes_the_place_of_the_first(installed, tmp_path):
  folder, target = tmp_path / 'packed', tmp_path / 'target'
  shutil.copytree(installed[0], target)
  # An installation that was killed left this.
  (target / 'wheels.new' / 'site').mkdir(parents=True)
  (target / 'wheels.new' / 'site' / 'half.py').touch()
  (folder / 'weights').mkdir(parents=True)
  make_wheel(folder / 'wheels', 'newer', 10)
  assert run('cut.sh', folder, 1).returncode == 0
  done = unpack(folder / 'parts', target, 'wheels')
  assert done.stdout.startswith('wheels: installed\nexport ')
  assert sorted(path.name for path in target.iterdir()) == ['weights', 'wheels']
  modules = sorted(path.name for path in target.rglob('*.py'))
  assert modules == ['made_up_weights.py', 'newer.py']


def test_missing_and_damaged_parts_are_named_in_one_line(packed, tmp_path):
  parts = tmp_path / 'parts'
  shutil.copytree(packed / 'parts', parts)
  for name in ('weights.01', 'weights.02'):
    (parts / name).unlink()
  damaged = bytearray((parts / 'weights.00').read_bytes())
  damaged[500_000] ^= 1
  (parts / 'weights.00').write_bytes(damaged)
  done = unpack(parts, tmp_path / 'target')
  assert done.returncode == 1
  assert done.stderr == (
    f'error: {parts}: missing: weights.01 weights.02. damaged: weights.00.'
    ' Bring these parts again\n'
  )
  assert not list((tmp_path / 'target').iterdir())


def test_a_folder_of_the_user_is_left_alone(packed):
  done = unpack(packed / 'parts', packed)
  assert done.returncode == 1
  assert 'not made by unpack.sh; name another TARGET' in done.stderr
  assert len(list((packed / 'wheels').iterdir())) == 2


@pytest.mark.parametrize('script', ['pack.sh', 'cut.sh', 'unpack.sh'])
def test_help_says_how_to_call_it(script):
  done = run(script, '--help')
  assert done.returncode == 0
  assert done.stdout.startswith(f'usage: {script} ')


@pytest.mark.parametrize(
  ('arguments', 'fault'),
  [
    (['pack.sh'], 'the folder OUT is missing'),
    (['pack.sh', FOLDER], 'exists and is not empty'),
    (['pack.sh', 'new', '--has', 'nothing'], '--has nothing: no such file'),
    (['pack.sh', 'new', '--part-size', '0'], '--part-size 0: expected a whole'),
    (['pack.sh', 'new', '--python', 'false'], '--python false does not run'),
    (['pack.sh', 'new', '--fast'], 'unknown option --fast'),
    (['cut.sh', 'nothing', '55'], 'nothing/wheels: no such folder'),
    (['unpack.sh', 'nothing'], 'the folders PARTS and TARGET are expected'),
    (['unpack.sh', 'nothing', 'new'], 'nothing/SHA256SUMS: no such file'),
  ],
)
def test_a_fault_of_the_user_is_one_line(arguments, fault):
  done = run(*arguments)
  assert done.returncode == 1
  assert done.stderr.startswith('error: ')
  assert fault in done.stderr
  assert done.stderr.count('\n') == 1


def test_the_image_is_described_as_pip_lists_it():
  lines = (FOLDER / 'image.txt').read_text().splitlines()
  packages = [line for line in lines if not line.startswith('#')]
  names = [package.split('==')[0] for package in packages]
  assert len(set(names)) == len(names)
  assert all(re.fullmatch(r'[a-z0-9-]+(==[\d.]+\w*)?', p) for p in packages)
  assert {'jax==0.11.2', 'torch==2.11.0'} < set(packages)


def package(name, *needs, requested=False):
  metadata = {'name': name, 'version': '2.0', 'requires_dist': list(needs)}
  return {'metadata': metadata, 'requested': requested}


def test_only_what_the_machine_lacks_for_us_is_brought():
  report = {
    'install': [
      package('data_set', 'Torch', 'Paths[remote]', OLD, requested=True),
      package('torch', 'cuda'),
      package('cuda'),
      package('paths', 'plain-need', 'remote_need; extra == "remote"'),
      package('plain_need'),
      package('Remote.Need', 'cycle'),
      package('cycle', 'remote-need'),
    ]
  }
  names = ['torch', 'paths', 'unrelated']
  assert lacking(report, names) == [
    'cycle==2.0',
    'data-set==2.0',
    'remote-need==2.0',
  ]
  everything = {line.split('==')[0] for line in lacking(report, [])}
  assert everything == {'torch', 'cuda', 'paths', 'plain-need'} | {
    *('data-set', 'remote-need', 'cycle')
  }
  assert lacking(report, ['data_set']) == []

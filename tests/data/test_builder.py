"""Tests that chains are read back exactly, or that errors say why not."""

import dataclasses
import subprocess
import sys
import tempfile

import grain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data import builder
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.runtime.errors import UserError
from tests.data.chain_strategies import any_chain

FULL = Chain(
  'Prøblem \U0001f600\n',
  ('first', ' \x00second\x00', 'third'),
  answer='',
  outcome=False,
  labels=(
    StepLabel(0.1, 'rollout', 1, 10, False),
    StepLabel(None, 'judge'),
    StepLabel(1.0, neutral=True),
  ),
  meta={'id': 'a/1', 'deep': [{'é': None}, 1.5, True]},
)
BARE = Chain('p', ('s',))
CHAINS = [FULL, BARE, dataclasses.replace(BARE, outcome=True, answer='7')]


def test_splits_are_read_back_in_order(tmp_path):
  builder.build(tmp_path, 'set', {'train': CHAINS * 20, 'test': CHAINS[::-1]})
  train = builder.load(tmp_path, 'set', 'train')
  test = builder.load(tmp_path, 'set', 'test')
  assert list(train) == CHAINS * 20
  assert list(test) == CHAINS[::-1]
  assert (len(train), train[-1], train[1]) == (60, CHAINS[2], BARE)
  with pytest.raises(IndexError):
    train[60]
  assert train.fingerprint == builder.fingerprint(CHAINS * 20)
  assert train.fingerprint in repr(train)


@settings(max_examples=25, deadline=None)
@given(st.lists(any_chain(), min_size=1, max_size=5))
def test_any_chain_is_read_back_exactly(chains):
  with tempfile.TemporaryDirectory() as folder:
    builder.build(folder, 'set', {'train': chains})
    assert list(builder.load(folder, 'set', 'train')) == chains


def test_grain_reads_a_split(tmp_path):
  builder.build(tmp_path, 'set', {'train': CHAINS})
  source = builder.load(tmp_path, 'set', 'train')
  dataset = grain.MapDataset.source(source).map(lambda chain: chain.problem)
  assert list(dataset) == [chain.problem for chain in CHAINS]


def test_the_same_chains_are_not_built_again(tmp_path):
  digest = builder.build(tmp_path, 'set', {'train': CHAINS})
  files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
  assert builder.build(tmp_path, 'set', {'train': list(CHAINS)}) == digest
  assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')} == files
  for splits in ({'train': CHAINS[::-1]}, {'test': CHAINS}):
    with pytest.raises(
      UserError,
      match=f'holds other chains.*not.*{digest}|fingerprint {digest}, not ',
    ):
      builder.build(tmp_path, 'set', splits)
  assert list(builder.load(tmp_path, 'set', 'train')) == CHAINS


class Interrupted(list):
  """Raises KeyboardInterrupt when its last chain is read the second time.

  `build` reads the chains once for the fingerprint and once to write them.
  """

  reads = 0

  def __iter__(self):
    self.reads += 1
    for i in range(len(self)):
      if self.reads == 2 and i == len(self) - 1:
        raise KeyboardInterrupt
      yield self[i]


def test_an_interrupted_build_leaves_nothing_that_loads(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    builder.build(tmp_path, 'set', {'train': Interrupted(CHAINS)})
  with pytest.raises(UserError, match='no such dataset; run the job'):
    builder.load(tmp_path, 'set', 'train')
  assert not [path for path in tmp_path.rglob('*') if path.is_file()]
  builder.build(tmp_path, 'set', {'train': CHAINS})
  assert list(builder.load(tmp_path, 'set', 'train')) == CHAINS


def test_a_killed_build_leaves_nothing_that_loads(tmp_path):
  code = f"""
import os
from prm_jax.data.chains import Chain
from prm_jax.data import builder
class Killed(list):
  reads = 0
  def __iter__(self):
    self.reads += 1
    for i in range(len(self)):
      if self.reads == 2 and i == 1:
        os._exit(9)
      yield self[i]
chains = Killed([Chain('p', ('s',))] * 2)
builder.build({str(tmp_path)!r}, 'set', {{'train': chains}})
"""
  done = subprocess.run([sys.executable, '-c', code], check=False)
  assert done.returncode == 9
  assert list(tmp_path.rglob('incomplete*'))
  with pytest.raises(UserError, match='no such dataset'):
    builder.load(tmp_path, 'set', 'train')
  builder.build(tmp_path, 'set', {'train': CHAINS})
  assert list(builder.load(tmp_path, 'set', 'train')) == CHAINS


def test_tensorflow_is_not_imported_and_the_console_stays_clean(tmp_path):
  code = f"""
import sys
from prm_jax.data.chains import Chain
from prm_jax.data import builder
builder.build({str(tmp_path)!r}, 'set', {{'train': [Chain('p', ('s',))]}})
assert builder.load({str(tmp_path)!r}, 'set', 'train')[0].problem == 'p'
print([name for name in sys.modules if name.split('.')[0] == 'tensorflow'])
"""
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert (done.stdout, done.stderr) == ('[]\n', '')


def test_the_fingerprint_depends_on_every_field_and_the_order():
  seen = {builder.fingerprint([FULL])}
  changes = {
    'problem': 'q',
    'steps': ('first', 'second', 'third'),
    'answer': None,
    'outcome': None,
    'labels': (),
    'meta': {},
  }
  assert changes.keys() == {f.name for f in dataclasses.fields(Chain)}
  for name, value in changes.items():
    changed = dataclasses.replace(FULL, **{name: value})
    seen.add(builder.fingerprint([changed]))
  label_changes = {
    'value': 1.0,
    'source': 'human',
    'successes': 2,
    'trials': 11,
    'neutral': True,
  }
  fields = {f.name for f in dataclasses.fields(StepLabel)}
  assert label_changes.keys() == fields
  for name, value in label_changes.items():
    # A neutral label is 1, and differs from the one of 1 that is not neutral.
    change = {'value': 1.0} if name == 'neutral' else {}
    label = dataclasses.replace(FULL.labels[0], **change | {name: value})
    changed = dataclasses.replace(FULL, labels=(label, *FULL.labels[1:]))
    seen.add(builder.fingerprint([changed]))
  assert len(seen) == 1 + len(changes) + len(label_changes)
  assert all(len(digest) == 16 for digest in seen)
  assert builder.fingerprint([FULL, BARE]) != builder.fingerprint([BARE, FULL])


def with_meta(**meta):
  return dataclasses.replace(BARE, meta=meta)


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (with_meta(x=(1, 2)), r"chain 1 \('p'\).*JSON types only"),
    (with_meta(x=float('nan')), 'Out of range float'),
    (with_meta(id='i', x={1}), r"chain 1 \('i'\).*not JSON serializable"),
    (dataclasses.replace(BARE, problem='\ud800'), 'surrogates not allowed'),
    (
      dataclasses.replace(BARE, labels=(StepLabel(0.5, 'rollout', 1, 2**63),)),
      'not 64-bit integers',
    ),
  ],
)
def test_chains_that_cannot_be_written_are_rejected(tmp_path, bad, message):
  with pytest.raises(UserError, match=message):
    builder.build(tmp_path, 'set', {'train': [FULL, bad]})
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('name', 'splits', 'message'),
  [
    ('a-b', {'train': CHAINS}, "dataset name 'a-b'"),
    ('../x', {'train': CHAINS}, "dataset name '../x'"),
    ('set', {'all': CHAINS}, "split name 'all'"),
    ('set', {'a b': CHAINS}, "split name 'a b'"),
    ('set', {'train': CHAINS, 'test': []}, "split 'test' has no chains"),
    ('set', {}, "dataset 'set' has no splits"),
  ],
)
def test_bad_names_and_splits_are_rejected(tmp_path, name, splits, message):
  with pytest.raises(UserError, match=message):
    builder.build(tmp_path, name, splits)


def test_incomplete_folders_are_rejected(tmp_path):
  builder.build(tmp_path, 'set', {'train': CHAINS})
  with pytest.raises(UserError, match="no split 'test'; expected one of train"):
    builder.load(tmp_path, 'set', 'test')
  (tmp_path / 'set' / builder.VERSION / 'metadata.json').unlink()
  for act in (
    lambda: builder.load(tmp_path, 'set', 'train'),
    lambda: builder.build(tmp_path, 'set', {'train': CHAINS}),
  ):
    with pytest.raises(UserError, match='is not a complete dataset'):
      act()
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot be written'):
    builder.build(tmp_path / 'file', 'set', {'train': CHAINS})


@pytest.mark.parametrize(
  'file',
  ['metadata.json', 'dataset_info.json', 'features.json', 'array_record'],
)
@pytest.mark.parametrize('size', [None, 0, 0.5])
def test_damaged_files_are_rejected(tmp_path, file, size):
  """Deletes, empties or halves one file of the data set."""
  builder.build(tmp_path, 'set', {'train': CHAINS})
  folder = tmp_path / 'set' / builder.VERSION
  (path,) = folder.glob(f'*{file}*')
  data = path.read_bytes()
  path.unlink()
  if size is not None:
    path.write_bytes(data[: int(len(data) * size)])
  with pytest.raises(UserError, match=f'{folder} is not a complete dataset'):
    builder.load(tmp_path, 'set', 'train')

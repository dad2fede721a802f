"""Tests that reading any file gives chains or a UserError, never a crash."""

import json
import pathlib
import tempfile
import time

import pytest
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.readers import READERS, read_chains
from prm_jax.runtime.errors import UserError
from tests.data.reader_examples import EXAMPLES, VARIANTS, example

FORMATS = sorted(READERS)
SCALARS = (
  st.none()
  | st.booleans()
  | st.integers()
  | st.integers(-(10**400), 10**400)
  | st.floats()
  | st.text(st.characters(), max_size=8)
  | st.sampled_from(['Q', 'P', 'Step 1: a', 'ки', '+', ' ', 1e308])
)
VALUES = st.recursive(
  SCALARS,
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
  ),
  max_leaves=6,
)


def check_file(data: bytes, fmt: str) -> None:
  """Reads a file in both modes; they must agree and lose no record."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'in.jsonl'
    side = pathlib.Path(folder) / 'bad.jsonl'
    path.write_bytes(data)
    try:
      stopped = read_chains(path, fmt)
    except UserError as error:
      stopped = None
      assert '\n' not in str(error)
      assert str(error).startswith(f'{path}:')
    try:
      chains, summary = read_chains(
        path, fmt, on_error='quarantine', quarantine_path=side
      )
    except UserError as error:
      assert 'has no records' in str(error)
      assert stopped is None
      return
    rows = [json.loads(line) for line in side.read_text().splitlines()]
    assert len(rows) == summary.quarantined
    assert (stopped is None) == bool(rows)
    if stopped is not None:
      assert stopped == (chains, summary)
    if not {'id', 'idx'} & EXAMPLES[fmt].keys():
      # The ids of these chains are the numbers of their records.
      read = {chain.meta['id'].split('/')[0] for chain in chains}
      left_out = sum(summary.skipped.values()) + summary.quarantined
      assert summary.records == len(read) + left_out


def places(value, path=()):
  """Yields the path of every value inside a JSON value."""
  yield path
  if isinstance(value, dict | list):
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
      yield from places(value[key], (*path, key))


@st.composite
def mutated(draw, fmt):
  """Draws a valid record with one value dropped, replaced, cut or repeated."""
  record = example(fmt)
  if fmt in VARIANTS and draw(st.booleans()):
    record = VARIANTS[fmt]()
  path = draw(st.sampled_from(list(places(record))[1:]))
  parent = record
  for key in path[:-1]:
    parent = parent[key]
  action = draw(st.sampled_from(['drop', 'replace', 'cut', 'repeat']))
  if action == 'drop':
    del parent[path[-1]]
  elif action == 'cut' and isinstance(parent[path[-1]], str | list):
    whole = parent[path[-1]]
    parent[path[-1]] = whole[: draw(st.integers(0, len(whole)))]
  elif action == 'replace' or isinstance(parent, dict):
    parent[path[-1]] = draw(VALUES)
  else:
    parent.append(parent[path[-1]])
  return record


@pytest.mark.parametrize('fmt', FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_records(fmt, data):
  record = data.draw(mutated(fmt))
  lines = [json.dumps(r) for r in (example(fmt), record, example(fmt))]
  check_file('\n'.join(lines).encode(), fmt)
  check_file(f'[{", ".join(lines)}]'.encode(), fmt)


@pytest.mark.parametrize('fmt', FORMATS)
@settings(max_examples=40, deadline=None)
@given(value=VALUES)
def test_any_json_value_as_record_and_as_field(fmt, value):
  check_file(json.dumps(value).encode(), fmt)
  fields = dict.fromkeys(EXAMPLES[fmt], value)
  check_file(json.dumps(fields).encode(), fmt)


@pytest.mark.parametrize('fmt', FORMATS)
@settings(max_examples=40, deadline=None)
@given(cut=st.floats(0, 1), junk=st.binary(max_size=3), array=st.booleans())
def test_cut_files_and_inserted_bytes(fmt, cut, junk, array):
  lines = json.dumps(example(fmt), ensure_ascii=False)
  text = f'[{lines},\n{lines}]' if array else f'{lines}\n{lines}\n'
  data = text.encode()
  at = int(cut * len(data))
  check_file(data[:at], fmt)
  check_file(data[:at] + junk + data[at:], fmt)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
@case(b'[' * 100_000)
@case(b'{"a":' * 100_000)
@case(b'[1' + b', 1' * 50)
def test_any_bytes(data):
  check_file(data, 'trl')


FLAT = json.dumps(EXAMPLES['prm800k_flat'])


@pytest.mark.parametrize(
  ('text', 'line', 'reason'),
  [
    (f'{FLAT}\n\n[1]', 3, 'a list of 1 where a JSON object belongs'),
    (f'{FLAT}\n{FLAT[:-9]}', 2, 'cut off in mid-record'),
    (f'{FLAT}\n{FLAT[:-9]}\n', 2, 'not JSON ('),
    (f'{FLAT}\n3', 2, '3 where a JSON object belongs'),
    ('{"a": NaN}', 1, 'NaN is not JSON'),
    ('{"a": 1e999}', 1, 'the number 1e999 is too large'),
    ('{"a": 1' + '0' * 5000 + '}', 1, 'does not fit 64 bits'),
    ('{"a": 1, "b": 2, "a": 3}', 1, "the key 'a' occurs twice"),
    ('{"a": "\\ud800"}', 1, 'half a surrogate pair'),
    ('{}', 1, "the field 'steps' is missing"),
    (f'[\n{FLAT},\n\n{{}}]', 4, "the field 'steps' is missing"),
    (f'[\n{FLAT},\n{FLAT}', 3, 'the JSON array is broken off'),
    (f'[{FLAT}\n{FLAT}]', 2, 'the JSON array is broken off'),
    (f'[{FLAT}]\n{FLAT}', 1, 'goes on after its end'),
    (FLAT.replace('"A"', '" "'), 1, "steps[0] is ' ': expected non-blank"),
    (FLAT.replace('["A", "B", "C", "D"]', '[]'), 1, "'steps' is empty"),
    (FLAT.replace('"P"', '7'), 1, "'problem' is 7: expected a non-blank"),
    (FLAT.replace('-1]', '-1, 1]'), 1, '5 ratings for 4 steps'),
  ],
)
def test_errors_name_file_line_reason_and_cure(tmp_path, text, line, reason):
  path = tmp_path / 'f.jsonl'
  path.write_text(text, 'utf-8')
  with pytest.raises(UserError) as caught:
    read_chains(path, 'prm800k_flat')
  message = str(caught.value)
  assert message.startswith(f'{path}:{line}: ')
  assert reason in message
  assert message.endswith(
    "; correct the record, or set bad ones aside with on_error='quarantine'"
  )


def test_bytes_that_are_not_utf8_are_named_and_kept(tmp_path):
  path, side = tmp_path / 'f.jsonl', tmp_path / 'bad.jsonl'
  bad = FLAT.encode().replace(b'"P"', b'"P\xe9"')
  first = FLAT.replace('"P"', '"é"').replace('\\u00e9', 'é').encode()
  for before, joint, after, line in (
    (b'', b'\n', b'\n', 2),
    (b'\xef\xbb\xbf[', b',\n', b']', 2),
  ):
    path.write_bytes(before + first + joint + bad + after)
    offset = len(before + first + joint) + bad.index(b'\xe9')
    with pytest.raises(
      UserError,
      match=f':{line}: not UTF-8 .byte 0xe9 at offset {offset} of the file',
    ):
      read_chains(path, 'prm800k_flat')
    chains, summary = read_chains(
      path, 'prm800k_flat', on_error='quarantine', quarantine_path=side
    )
    assert [chain.problem for chain in chains] == ['é']
    assert (summary.records, summary.quarantined) == (2, 1)
    (row,) = map(json.loads, side.read_text().splitlines())
    assert row['raw'].encode('utf-8', 'surrogateescape') == bad
    assert (row['file'], row['line']) == (str(path), 2)
    assert row['reason'].startswith('not UTF-8')


def test_a_bad_element_does_not_hide_the_rest_of_an_array(tmp_path):
  path = tmp_path / 'f.json'
  path.write_text(f'[{FLAT}, {{"a": NaN}}, {{"a": 1, "a": 1}}, {FLAT}]')
  chains, summary = read_chains(
    path,
    'prm800k_flat',
    on_error='quarantine',
    quarantine_path=tmp_path / 'bad.jsonl',
  )
  assert len(chains) == 2
  assert (summary.records, summary.quarantined) == (4, 2)


def test_the_rest_of_an_array_that_breaks_off_is_told(tmp_path):
  path, side = tmp_path / 'f.json', tmp_path / 'bad.jsonl'
  path.write_text(f'[{FLAT},\n{FLAT}\n{FLAT},\n{FLAT}]')
  chains, summary = read_chains(
    path, 'prm800k_flat', on_error='quarantine', quarantine_path=side
  )
  assert (len(chains), summary.quarantined) == (2, 1)
  assert 'all from line 3 on is lost' in str(summary)
  (row,) = map(json.loads, side.read_text().splitlines())
  assert row['raw'].count(FLAT) == 2
  path.write_text(f'[{FLAT}, 3]')
  _, summary = read_chains(
    path, 'prm800k_flat', on_error='quarantine', quarantine_path=side
  )
  assert 'is lost' not in str(summary)


def test_one_file_in_two_formats_keeps_the_rows_of_both(tmp_path):
  path, side = tmp_path / 'f.jsonl', tmp_path / 'bad.jsonl'
  path.write_text('3\n')
  for fmt in ('trl', 'gsm8k', 'trl'):
    read_chains(path, fmt, on_error='quarantine', quarantine_path=side)
  rows = [json.loads(line) for line in side.read_text().splitlines()]
  assert [row['format'] for row in rows] == ['gsm8k', 'trl']


def test_quarantine_keeps_the_rows_of_other_files(tmp_path):
  side = tmp_path / 'bad.jsonl'
  for name, text in (('a', '3'), ('b', '4\n5'), ('a', '6')):
    path = tmp_path / name
    path.write_text(text)
    read_chains(path, 'trl', on_error='quarantine', quarantine_path=side)
  rows = [json.loads(line) for line in side.read_text().splitlines()]
  kept = [(pathlib.Path(row['file']).name, row['raw']) for row in rows]
  assert kept == [('b', '4'), ('b', '5'), ('a', '6')]
  assert [path.name for path in tmp_path.iterdir()].count('bad.jsonl') == 1
  assert not list(tmp_path.glob('*.partial'))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'fmt': 'prm'}, "unknown format 'prm': expected one of prm800k, "),
    ({'on_error': 'skip'}, "on_error is 'skip': expected 'stop' or"),
    ({'on_error': 'quarantine'}, 'needs quarantine_path'),
    ({'source': 'me'}, "source is 'me': expected one of human, "),
    ({'path': 'absent.jsonl'}, 'absent.jsonl: cannot be read .No such file'),
    ({'path': '.'}, 'cannot be read .Is a directory'),
    ({'path': 'empty'}, 'empty: has no records'),
    ({'path': 'blank'}, 'blank: has no records'),
    ({'path': 'brackets'}, 'brackets: has no records'),
    (
      {'on_error': 'quarantine', 'quarantine_path': './good'},
      'is the file being read',
    ),
    (
      {'on_error': 'quarantine', 'quarantine_path': 'blank'},
      None,
    ),
    (
      {'on_error': 'quarantine', 'quarantine_path': 'brackets'},
      'exists and is not a quarantine file',
    ),
    (
      {'on_error': 'quarantine', 'quarantine_path': 'no/such/folder'},
      'cannot be written',
    ),
  ],
)
def test_bad_arguments_and_files_are_rejected(
  tmp_path, monkeypatch, arguments, message
):
  monkeypatch.chdir(tmp_path)
  for name, text in (
    ('good', FLAT),
    ('empty', ''),
    ('blank', ' \n\n'),
    ('brackets', ' []\n'),
  ):
    pathlib.Path(name).write_text(text)
  arguments = {'path': 'good', 'fmt': 'prm800k_flat'} | arguments
  with pytest.raises(UserError, match=message):
    read_chains(**arguments)
  assert pathlib.Path('good').read_text() == FLAT


def test_a_problem_without_solutions_is_counted(tmp_path):
  path = tmp_path / 'pool.jsonl'
  record = example('solution_pool')
  empty = record | {'candidates': []}
  path.write_text(f'{json.dumps(record)}\n{json.dumps(empty)}\n')
  chains, summary = read_chains(path, 'solution_pool')
  assert len(chains) == len(record['candidates'])
  assert (summary.records, summary.skipped) == (2, {'no candidates': 1})


def test_many_keys_and_many_lines_take_no_square_of_time(tmp_path):
  path = tmp_path / 'f.jsonl'
  keys = ','.join(f'"{i}":{i}' for i in range(100_000))
  path.write_text(f'{{{keys},"99999":0}}')
  began = time.process_time()
  with pytest.raises(UserError, match="the key '99999' occurs twice"):
    read_chains(path, 'trl')
  # A prefix that continues another one, after very many lines.
  lines = 'Q' + '\na' * 200_000
  steps = [
    {'solution_prefix': lines, 'mc_value': 0.5},
    {'solution_prefix': f'{lines} \n\nb', 'mc_value': 1.0},
  ]
  path.write_text(json.dumps({'question': 'Q', 'reasoning_steps': steps}))
  (chain,), _ = read_chains(path, 'math_aps')
  assert chain.steps[1] == 'b'
  # Both took more than ten seconds.
  assert time.process_time() - began < 5

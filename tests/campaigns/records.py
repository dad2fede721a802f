"""Reads files of changed and damaged records with every reader.

    real samples -> changed records -> a file -> read_chains, in both modes

Every record is read, skipped or set aside, and the three add up to the records
of the file; what was left as it was is read as it is alone. Where PRM_JAX_DATA
is set half of the files are made of real records, so a kept case is another one
without them.
"""

import dataclasses
import functools
import json
import os
import pathlib
import random
import tempfile
from collections.abc import Sequence

import numpy as np

from prm_jax.data.chains import Chain, from_dict, to_dict
from prm_jax.data.readers import READERS, ReadSummary, read_chains
from prm_jax.runtime.errors import UserError
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.mutations import (
  MIB,
  change,
  damage,
  limited,
  python_random,
)
from tests.data.reader_examples import EXAMPLES, VARIANTS

REAL = {
  'prm800k': 'format_samples/samples_prm800k.jsonl',
  'prm800k_flat': 'prm800k/prm800k_subset.jsonl',
  'math_shepherd': 'format_samples/samples_math-shepherd.jsonl',
  'math_aps': 'format_samples/samples_math-aps.jsonl',
  'math_aps_tree': 'format_samples/samples_math-aps-tree.jsonl',
  'prmbench': 'prmbench_train/prm800k_train_p1_first400_4o_circular.jsonl',
  'processbench': 'processbench/gsm8k.json',
  'big_bench_mistake': 'domains/big_bench_mistake/word_sorting.jsonl',
  'parc': 'domains/parc/gsm8k_negatives.json',
  'mr_ben': 'domains/mr_ben/biology.jsonl',
  'gsm8k': 'gsm8k/train.jsonl',
  'solution_pool': 'best_of_n/gsm8k_test_pool.jsonl',
  'verify_then_generate': 'verify_then_generate/dataset.json',
}
REAL |= {
  'prmbench_original': REAL['prmbench'],
  'gsm8k_stated': REAL['gsm8k'],
}
# A record of these gives several chains, whose ids begin with its number.
SEVERAL = {
  *('prm800k', 'solution_pool', 'versa_prm'),
  *('math_aps', 'math_aps_tree', 'step_tree'),
}
MOST_REAL, LONGEST = 100, 6000  # records of a file, characters of one
RECORDS = 200  # of a case
SECONDS = 20.0
MARK = b'\xef\xbb\xbf'
BLANKS = MARK + b' \t\r\n'
# A record of each is enormous, and says nothing.
ENORMOUS = (
  lambda: '"' + 'a' * 3_000_000 + '"',
  lambda: '"' + 'a\\n' * 300_000 + '"',
  lambda: '"' + '\\n ' * 300_000 + 'a"',
  lambda: '"' + ' ки\\n' * 200_000 + '"',
  lambda: '"' + 'Step 1: a? ' * 100_000 + '"',
  lambda: '"' + '<<' * 300_000 + '"',
  lambda: '"' + '(' * 300_000 + '"',
  lambda: '"' + '-' * 300_000 + '1"',
  lambda: '"' + '1+' * 100_000 + '1"',
  lambda: '[' * 300_000,
  lambda: '{"a":' * 300_000,
  lambda: '[' * 100_000 + ']' * 100_000,
  lambda: '[' + '1,' * 300_000 + '1]',
  lambda: '["a"' + ',"a"' * 300_000 + ']',
  lambda: '{' + ','.join(f'"{i}":1' for i in range(100_000)) + ',"99":2}',
  lambda: '{' + ','.join(f'"{i}":1' for i in range(100_000)) + ',"99999":2}',
  lambda: '1' * 1_000_000,
  lambda: '1.' + '0' * 1_000_000,
  lambda: ' ' * 1_000_000 + '7',
)


@functools.cache
def samples(fmt: str, real: bool) -> tuple[str, ...]:
  """Returns records of a format as JSON."""
  made = [EXAMPLES[fmt]]
  if fmt in VARIANTS:
    made.append(VARIANTS[fmt]())
  root = os.environ.get('PRM_JAX_DATA')
  if real and root and fmt in REAL:
    text = (pathlib.Path(root) / REAL[fmt]).read_text('utf-8')
    if text.startswith('['):
      made = json.loads(text)[:MOST_REAL]
    else:
      made = [json.loads(line) for line in text.split('\n') if line][:MOST_REAL]
  texts = [json.dumps(record) for record in made]
  return tuple(text for text in texts if len(text) <= LONGEST) or tuple(
    texts[:1]
  )


@functools.cache
def read_alone(fmt: str, text: str) -> tuple[Chain, ...]:
  """Returns the chains of an unchanged record, without their ids."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'in.jsonl'
    path.write_text(text)
    return tuple(map(without_id, read_chains(path, fmt)[0]))


def without_id(chain: Chain) -> Chain:
  meta = {name: found for name, found in chain.meta.items() if name != 'id'}
  return dataclasses.replace(chain, meta=meta)


def changed(draw: random.Random, text: str, array: bool) -> bytes:
  """Returns a record that differs from a good one; in an array, JSON."""
  record = json.loads(text)
  for _ in range(draw.choice((1, 1, 1, 2, 3))):
    change(draw, record)
  escaped = draw.randrange(2)
  written = json.dumps(record, ensure_ascii=bool(escaped))
  how = draw.randrange(12)
  if how == 0 and written.startswith('{"'):  # a key twice
    name = written[1:].partition(':')[0]
    written = f'{{{name}: {draw.choice(("1", "null", "[]"))}, {written[1:]}'
  elif how == 1:
    written = written.replace(
      '1', draw.choice(('1e999', '1' * 5000, 'NaN', '"\\ud800"', '-Infinity'))
    )
  data = written.encode('utf-8', 'surrogatepass')
  if array:
    # What does not end where it should would hide the records after it.
    return data if is_lenient_json(written) else text.encode()
  if how < 5:
    return damage(draw, data)
  if how == 5:
    return written.encode(
      draw.choice(('utf-16', 'latin-1', 'cp1251', 'utf-7')), 'replace'
    )
  return data


def is_lenient_json(text: str) -> bool:
  try:
    json.loads(text, parse_int=str)
  except ValueError:
    return False
  return True


def enormous(draw: random.Random, text: str) -> bytes:
  """Returns a record with an enormous value in place of one of its fields."""
  made = draw.choice(ENORMOUS)()
  record = json.loads(text)
  inner = draw.choice(
    [list(record), *(list(x) for x in record.values() if isinstance(x, dict))]
  )
  if not inner or not draw.randrange(5):
    return made.encode()
  written = text
  name = draw.choice(inner)
  begins = json.dumps(name) + ': '
  if begins not in text:
    return made.encode()
  head, _, tail = text.partition(begins)
  _, end = json.JSONDecoder().raw_decode(tail)
  written = head + begins + made + tail[end:]
  return written.encode()


def file_of(
  draw: random.Random, fmt: str, array: bool
) -> tuple[bytes, list[Chain]]:
  """Returns a file, and the chains of the records that are as they were."""
  known = samples(fmt, bool(draw.randrange(2)))
  parts, expected = [], []
  many = RECORDS if draw.randrange(20) else 5
  for _ in range(draw.randrange(1, many)):
    text = draw.choice(known)
    if not draw.randrange(4):
      parts.append(text.encode())
      expected += read_alone(fmt, text)
    else:
      parts.append(changed(draw, text, array))
  if many < RECORDS and not array:
    parts.insert(
      draw.randrange(len(parts) + 1), enormous(draw, draw.choice(known))
    )
  end = draw.choice((b'\n', b'\n', b'\r\n', b'\n\n', b' \t\n'))
  if array:
    blank = draw.choice((b'', b' ', b'\n', b'\r\n  '))
    data = b'[' + blank + (blank + b',' + blank).join(parts) + blank + b']'
    data += draw.choice((b'', b'\n', b' '))
  else:
    data = end.join(parts) + draw.choice((b'', end))
  return draw.choice((b'', b'', b'', MARK)) + data, expected


def case(generator: np.random.Generator) -> int:
  draw = python_random(generator)
  fmt = draw.choice(list(READERS))
  array = not draw.randrange(4)
  data, expected = file_of(draw, fmt, array)
  if is_array(data) != array:
    expected = []  # damage has made an array of the first of many lines
  most = 128 + 100 * len(data) / MIB
  if is_array(data):
    most += data.count(b',') / 1024  # a record may have two bytes
  with (
    tempfile.TemporaryDirectory() as folder,
    limited(SECONDS, most, f'{fmt}, {len(data)} bytes'),
  ):
    path = pathlib.Path(folder) / 'in.jsonl'
    path.write_bytes(data)
    return check(path, fmt, data, expected)


def is_array(data: bytes) -> bool:
  return data.removeprefix(MARK).lstrip().startswith(b'[')


def check(
  path: pathlib.Path, fmt: str, data: bytes, expected: list[Chain]
) -> int:
  """Reads a file in both modes; returns the number of its records."""
  side = path.with_name('bad.jsonl')
  try:
    chains, summary = read_chains(
      path, fmt, on_error='quarantine', quarantine_path=side
    )
  except UserError as error:
    assert str(error).startswith(f'{path}: has no records'), error
    assert not data.strip(BLANKS + b'[]')
    return 1
  rows = [json.loads(line) for line in side.read_text().splitlines()]
  check_counts(fmt, data, chains, summary, rows)
  found = map(without_id, chains)
  for chain in expected:
    assert any(chain == other for other in found), chain
  for chain in chains[:: 1 + len(chains) // 20]:
    if len(chain.steps) < 1000:  # it takes longer than to read
      assert same(from_dict(json.loads(json.dumps(to_dict(chain)))), chain)
  try:
    again = read_chains(path, fmt)
  except UserError as error:
    assert rows, error
    line = f'{path}:{rows[0]["line"]}: {rows[0]["reason"]} (read as {fmt}); '
    assert str(error).startswith(line), error
    assert '\n' not in str(error)
  else:
    assert again == (chains, summary)
    assert not rows
  return summary.records


def same(read: Chain, chain: Chain) -> bool:
  return json.dumps(to_dict(read)) == json.dumps(to_dict(chain))


def check_counts(
  fmt: str,
  data: bytes,
  chains: Sequence[Chain],
  summary: ReadSummary,
  rows: list[dict],
) -> None:
  """Checks that the counts add up, against a count of our own."""
  assert len(rows) == summary.quarantined
  assert len(chains) == summary.chains
  if fmt in SEVERAL:
    read = len({chain.meta['id'].partition('/')[0] for chain in chains})
  else:
    read = len(chains)
  left_out = sum(summary.skipped.values()) + summary.quarantined
  assert summary.records == read + left_out, (summary, read)
  if is_array(data):
    return
  lines = data.split(b'\n')
  assert summary.records == sum(bool(line.strip(BLANKS)) for line in lines)
  for row in rows:
    raw = row['raw'].encode('utf-8', 'surrogateescape')
    assert raw == lines[row['line'] - 1].rstrip(b'\r\n')
    assert row['reason'], row
    assert '\n' not in row['reason'], row
  assert len({row['line'] for row in rows}) == len(rows)


CAMPAIGN = Campaign('records', 'records read by all readers', 1_000_000, case)

if __name__ == '__main__':
  run(CAMPAIGN)

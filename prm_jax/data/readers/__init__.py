"""Readers: a file in any of the field's formats -> Chains.

The first stage of the data pipeline. A format reader is a pure function from
one JSON record to its chains, or to the reason why the format's own rules
leave it out; `read_chains` applies it to a file, counts everything, and says
where a bad record is. Steps and problems lose the white space around them.
"""

import dataclasses
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prm_jax.data.chains import SOURCES, Chain, from_dict
from prm_jax.data.readers import benchmarks, prm800k, stepwise_text, trees
from prm_jax.data.readers import records as records_lib
from prm_jax.data.readers.records import Fields, Record, Skip
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat

READERS: dict[str, Callable[[Fields], list[Chain] | Skip]] = {
  'prm800k': prm800k.read_prm800k,
  'prm800k_flat': prm800k.read_prm800k_flat,
  'math_shepherd': stepwise_text.read_math_shepherd,
  'trl': stepwise_text.read_trl,
  'rlhflow': stepwise_text.read_rlhflow,
  'prmbench': benchmarks.read_prmbench,
  'prmbench_original': benchmarks.read_prmbench_original,
  'processbench': benchmarks.read_processbench,
  'mr_gsm8k': benchmarks.read_processbench,
  'gsm8k': benchmarks.read_gsm8k,
  'gsm8k_stated': benchmarks.read_gsm8k_stated,
  'solution_pool': benchmarks.read_solution_pool,
  'verify_then_generate': benchmarks.read_verify_then_generate,
  'math_aps': trees.read_math_aps,
  'math_aps_tree': trees.read_math_aps_tree,
  'chains': lambda record: [from_dict(record)],  # our own chains.jsonl
}


@dataclasses.dataclass(frozen=True)
class ReadSummary:
  """What became of the records of a file.

  Attributes:
    records: records in the file; each is read, skipped or quarantined.
    chains: chains made of those that were read.
    ratings: labels with a value in those chains.
    skipped: sound records left out by the rules of the format, by reason.
    quarantined: bad records, set aside.
  """

  records: int
  chains: int
  ratings: int
  skipped: Mapping[str, int]
  quarantined: int

  def __str__(self) -> str:
    parts = [
      f'{self.records:,} records: {self.chains:,} chains, '
      f'{self.ratings:,} ratings'
    ]
    parts += [f'{n:,} skipped ({why})' for why, n in self.skipped.items()]
    if self.quarantined:
      parts.append(f'{self.quarantined:,} quarantined')
    return '; '.join(parts)


def read_chains(
  path: str | os.PathLike,
  fmt: str,
  *,
  on_error: str = 'stop',
  quarantine_path: str | os.PathLike | None = None,
  source: str | None = None,
) -> tuple[list[Chain], ReadSummary]:
  """Reads a file of JSON lines, or of one JSON array, into chains.

  `meta` of every chain has `dataset` (the format) and `id`: the record's own,
  or else the file's name and the record's number from 1; `/k` is added where
  one record makes several chains.

  Args:
    path: the file.
    fmt: its format, a key of READERS.
    on_error: 'stop' raises at the first bad record; 'quarantine' writes bad
      records to `quarantine_path` and goes on.
    quarantine_path: JSON lines {file, line, reason, raw}. Rows of other files
      in it are kept, those of an earlier reading of this file replaced.
    source: who gave the labels, one of SOURCES, for formats that do not say
      (trl); it replaces the source the reader would give.

  Returns:
    The chains, in the order of the file, and what became of its records.

  Raises:
    UserError: an argument is wrong, the file cannot be opened or has no
      records, or, with 'stop', `FILE:LINE: reason; cure` of a bad record.
  """
  _check_arguments(path, fmt, on_error, quarantine_path, source)
  chains, bad, skipped = [], [], Counter()
  count = 0
  reading = Heartbeat(f'reading {path}, records')
  for record in reading.over(records_lib.iterate(path)):
    count += 1
    try:
      made = _read(record, fmt)
    except UserError as error:
      if on_error == 'stop':
        raise UserError(
          f'{path}:{record.line}: {error} (read as {fmt}); correct the record, '
          "or set bad ones aside with on_error='quarantine'"
        ) from None
      bad.append(_quarantine_row(path, record, error))
      continue
    if isinstance(made, Skip):
      skipped[made.reason] += 1
    else:
      name = f'{pathlib.Path(path).stem}:{count}'
      chains += _stamped(made, fmt, name, source)
  if not count:
    raise UserError(f'{path}: has no records; expected JSON or JSON lines')
  if on_error == 'quarantine':
    _write_quarantine(quarantine_path, path, bad)
  ratings = sum(
    label.value is not None for chain in chains for label in chain.labels
  )
  summary = ReadSummary(count, len(chains), ratings, dict(skipped), len(bad))
  return chains, summary


def _check_arguments(
  path: str | os.PathLike,
  fmt: str,
  on_error: str,
  quarantine_path: str | os.PathLike | None,
  source: str | None,
) -> None:
  if fmt not in READERS:
    raise UserError(
      f'unknown format {fmt!r}: expected one of {", ".join(READERS)}'
    )
  if on_error not in ('stop', 'quarantine'):
    raise UserError(
      f"on_error is {on_error!r}: expected 'stop' or 'quarantine'"
    )
  if source is not None and source not in SOURCES:
    raise UserError(
      f'source is {source!r}: expected one of {", ".join(SOURCES)}'
    )
  if on_error == 'quarantine':
    if quarantine_path is None:
      raise UserError(
        "on_error='quarantine' needs quarantine_path, the file for bad records"
      )
    ours, theirs = (paths.open_path(p) for p in (quarantine_path, path))
    if ours.resolve() == theirs.resolve():
      raise UserError(
        f'{quarantine_path}: is the file being read; name another file as '
        'quarantine_path'
      )


def _read(record: Record, fmt: str) -> list[Chain] | Skip:
  if isinstance(record.value, UserError):
    raise record.value
  if not isinstance(record.value, dict):
    raise UserError(
      f'{records_lib.show(record.value)} where a JSON object belongs'
    )
  return READERS[fmt](record.value)


def _stamped(
  chains: list[Chain], fmt: str, name: str, source: str | None
) -> list[Chain]:
  """The chains with `dataset` and `id`, and with `source` where it is given."""
  stamped = []
  for k, chain in enumerate(chains):
    label = str(chain.meta.get('id', name))
    if len(chains) > 1:
      label = f'{label}/{k}'
    labels = chain.labels
    if source is not None:
      labels = tuple(dataclasses.replace(s, source=source) for s in labels)
    meta = {'dataset': fmt} | dict(chain.meta) | {'id': label}
    stamped.append(dataclasses.replace(chain, labels=labels, meta=meta))
  return stamped


def _quarantine_row(
  path: str | os.PathLike, record: Record, error: UserError
) -> dict[str, Any]:
  return {
    'file': str(path),
    'line': record.line,
    'reason': str(error),
    'raw': record.raw,
  }


def _write_quarantine(
  quarantine_path: str | os.PathLike,
  path: str | os.PathLike,
  rows: list[dict[str, Any]],
) -> None:
  target = paths.open_path(quarantine_path)
  try:
    kept = []
    if target.exists():
      for line in paths.read_lines(target):
        if json.loads(line)['file'] != str(path):
          kept.append(line)
    # ASCII, so that bytes that are not UTF-8 come through as they were.
    lines = [*kept, *(json.dumps(row).encode() for row in rows)]
    paths.write_bytes(target, b''.join(line + b'\n' for line in lines))
  except OSError as error:
    raise UserError(
      f'{target}: cannot be written ({error.strerror}); name a writable file '
      'as quarantine_path'
    ) from None
  except (ValueError, TypeError, KeyError):
    raise UserError(
      f'{target}: exists and is not a quarantine file; name another file as '
      'quarantine_path'
    ) from None

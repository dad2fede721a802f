"""Readers turn files in the field's formats into chains.

    file -> records.iterate -> format reader -> read_chains -> chains, summary

This is the first stage of the data pipeline. A format reader is a pure function
that turns one JSON record into its chains, or into the reason why the rules of
the format leave it out. `read_chains` applies it to a file, counts the records,
and says where a bad one is. White space around steps and problems is removed;
lines of code keep their indentation.
"""

import dataclasses
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prm_jax.data.chains import SOURCES, Chain, from_dict
from prm_jax.data.readers import (
  benchmarks,
  other_domains,
  prm800k,
  stepwise_text,
  trees,
)
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
  'big_bench_mistake': benchmarks.read_big_bench_mistake,
  'parc': benchmarks.read_parc,
  'mr_ben': other_domains.read_mr_ben,
  'agent_process_bench': other_domains.read_agent_process_bench,
  'versa_prm': other_domains.read_versa_prm,
  'gsm8k': benchmarks.read_gsm8k,
  'gsm8k_stated': benchmarks.read_gsm8k_stated,
  'solution_pool': benchmarks.read_solution_pool,
  'verify_then_generate': benchmarks.read_verify_then_generate,
  'math_aps': trees.read_math_aps,
  'math_aps_tree': trees.read_math_aps_tree,
  'step_tree': trees.read_step_tree,
  'chains': lambda record: [from_dict(record)],  # our own chains.jsonl
}
# Formats whose files are named by their subject, while records have none.
_NAMED_BY_SUBJECT = ('big_bench_mistake',)


@dataclasses.dataclass(frozen=True)
class ReadSummary:
  """Counts what became of the records of a file.

  Attributes:
    records: number of records in the file; each one is read, skipped or
      quarantined.
    chains: number of chains that were read.
    ratings: number of labels with a value in those chains.
    skipped: number of good records that the rules of the format leave out, by
      reason.
    quarantined: number of bad records that were set aside.
    ended_at: line where the rest of the file, as it could not be split into
      records, was quarantined as one; 0 if the file was read to its end.
  """

  records: int
  chains: int
  ratings: int
  skipped: Mapping[str, int]
  quarantined: int
  ended_at: int = 0

  def __str__(self) -> str:
    parts = [
      f'{self.records:,} records: {self.chains:,} chains, '
      f'{self.ratings:,} ratings'
    ]
    parts += [f'{n:,} skipped ({why})' for why, n in self.skipped.items()]
    if self.quarantined:
      parts.append(f'{self.quarantined:,} quarantined')
    if self.ended_at:
      parts.append(
        f'all from line {self.ended_at:,} on is lost: the file breaks off'
      )
    return '; '.join(parts)


def read_chains(
  path: str | os.PathLike,
  fmt: str,
  *,
  on_error: str = 'stop',
  quarantine_path: str | os.PathLike | None = None,
  source: str | None = None,
) -> tuple[list[Chain], ReadSummary]:
  """Reads the chains of a file of JSON lines or of one JSON array.

  The `meta` of every chain holds `dataset` (the format) and `id`. The id is
  that of the record, or else the file's name and the number of the record,
  counted from 1. If a record has several chains, `/k` is appended. Where a
  format tells the domain of a chain, `subject` names it.

  Args:
    fmt: its format, a key of READERS.
    on_error: 'stop' raises at the first bad record; 'quarantine' writes bad
      records to `quarantine_path` and continues.
    quarantine_path: file of JSON lines {file, format, line, reason, raw}. Rows
      of other files and formats are kept; those of an earlier reading of this
      file in this format are replaced.
    source: the kind of labeller, one of SOURCES. It replaces the source that
      the reader gives; use it for formats that do not name one (trl).

  Returns:
    The chains in the order of the file, and the counts of its records.

  Raises:
    UserError: an argument is wrong, or the file cannot be opened or has no
      records. With 'stop' also `FILE:LINE: reason; cure` of a bad record.
  """
  _check_arguments(path, fmt, on_error, quarantine_path, source)
  chains, bad, skipped = [], [], Counter()
  count = ended_at = 0
  heartbeat = Heartbeat(f'reading {path}, records')
  for record in heartbeat.over(records_lib.iterate(path)):
    count += 1
    try:
      result = _read(record, fmt)
    except UserError as error:
      if on_error == 'stop':
        raise UserError(
          f'{path}:{record.line}: {error} (read as {fmt}); correct the record, '
          "or set bad ones aside with on_error='quarantine'"
        ) from None
      bad.append(_quarantine_row(path, fmt, record, error))
      if isinstance(error, records_lib.BrokenOff):
        ended_at = record.line
      continue
    if isinstance(result, Skip):
      skipped[result.reason] += 1
    else:
      name = f'{pathlib.Path(path).stem}:{count}'
      chains += _add_origin(result, fmt, name, source)
  if not count:
    raise UserError(f'{path}: has no records; expected JSON or JSON lines')
  if on_error == 'quarantine':
    _write_quarantine(quarantine_path, path, fmt, bad)
  ratings = sum(
    label.value is not None for chain in chains for label in chain.labels
  )
  return chains, ReadSummary(
    count, len(chains), ratings, dict(skipped), len(bad), ended_at
  )


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
    if (
      paths.open_path(quarantine_path).resolve()
      == paths.open_path(path).resolve()
    ):
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


def _add_origin(
  chains: list[Chain], fmt: str, name: str, source: str | None
) -> list[Chain]:
  """Adds `dataset` and `id` to the chains of a record, and `source` if given.

  `name` is the id of a record that has none of its own.
  """
  complete = []
  for k, chain in enumerate(chains):
    chain_id = str(chain.meta.get('id', name))
    if len(chains) > 1:
      chain_id = f'{chain_id}/{k}'
    labels = chain.labels
    if source is not None:
      labels = tuple(dataclasses.replace(s, source=source) for s in labels)
    meta = {'dataset': fmt} | dict(chain.meta) | {'id': chain_id}
    if fmt in _NAMED_BY_SUBJECT:
      meta['subject'] = name.rpartition(':')[0]
    complete.append(dataclasses.replace(chain, labels=labels, meta=meta))
  return complete


def _quarantine_row(
  path: str | os.PathLike, fmt: str, record: Record, error: UserError
) -> dict[str, Any]:
  return {
    'file': str(path),
    'format': fmt,
    'line': record.line,
    'reason': str(error),
    'raw': record.raw,
  }


def _write_quarantine(
  quarantine_path: str | os.PathLike,
  path: str | os.PathLike,
  fmt: str,
  rows: list[dict[str, Any]],
) -> None:
  target = paths.open_path(quarantine_path)
  try:
    kept = []
    if target.exists():
      for line in paths.read_lines(target):
        row = json.loads(line)
        if (row['file'], row.get('format', fmt)) != (str(path), fmt):
          kept.append(line)
    # JSON in ASCII keeps bytes that are not UTF-8 as they were.
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

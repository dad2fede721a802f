"""Stores chains as a TFDS dataset in ArrayRecord files and reads them back.

    readers, domains, label sources -> chains -> build -> files on disk
      -> load -> ChainSource -> pipeline

`build` writes a data set once; grain reads it in any order through `load`.
Neither this module nor its imports import TensorFlow.
"""

import contextlib
import hashlib
import io
import json
import operator
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from prm_jax.data.chains import Chain, StepLabel, shown_id
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat

# Raise it when FEATURES change: data sets are then built again in a new folder.
VERSION = '1.0.0'
# Names are parts of file names, which TFDS splits at hyphens.
_NAME = re.compile(r'[A-Za-z]\w*', re.ASCII)

_TEXTS = tfds.features.Tensor(shape=(None,), dtype=np.str_)
_INTEGERS = tfds.features.Tensor(shape=(None,), dtype=np.int64)
_FLAGS = tfds.features.Tensor(shape=(None,), dtype=np.bool_)

FEATURES = tfds.features.FeaturesDict(
  {
    'problem': tfds.features.Text(),
    'steps': tfds.features.Sequence(tfds.features.Text()),
    'answer': tfds.features.Text(),
    'has_answer': tfds.features.Scalar(np.bool_),
    'outcome': tfds.features.Scalar(np.int64),  # 1 right, 0 wrong, -1 unknown
    # One column per field of StepLabel, all [P]. TFDS writes a Sequence of
    # dicts at half the speed of these tensors.
    'labels': {
      # JSON text, because TFDS stores float64 as float32. The shortest decimal
      # of a float64 is read back exactly.
      'value': _TEXTS,
      'source': _TEXTS,
      'successes': _INTEGERS,  # -1 is None
      'trials': _INTEGERS,  # -1 is None
      'neutral': _FLAGS,
    },
    'meta': tfds.features.Text(),  # JSON
  }
)


def fingerprint(chains: Iterable[Chain]) -> str:
  """Returns 16 hex digits of the SHA-256 of the chains, in their order.

  Raises:
    UserError: a chain would change if it were written as JSON and read back.
  """
  digest = hashlib.sha256()
  for i, chain in enumerate(chains):
    digest.update(_canonical(chain, i))
  return digest.hexdigest()[:16]


def fingerprints(splits: Mapping[str, Iterable[Chain]]) -> dict[str, str]:
  """Returns the fingerprint of each split, by its name."""
  return {split: fingerprint(chains) for split, chains in splits.items()}


def _canonical(chain: Chain, i: int) -> bytes:
  """Returns chain `i` as a line of JSON with sorted keys, to be hashed."""
  record = {
    'problem': chain.problem,
    'steps': chain.steps,
    'answer': chain.answer,
    'outcome': chain.outcome,
    # This is four times as fast as dataclasses.asdict.
    'labels': [
      (s.value, s.source, s.successes, s.trials, s.neutral)
      for s in chain.labels
    ],
    'meta': dict(chain.meta),
  }
  try:
    text = json.dumps(
      record, ensure_ascii=False, allow_nan=False, sort_keys=True
    )
    line = f'{text}\n'.encode()
    same = json.loads(text)['meta'] == record['meta']
  except (TypeError, ValueError, RecursionError) as error:
    raise UserError(
      f'chain {i} ({shown_id(chain)}) cannot be written: {error}'
    ) from None
  if not same:
    raise UserError(
      f'chain {i} ({shown_id(chain)}) cannot be written: meta must have JSON '
      'types only, without tuples and with text as keys'
    )
  for label in chain.labels:
    counts = (label.successes or 0, label.trials or 0)
    if not all(isinstance(n, int) and n < 2**63 for n in counts):
      raise UserError(
        f'chain {i} ({shown_id(chain)}) cannot be written: {label.successes} '
        f'successes of {label.trials} trials are not 64-bit integers'
      )
  return line


class ChainsBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes any {split: chains} as ArrayRecord; the project's only TFDS builder.

  Args:
    metadata: JSON that is stored beside the chains.
    data_dir: root folder of the data sets.
  """

  VERSION = tfds.core.Version(VERSION)
  # There are no downloads. Without this line TFDS looks for checksums with
  # importlib_resources, which it does not install on Python 3.9 and later.
  url_infos = None

  def __init__(
    self,
    splits: Mapping[str, Sequence[Chain]],
    metadata: Mapping[str, Any],
    *,
    data_dir: str,
    name: str,
  ) -> None:
    self._chains = splits
    self._metadata = metadata
    self.name = name  # TFDS would name the data set after this class.
    super().__init__(data_dir=data_dir, file_format='array_record')

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description='Reasoning chains with step labels.',
      features=FEATURES,
      metadata=tfds.core.MetadataDict(self._metadata),
      # On disk the chains keep their order, because grain shuffles.
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator]:
    del dl_manager
    return {
      name: self._generate_examples(chains)
      for name, chains in self._chains.items()
    }

  def _generate_examples(
    self, chains: Sequence[Chain]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    heartbeat = Heartbeat('writing chains', len(chains))
    for i, chain in enumerate(heartbeat.over(chains)):
      yield i, _to_example(chain)


def _or_minus_one(count: int | None) -> int:
  return -1 if count is None else count


def _to_example(chain: Chain) -> dict[str, Any]:
  labels = chain.labels
  return {
    'problem': chain.problem,
    'steps': list(chain.steps),
    'answer': chain.answer or '',
    'has_answer': chain.answer is not None,
    'outcome': -1 if chain.outcome is None else int(chain.outcome),
    'labels': {
      'value': [json.dumps(label.value) for label in labels],
      'source': [label.source for label in labels],
      'successes': [_or_minus_one(label.successes) for label in labels],
      'trials': [_or_minus_one(label.trials) for label in labels],
      'neutral': [label.neutral for label in labels],
    },
    'meta': json.dumps(dict(chain.meta), ensure_ascii=False, allow_nan=False),
  }


def _from_example(example: Mapping[str, Any]) -> Chain:
  labels = example['labels']
  columns = (labels[name] for name in FEATURES['labels'])
  outcome = int(example['outcome'])
  return Chain(
    problem=example['problem'].decode(),
    steps=tuple(step.decode() for step in example['steps']),
    answer=example['answer'].decode() if example['has_answer'] else None,
    outcome=None if outcome == -1 else bool(outcome),
    labels=tuple(
      StepLabel(
        value=json.loads(value),
        source=source.decode(),
        successes=None if successes == -1 else int(successes),
        trials=None if trials == -1 else int(trials),
        neutral=bool(neutral),
      )
      for value, source, successes, trials, neutral in zip(
        *columns, strict=True
      )
    ),
    meta=json.loads(example['meta']),
  )


def build(
  data_dir: str | os.PathLike,
  name: str,
  splits: Mapping[str, Sequence[Chain]],
  prints: Mapping[str, str] | None = None,
) -> str:
  """Writes the splits to `data_dir/name/VERSION`, unless they are there.

  The folder gets its name when it is complete, so an interrupted build leaves
  nothing that can be loaded.

  Args:
    data_dir: root folder of the data sets; it is made if it does not exist.
    name: name of the data set: letters, digits and `_`.
    splits: the chains of each split; no split may be empty.
    prints: the `fingerprint` of each split, where the caller has them.

  Returns:
    16 hex digits of the SHA-256 of the splits' names and chains.

  Raises:
    UserError: a name, a split or a chain cannot be written, or other chains
      are there under this name.
  """
  target = _folder(data_dir, name)
  for split, chains in splits.items():
    if not _NAME.fullmatch(split) or split == 'all':
      raise UserError(
        f"split name {split!r}: use letters, digits and _, and not 'all'"
      )
    if not len(chains):
      raise UserError(f'split {split!r} has no chains; leave it out')
  if not splits:
    raise UserError(f'dataset {name!r} has no splits; name at least one')

  prints = prints or fingerprints(splits)
  digest = hashlib.sha256(
    json.dumps(prints, sort_keys=True).encode()
  ).hexdigest()[:16]
  if not target.exists():
    _write(data_dir, name, splits, {'fingerprint': digest, 'splits': prints})
  found = _metadata(target)['fingerprint']
  if found != digest:
    raise UserError(
      f'{target} holds other chains (fingerprint {found}, not {digest}); '
      'choose another name, or delete the folder to build it anew'
    )
  return digest


def _folder(data_dir: str | os.PathLike, name: str) -> pathlib.Path:
  if not _NAME.fullmatch(name):
    raise UserError(f'dataset name {name!r}: use letters, digits and _')
  root = pathlib.Path(data_dir).expanduser().absolute()
  return root / name / VERSION


def _write(
  data_dir: str | os.PathLike,
  name: str,
  splits: Mapping[str, Sequence[Chain]],
  metadata: Mapping[str, Any],
) -> None:
  target = _folder(data_dir, name)
  # TFDS prints messages and draws progress bars that would run into our own
  # progress line on the console.
  tfds.disable_progress_bar()
  try:
    with (
      tempfile.TemporaryDirectory() as downloads,
      contextlib.redirect_stdout(io.StringIO()),
      paths.writing(target),
    ):
      builder = ChainsBuilder(
        splits, metadata, data_dir=str(target.parents[1]), name=name
      )
      builder.download_and_prepare(download_dir=downloads)
  except OSError as error:
    # There is no fault if another host of the same run has finished first.
    if not target.exists():
      raise UserError(
        f'{target}: cannot be written ({error.strerror or error}); make room '
        'or choose another data_dir'
      ) from error


def _metadata(folder: pathlib.Path) -> dict[str, Any]:
  try:
    return json.loads((folder / 'metadata.json').read_text('utf-8'))
  except (OSError, ValueError):
    raise _incomplete(folder) from None


def _incomplete(folder: pathlib.Path) -> UserError:
  return UserError(
    f'{folder} is not a complete dataset; delete the folder, and run the job '
    'that builds it'
  )


class ChainSource(Sequence[Chain]):
  """Gives random access to the chains of a split on disk; grain reads it.

  Attributes:
    fingerprint: fingerprint of the chains, as returned by `fingerprint`.

  Args:
    folder: folder of the data set.
    split: name of the split.
    digest: fingerprint of its chains.

  Raises:
    UserError: the files are damaged.
  """

  def __init__(self, folder: pathlib.Path, split: str, digest: str) -> None:
    self.fingerprint = digest
    self._label = f'{folder}:{split}'
    try:
      builder = tfds.builder_from_directory(folder)
      self._source = builder.as_data_source(split=split)
      # A file that was cut off has lost its last record.
      _ = self[-1]
    except Exception as error:  # TFDS and ArrayRecord raise many kinds
      raise _incomplete(folder) from error

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Chain:
    i = range(len(self))[operator.index(index)]
    return _from_example(self._source[i])

  def __repr__(self) -> str:
    # Grain writes this text into checkpoints to tell data sources apart.
    return f'ChainSource({self._label}, {self.fingerprint})'


def load(data_dir: str | os.PathLike, name: str, split: str) -> ChainSource:
  """Opens a split that `build` wrote.

  Raises:
    UserError: there is no such data set or split, or its files are damaged.
  """
  folder = _folder(data_dir, name)
  if not folder.exists():
    raise UserError(f'{folder}: no such dataset; run the job that builds it')
  prints = _metadata(folder)['splits']
  if split not in prints:
    raise UserError(
      f'{folder} has no split {split!r}; expected one of {", ".join(prints)}'
    )
  return ChainSource(folder, split, prints[split])

"""Makes the splits that a config's data section names.

    a domain or files -> decontaminated -> split by problem -> ArrayRecord
      -> ChainSource

Everything after this module reads the ArrayRecord files, which are written
once. A split is train, dev or an evaluation.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import operator
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from prm_jax.data import builder, chain_sets, contamination
from prm_jax.data.chains import Chain, first_error, source_problem
from prm_jax.data.config import DataConfig
from prm_jax.data.domain_splits import (
  Splits,
  critique_splits,
  drawn_splits,
  words_splits,
)
from prm_jax.data.domains import words, worked_answers
from prm_jax.data.readers import read_chains
from prm_jax.data.segments import split_chain
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import check_shared

Log = Callable[[str], None]
DATA_VARIABLE = 'PRM_JAX_DATA'
# Splits up to this size are decoded once and kept: decoding a record each time
# it is drawn (0.3 ms) would cost a small model's training a tenth of its speed.
IN_MEMORY_CHAINS = 100_000
ENOUGH_WORDINGS = 20  # problems of a template that are compared


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Holds the chains that a job works on.

  Attributes:
    train: chains to learn from.
    dev: chains of other problems, for thresholds and the best checkpoint.
    evaluations: name -> chains to report on; training never saw their problems.
    fingerprint: 16 hex digits over all of it.
    encoded: folder for what is made of the training chains, named after their
      content.
    everywhere: whether each process writes there, and not the first one alone.
  """

  train: Sequence[Chain]
  dev: Sequence[Chain]
  evaluations: Mapping[str, Sequence[Chain]]
  fingerprint: str
  encoded: pathlib.Path
  everywhere: bool


def data_root(configured: str, flag: str = 'data.root') -> paths.Path:
  """Returns the folder from which a config's relative file paths start."""
  root = configured or os.environ.get(DATA_VARIABLE, '')
  if not root:
    raise UserError(
      f'this config reads files: say where they are with --config.{flag}=DIR '
      f'or the environment variable {DATA_VARIABLE}'
    )
  return paths.open_path(root)


def read_file(
  root: paths.Path,
  path: str,
  fmt: str,
  on_error: str,
  aside: paths.Path,
  log: Log,
) -> list[Chain]:
  """Reads the chains of a file; bad records go to the folder `aside`."""
  side = aside / f'{path.replace("/", "_")}.quarantine.jsonl'
  chains, summary = read_chains(
    root / path, fmt, on_error=on_error, quarantine_path=side
  )
  log(f'{path}: {summary}')
  return chains


@contextlib.contextmanager
def folder_aside(workdir: paths.Path) -> Iterator[paths.Path]:
  """Yields the folder of bad records, a temporary one except in process 0."""
  with tempfile.TemporaryDirectory() as elsewhere:
    yield workdir if processes.is_first() else pathlib.Path(elsewhere)


def in_dev_split(chains: Sequence[Chain], share: float) -> list[bool]:
  """Assigns chains to the dev split by a hash of their problem: [M] bools.

  Chains of one problem, of variants of one problem, or of one `meta['group']`
  are in the same split. The alphabetically first source problem among them is
  hashed.
  """
  above: dict[tuple[str, str], tuple[str, str]] = {}

  def top(name: tuple[str, str]) -> tuple[str, str]:
    while (parent := above.setdefault(name, name)) != name:
      above[name] = name = above[parent]
    return name

  texts = [
    ('a text', contamination.compared(source_problem(chain)))
    for chain in chains
  ]
  for text, chain in zip(texts, chains, strict=True):
    others = [('a text', contamination.compared(chain.problem))]
    if 'group' in chain.meta:
      others.append(('group', str(chain.meta['group'])))
    for other in others:
      tops = top(text), top(other)
      above[max(tops)] = min(tops)
  first: dict[tuple[str, str], str] = {}
  for text in texts:
    first[top(text)] = min(text[1], first.get(top(text), text[1]))
  digests = [
    hashlib.sha256(first[top(text)].encode()).digest() for text in texts
  ]
  return [int.from_bytes(digest[:8]) < share * 2**64 for digest in digests]


def _unevaluated_words(
  config: DataConfig,
  seed: int,
  against: Mapping[str, Sequence[str]],
  log: Log,
) -> list[Chain]:
  """Makes word problems, without templates of problems in an evaluation.

  The templates were made from problems of GSM8K's test set.
  """
  chains = words.make_chains(config.words, config.words_problems, seed)
  texts = {text for texts in against.values() for text in texts}
  evaluated = [contamination.wording(text) for text in texts]
  # By several problems of a template: names and things differ between them.
  seen, known = collections.Counter(), set()
  for chain in chains:
    template = chain.meta['template']
    seen[template] += 1
    if template in known or seen[template] > ENOUGH_WORDINGS:
      continue
    wording = contamination.wording(chain.problem)
    if contamination.same_wording(wording, evaluated):
      known.add(template)
  kept = [chain for chain in chains if chain.meta['template'] not in known]
  log(
    f'contamination: {len(known)} of {len(seen)} word templates have the '
    f'wording of an evaluation problem, {len(chains) - len(kept):,} chains '
    'removed'
  )
  return kept


def evaluated_problems(
  config: DataConfig, evaluations: Mapping[str, Sequence[Chain]]
) -> dict[str, list[str]]:
  """Returns the problems that no training chain may have, by their set.

  They are the evaluations' problems, those that these were made from, and
  those in the files of `decontaminate`.
  """
  against = {
    name: [text for c in chains for text in {c.problem, source_problem(c)}]
    for name, chains in evaluations.items()
  }
  for path in config.decontaminate:
    file = data_root(config.root) / path
    against[path] = contamination.read_evaluation_problems(file)
  return against


def file_splits(
  config: DataConfig, seed: int, quarantine_dir: paths.Path, log: Log
) -> Splits:
  """Reads, decontaminates and splits the files of a config."""
  root = data_root(config.root)

  def read(path: str, fmt: str) -> list[Chain]:
    return read_file(root, path, fmt, config.on_error, quarantine_dir, log)

  evaluations = {
    name: read(*source) for name, source in config.evaluations.items()
  }
  training = [chain for source in config.train for chain in read(*source)]
  against = evaluated_problems(config, evaluations)
  if config.worked_answers:
    worked = read(config.worked_answers, 'gsm8k')
    planted = worked_answers.plant_errors(worked, seed)
    wrong = sum(first_error(chain.labels) >= 0 for chain in planted)
    log(
      f'planted errors in {wrong:,} of {len(planted):,} worked answers; '
      f'{len(worked) - len(planted):,} others cannot be calculated'
    )
    if not planted:
      raise UserError(
        f'data.worked_answers={config.worked_answers!r} has no answer whose '
        "equations can be calculated; name a file as GSM8K's, or ''"
      )
    training += planted
  if config.words_problems:
    training += _unevaluated_words(config, seed, against, log)
  kept, removed = contamination.remove_contaminated(training, against)
  for name, count in removed.items():
    log(
      f'contamination: {count.chains:,} training chains of {count.problems:,} '
      f'problems are in {name} and left out'
    )
  share = config.dev_share
  of_dev = in_dev_split(kept, share)
  dev = list(itertools.compress(kept, of_dev))
  train = list(itertools.compress(kept, map(operator.not_, of_dev)))
  if not train or not dev:
    raise UserError(
      f'data.dev_share={share} leaves {len(train):,} chains to train on and '
      f'{len(dev):,} for dev; change it, or bring more problems'
    )
  return Splits(train, dev, evaluations)


def labelled_chains(
  config: DataConfig, splits: Splits, log: Log
) -> list[Chain]:
  """Reads a labelling job's chains, which replace the config's own.

  Raises:
    UserError: there are none, or all are of test problems.
  """
  labelled = chain_sets.read(config.labels, 'data.labels')
  kept, removed = contamination.remove_contaminated(
    labelled,
    evaluated_problems(
      config,
      {'dev': splits.dev} | {k: v for k, v in splits.evaluations.items() if v},
    ),
  )
  for name, count in removed.items():
    if count.chains:
      log(
        f'WARNING: {count.chains:,} chains of {config.labels}, of '
        f'{count.problems:,} problems, are in {name} and left out'
      )
  if not kept:
    raise UserError(
      f'data.labels={config.labels!r}: all {len(labelled):,} chains are of '
      'dev or test problems; label chains of training problems'
    )
  wanted = config.first_labels or len(kept)
  if wanted > len(kept):
    raise UserError(
      f'data.first_labels={wanted}, but {config.labels} has {len(kept):,} '
      'chains to train on; lower it, or label more'
    )
  log(f'{wanted:,} chains of {config.labels} to train on')
  return kept[:wanted]


def _built_folder(
  configured: str, workdir: paths.Path
) -> tuple[pathlib.Path, bool]:
  """Returns the folder for ArrayRecord, and whether each process writes it.

  Records are read at random, which ArrayRecord can do only from a disk.
  """
  paths.check_local(configured, 'what data.dir names')
  if configured or not paths.is_remote(workdir):
    return pathlib.Path(configured or workdir / 'data').expanduser(), False
  return paths.machine_folder('data'), True


def load_dataset(
  config: DataConfig, seed: int, workdir: paths.Path, log: Log
) -> Dataset:
  """Makes or finds the splits of `config` and opens them.

  Args:
    config: the data section; the chains of the job in `labels` replace its
      training chains.
    seed: seed of everything that a domain draws.
    workdir: ArrayRecord goes to workdir/data unless config.dir names another
      folder, which several runs may share and all processes see. With a workdir
      at gs:// every machine writes its own copy, which all its runs share.
  """
  directory, everywhere = _built_folder(config.dir, workdir)
  if config.kind == 'files':
    with folder_aside(workdir) as aside:
      splits = file_splits(config, seed, aside, log)
  elif config.kind == 'words':
    splits = words_splits(config, config.words, seed, config.test_samples)
  else:
    splits = drawn_splits(
      config.kind, config, config.samples, seed, config.shortest
    )
  if config.labels:
    splits = splits._replace(train=labelled_chains(config, splits, log))
  if config.critiques.style:
    splits = critique_splits(splits, config.critiques, seed, log)
  train = [split_chain(chain, config.segments) for chain in splits.train]
  learned = {'train': train, 'dev': splits.dev}
  prints = builder.fingerprints(learned)
  # The name carries the content, so that runs with other data never collide.
  name = f'{config.kind}_{_digest(prints)}'
  fingerprint = _digest(prints | builder.fingerprints(splits.evaluations))
  processes.check_same(
    'the fingerprint of the data',
    fingerprint,
    'give all processes the same files',
  )
  if everywhere:
    builder.build(directory, name, learned, prints)
    processes.wait_for_all('data')
  else:
    check_shared(directory, 'data.dir')
    processes.first_alone(
      'data', builder.build, directory, name, learned, prints
    )
  opened = {split: builder.load(directory, name, split) for split in learned}
  return Dataset(
    **{
      split: list(chains) if len(chains) <= IN_MEMORY_CHAINS else chains
      for split, chains in opened.items()
    },
    evaluations=splits.evaluations,
    fingerprint=fingerprint,
    encoded=directory / 'encoded' / name,
    everywhere=everywhere,
  )


def _digest(prints: Mapping[str, str]) -> str:
  return hashlib.sha256(repr(sorted(prints.items())).encode()).hexdigest()[:16]

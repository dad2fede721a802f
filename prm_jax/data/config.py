"""Defines the config sections that name chains and problems.

`datasets.py` and `problems.py` read the data that these settings name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from prm_jax.data.critiques.examples import CritiquesConfig
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.domains.code import CodeConfig
from prm_jax.data.domains.known import DOMAINS
from prm_jax.data.domains.logic import LogicConfig
from prm_jax.data.domains.words import WordsConfig
from prm_jax.data.segments import SEGMENTS
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, between, one_of

SPLITS = ('train', 'dev', 'test')
ON_ERROR = ('stop', 'quarantine')
# A file below a root folder, and the format that reads it.
Source = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class DrawConfig:
  """Sets the sizes of the splits of one draw of a domain's problems.

  Equal numbers and equal seeds give equal problems in every job.

  Attributes:
    train_problems, dev_problems, test_problems: problems of each split.
  """

  train_problems: Annotated[int, at_least(1)] = 8192
  dev_problems: Annotated[int, at_least(0)] = 128
  test_problems: Annotated[int, at_least(0)] = 400
  arithmetic: ArithmeticConfig = ArithmeticConfig()
  logic: LogicConfig = LogicConfig()
  code: CodeConfig = CodeConfig()
  critiques: CritiquesConfig = CritiquesConfig()

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class SampledDrawConfig(DrawConfig):
  """Adds to a draw the number of chains sampled per problem.

  The words domain makes one chain of each training and dev problem.

  Attributes:
    train_samples, dev_samples, test_samples: chains of each of the problems.
  """

  train_samples: Annotated[int, at_least(1)] = 1
  dev_samples: Annotated[int, at_least(1)] = 8
  test_samples: Annotated[int, at_least(1)] = 64

  @property
  def samples(self) -> tuple[int, int, int]:
    """Returns the chains per problem of train, dev and test."""
    return self.train_samples, self.dev_samples, self.test_samples


def _check_templates(words: WordsConfig) -> None:
  """Raises Faults if training problems have the templates of the test."""
  if words.templates != 'train':
    checks.fail(
      'words.templates',
      words.templates,
      "the test problems have the held-out templates: expected 'train'",
    )


@dataclasses.dataclass(frozen=True)
class DataConfig(SampledDrawConfig):
  """Says which data a training job learns from and is evaluated on.

  Attributes:
    kind: where chains come from: a domain whose truth is known (arithmetic,
      logic or code), the words domain, or files.
    dir: folder of the built data, which several runs may share; '' is
      WORKDIR/data.
    shortest: training problems of the arithmetic domain have from this many
      operations up to `arithmetic.operations`, in equal shares; 0: only the
      latter. A model that has to find the k-th operation of a long problem
      learns it from shorter ones first.
    labels: workdir of a labelling job, whose chains replace the training
      chains.
    first_labels: use only this many of them; 0 uses all.
    words: the words domain, where `kind` or `words_problems` asks for it.
    root: folder of the files; '' is the environment variable PRM_JAX_DATA.
    train: files of training chains, each with its format.
    evaluations: name of an evaluation -> its file and format.
    decontaminate: files whose problems are removed from the training chains
      that come from files or from `labels`.
    segments: how the steps of training chains are split, and with them those
      that are evaluated: a key of segments.SEGMENTS.
    dev_share: share of the problems of `train` that is held out for dev.
    worked_answers: a file such as GSM8K's; errors are planted in half of them.
    words_problems: chains of the words domain to add to the files.
    on_error: what a bad record does: 'stop' ends the job, 'quarantine' sets the
      record aside and counts it.
    tokenizer: 'bytes'; that of a domain ('arithmetic', 'logic' or 'code') or
      of a critic ('arithmetic_critic', 'logic_critic'); '' is the base's.
    separator: token that ends a step; '' is the tokenizer's own.
    end: token that ends a policy's chain; '' is the tokenizer's own.
    max_length: longest chain in tokens; longer ones are cut.
    trees: whether chains of one problem share the tokens of their equal
      beginnings, which are then computed once. Losses stay those of the
      chains. A tree that does not fit a row is split, and every part repeats
      the tokens that lead to it.
    row_length: tokens of a row, into which chains are packed.
    max_steps_per_row: most steps of a row; a step that several chains of a
      tree share with the same label counts once.
    batch_size: rows of a batch.
    shards: parts that the chains are split into, each read by one process; 0 is
      as few as possible. Batches depend on it, so a run whose number of
      processes may change sets it to a common multiple.
  """

  kind: Annotated[str, one_of(*DOMAINS, 'words', 'files')] = 'arithmetic'
  dir: str = ''
  shortest: Annotated[int, at_least(0)] = 0
  labels: str = ''
  first_labels: Annotated[int, at_least(0)] = 0
  words: WordsConfig = WordsConfig()
  root: str = ''
  train: tuple[Source, ...] = ()
  evaluations: Mapping[str, Source] = dataclasses.field(default_factory=dict)
  decontaminate: tuple[str, ...] = ()
  segments: Annotated[str, one_of(*SEGMENTS)] = 'given'
  dev_share: Annotated[float, between(0, 1)] = 0.15
  worked_answers: str = ''
  words_problems: Annotated[int, at_least(0)] = 0
  on_error: Annotated[str, one_of(*ON_ERROR)] = 'stop'
  tokenizer: str = ''
  separator: str = ''
  end: str = ''
  max_length: Annotated[int, at_least(1)] = 1024
  trees: bool = False
  row_length: Annotated[int, at_least(1)] = 1024
  max_steps_per_row: Annotated[int, at_least(1)] = 64
  batch_size: Annotated[int, at_least(1)] = 32
  shards: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_templates(self.words)
    if self.kind != 'files' and not self.dev_problems:
      checks.fail(
        'dev_problems',
        0,
        'thresholds and the best checkpoint come from dev: expected >= 1',
      )
    self._check_kind()
    if self.row_length < self.max_length:
      checks.fail(
        'row_length',
        self.row_length,
        f'is shorter than max_length={self.max_length}; raise it',
      )
    if self.shards and self.batch_size % self.shards:
      checks.fail(
        'shards',
        self.shards,
        f'does not divide batch_size={self.batch_size}; set it to 0 or to a '
        'divisor',
      )
    if self.shortest > self.arithmetic.operations:
      checks.fail(
        'shortest',
        self.shortest,
        f'is above arithmetic.operations={self.arithmetic.operations}',
      )
    if taken := {'train', 'dev'} & {*self.evaluations}:
      checks.fail(
        'evaluations',
        taken.pop(),
        'is the name of a split; give the evaluation another one',
      )
    if self.first_labels and not self.labels:
      checks.fail(
        'first_labels',
        self.first_labels,
        'set labels to the labelling job whose first chains are meant',
      )

  def _check_kind(self) -> None:
    """Raises Faults if a value is set that another `kind` would need."""
    of_files = ['train', 'evaluations', 'worked_answers', 'words_problems']
    if not self.labels:  # whose chains are decontaminated in every kind
      of_files.append('decontaminate')
    for kind, names in (('files', of_files), ('arithmetic', ('shortest',))):
      for name in names:
        if self.kind != kind and getattr(self, name):
          checks.fail(
            'kind',
            self.kind,
            f'{name} is unused; leave it out or set {kind!r}',
          )

  @property
  def evaluation_names(self) -> tuple[str, ...]:
    """Returns the names of the evaluations that this data has."""
    return tuple(self.evaluations) if self.kind == 'files' else (self.kind,)


@dataclasses.dataclass(frozen=True)
class ProblemsConfig(DrawConfig):
  """Says which problems a job works on.

  Attributes:
    kind: a domain whose truth is known; the words domain, whose test problems
      have templates of their own; or a file.
    words: settings of the words domain, as in the models' data.
    root: folder of the file; '' is the environment variable PRM_JAX_DATA.
    path: the file below it.
  """

  kind: Annotated[str, one_of(*DOMAINS, 'words', 'file')] = 'arithmetic'
  words: WordsConfig = WordsConfig()
  root: str = ''
  path: str = 'gsm8k/train.jsonl'

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_templates(self.words)
    if self.critiques.style and self.kind == 'file':
      checks.fail(
        'critiques.style',
        self.critiques.style,
        f"with kind={self.kind!r} there are no chains to judge: expected ''",
      )


@dataclasses.dataclass(frozen=True)
class SplitConfig(ProblemsConfig):
  """Says which problems of which split a job works on.

  Attributes:
    split: split of a domain; a file has no splits.
    first: number of the first problem of the split, or file, that is used.
    count: number of problems from there on; 0 is all.
  """

  split: Annotated[str, one_of(*SPLITS)] = 'train'
  first: Annotated[int, at_least(0)] = 0
  count: Annotated[int, at_least(0)] = 0

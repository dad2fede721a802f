"""Beam search with a PRM that keeps what it read, beside one that does not.

    python experiments/speed/tree_search.py

Both sides search the same problems in one process, in turn, with the same
weights: `TreeScorer`, and `Scorer.score_many` of whole texts. Writes
tree_search.json and the table of TREE_SEARCH.md beside this file.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Sequence

import jax

from prm_jax.data.domains import arithmetic
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.encoding import make_format
from prm_jax.inference.protocols import Scored, Scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.sharding import make_mesh
from prm_jax.search import run
from prm_jax.search.searching import Task
from prm_jax.training.train_state import make_params

HERE = pathlib.Path(__file__).parent
COMMAND = 'python experiments/speed/tree_search.py'
# It always slips, to any of 96 results: the leaves of a beam are different.
DOMAIN = ArithmeticConfig(modulus=97, operations=10, slip=1.0)
SAMPLES, WIDTH = 64, 4
WARMUP = 3  # rounds that compile
MAX_LENGTH = 8 * DOMAIN.operations + 6  # exact
MODELS = {  # random weights
  'arithmetic': dict(d_model=128, n_layers=3, n_heads=4, d_ff=384),
  'smollm2': dict(d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536),
}


class WholeTexts:
  """A `policy.StepScorer` that reads every chain from its beginning."""

  name = 'whole texts'
  counts_flops = False

  def __init__(self, scorer: Scorer):
    self._scorer = scorer

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    return [
      [Scored(tuple(map(float, scores)), 0)]
      for scores in self._scorer.score_many(requests)
    ]


class Watched:
  """A StepScorer whose time and requests are noted."""

  def __init__(self, scorer, now):
    self.name, self._scorer, self._now = scorer.name, scorer, now
    self.counts_flops = scorer.counts_flops
    self.seconds, self.asked = 0.0, []

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    began = self._now()
    answers = self._scorer.score(requests)
    self.seconds += self._now() - began
    self.asked += requests
    return answers


def make_scorer(name: str, devices: int) -> Scorer:
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
  """Different problems."""
  drawn = arithmetic.sample_problems(DOMAIN, problems, 0)
  solver = arithmetic.make_solver(DOMAIN)
  results = arithmetic.sample_results(solver, drawn, 1, 0)
  chains = arithmetic.to_chains(DOMAIN, drawn, results)
  return [Task(str(i), chain.problem) for i, chain in enumerate(chains)]


def unique_tokens(fmt, asked: Sequence[Scoring]) -> int:
  """Of the tree: every prompt and every step once."""
  sizes = {}
  for problem, steps in asked:
    sizes[problem] = len(fmt.encode_prompt(problem))
    for i, step in enumerate(steps):
      sizes[problem, *steps[: i + 1]] = len(fmt.encode_step(step, i == 0))
  return sum(sizes.values())


def search(tasks: Sequence[Task], policy, prm, now) -> tuple[float, list]:
  """Seconds of a beam search side by side, and what was found."""
  options = {'samples': SAMPLES, 'width': WIDTH}
  began = now()
  found = list(
    run(
      tasks,
      policy,
      prm,
      'beam',
      options,
      concurrent=len(tasks),
    )
  )
  return now() - began, sorted(found, key=lambda each: int(each.task.id))


def compare(name: str, side_by_side: int, args) -> dict:
  """Both sides on the same problems, new ones in every round."""
  now = time.process_time if args.clock == 'cpu' else time.perf_counter
  devices = math.gcd(SAMPLES, len(jax.devices()))
  scorer = make_scorer(name, devices)
  trees = TreeScorer(scorer, args.rows)
  policy = SolverPolicy(DOMAIN)
  sides = {'tree': trees, 'whole': WholeTexts(scorer)}
  tasks = make_tasks(side_by_side * (args.rounds + WARMUP))
  searches = {side: [] for side in sides}
  scoring = {side: [] for side in sides}
  read, unique, asked, apart = [], [], [], 0.0
  for n in range(args.rounds + WARMUP):
    part = tasks[n * side_by_side : (n + 1) * side_by_side]
    chosen = {}
    for side in [*sides] if n % 2 else [*sides][::-1]:
      watched = Watched(sides[side], now)
      tokens = trees.stats.tokens
      seconds, found = search(part, policy, watched, now)
      chosen[side] = [each.chosen.steps for each in found]
      if n < WARMUP:
        continue
      searches[side].append(seconds)
      scoring[side].append(watched.seconds)
      if side == 'tree':
        read.append(trees.stats.tokens - tokens)
        unique.append(unique_tokens(scorer.format, watched.asked))
        asked.append(len(watched.asked))
    # Equal up to rounding, so a tie may be broken in another way.
    same = map(tuple.__eq__, *map(tuple, chosen.values()))
    apart += 1 - statistics.mean(map(bool, same))

  def ratios(seconds: dict) -> list[float]:
    return [b / a for a, b in zip(*seconds.values(), strict=True)]

  row = {
    'model': name,
    'parameters': sum(x.size for x in jax.tree.leaves(scorer.params)),
    'problems': side_by_side,
    'scoring_seconds': scoring,
    'search_seconds': searches,
    'scoring_ratios': ratios(scoring),
    'search_ratios': ratios(searches),
    'chains_scored': asked,
    'tokens_read': read,
    'unique_tokens': unique,
    'other_choices': apart / (args.rounds + WARMUP),
    'programs': sorted(map(list, trees.stats.programs)),
    'clock': args.clock,
    'cores': len(os.sched_getaffinity(0)),
    'devices': devices,
    'jax': jax.__version__,
  }
  print(render({'rows': [row]}), flush=True)
  return row


def render(document: dict) -> str:
  lines = [
    '| model | problems at once | scoring, s | whole texts, s '
    '| ratio [min, max] | whole search, ratio [min, max] '
    '| tokens read / unique | programs | clock, cores, devices, rounds |',
    '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
  ]

  def told(ratios: Sequence[float]) -> str:
    median = statistics.median(ratios)
    return f'{median:.1f} [{min(ratios):.1f}, {max(ratios):.1f}]'

  for row in document['rows']:
    mine, other = map(statistics.median, row['scoring_seconds'].values())
    share = sum(row['tokens_read']) / sum(row['unique_tokens'])
    lines.append(
      f'| {row["model"]} | {row["problems"]} | {mine:.3f} | {other:.3f} '
      f'| {told(row["scoring_ratios"])} | {told(row["search_ratios"])} '
      f'| {share:.3f} | {len(row["programs"])} | {row["clock"]}, '
      f'{row["cores"]}, {row["devices"]}, {len(row["scoring_ratios"])} |'
    )
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS])
  parser.add_argument('--clock', choices=('wall', 'cpu'), default='wall')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--problems', type=int, nargs='+', default=[1, 4])
  parser.add_argument('--rows', type=int, default=1024)
  parser.add_argument('--devices', type=int, default=1)
  args = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', args.devices)
  kept = HERE / 'tree_search.json'
  rows = json.loads(kept.read_text())['rows'] if kept.exists() else []
  for model in args.models:
    for problems in args.problems:
      row = compare(model, problems, args)
      key = model, problems
      rows = [r for r in rows if (r['model'], r['problems']) != key] + [row]
      rows.sort(key=lambda r: ([*MODELS].index(r['model']), r['problems']))
      document = {'command': COMMAND, 'rows': rows}
      manifest.write_json(kept, document)
      readme_table.fill(HERE / 'TREE_SEARCH.md', render(document))


if __name__ == '__main__':
  main()

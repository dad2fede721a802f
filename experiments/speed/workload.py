"""What run.py measures: the model's shape, the chains, the candidates.

Both sides read the same JSON file. Steps that do not fit the window are left
out here, so that neither side truncates and both see the same tokens.
"""

import json
import os
import pathlib
from collections.abc import Sequence

from prm_jax.data.readers import read_chains
from prm_jax.encoding import DoesNotFit, StepFormat, make_format

SHAPE = {
  'vocab_size': 260,
  'd_model': 256,
  'n_layers': 6,
  'n_heads': 8,
  'n_kv_heads': 8,
  'd_ff': 1024,
  'norm_eps': 1e-6,
  'max_length': 1024,
}
CANDIDATES = 64


def data_root() -> pathlib.Path:
  """PRM_JAX_DATA, or shared/data beside the repository."""
  beside = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'
  return pathlib.Path(os.environ.get('PRM_JAX_DATA', beside))


def training_chains(root: pathlib.Path, fmt: StepFormat) -> list[dict]:
  """PRM800K trajectories, without the steps that do not fit the window."""
  chains, _ = read_chains(
    root / 'prm800k' / 'prm800k_subset.jsonl', 'prm800k_flat'
  )
  records = []
  for chain in chains:
    try:
      fits = len(fmt.encode(chain.problem, chain.steps).step_ends)
    except DoesNotFit:
      continue
    records.append(
      {
        'problem': chain.problem,
        'steps': chain.steps[:fits],
        'labels': [bool(label.value) for label in chain.labels[:fits]],
      }
    )
  return records


def median_problem(problems: Sequence[str]) -> int:
  """Index of the problem of median length, the first of equals."""
  order = sorted(range(len(problems)), key=lambda i: len(problems[i].encode()))
  return order[len(order) // 2]


def fitting(
  problem: str, candidates: Sequence[Sequence[str]], fmt: StepFormat
) -> list[Sequence[str]]:
  """The first CANDIDATES candidates that fit the window whole."""
  kept = []
  for steps in candidates:
    try:
      encoding = fmt.encode(problem, steps)
    except DoesNotFit:
      continue
    if len(encoding.step_ends) == len(steps):
      kept.append(steps)
  return kept[:CANDIDATES]


def prm800k_candidates(root: pathlib.Path, fmt: StepFormat) -> dict:
  """A PRM800K problem: its own trajectories, then those of other problems."""
  chains, _ = read_chains(
    root / 'prm800k' / 'prm800k_subset.jsonl', 'prm800k_flat'
  )
  problems = sorted({chain.problem for chain in chains})
  problem = problems[median_problem(problems)]
  own_first = sorted(chains, key=lambda chain: chain.problem != problem)
  candidates = fitting(problem, [c.steps for c in own_first], fmt)
  return {'problem': problem, 'candidates': candidates}


def gsm8k_candidates(root: pathlib.Path, fmt: StepFormat) -> dict:
  """A GSM8K problem: its own six solutions, then those of other problems."""
  path = root / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  chosen = median_problem([row['question'] for row in rows])
  rows = [rows[chosen], *rows[:chosen], *rows[chosen + 1 :]]
  solutions = [
    [line for line in c['text'].splitlines() if line.strip()]
    for row in rows[:CANDIDATES]
    for c in row['candidates']
  ]
  problem = rows[0]['question']
  candidates = fitting(problem, [s for s in solutions if s], fmt)
  return {'problem': problem, 'candidates': candidates}


def describe(task: dict, fmt: StepFormat) -> dict:
  """Lengths of a scoring task in tokens."""
  encoded = [fmt.encode(task['problem'], steps) for steps in task['candidates']]
  return {
    'prompt_tokens': encoded[0].prompt_length,
    'lengths': [len(e.tokens) for e in encoded],
  }


def make_workload(warmup_steps: int) -> dict:
  root = data_root()
  fmt = make_format('bytes', SHAPE['max_length'])
  tasks = {
    'gsm8k': gsm8k_candidates(root, fmt),
    'prm800k': prm800k_candidates(root, fmt),
  }
  tasks = {k: task | describe(task, fmt) for k, task in tasks.items()}
  train = training_chains(root, fmt)
  return {
    'shape': SHAPE,
    'warmup_steps': warmup_steps,
    'train': train,
    'train_lengths': [
      len(fmt.encode(c['problem'], c['steps']).tokens) for c in train
    ],
    'score': tasks,
  }

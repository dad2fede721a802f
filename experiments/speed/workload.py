"""What run.py measures: the models, the chains, the candidates.

Both sides read the same JSON file. Steps that do not fit the window are left
out here, so that neither side truncates and both see the same tokens.
"""

import json
import os
import pathlib
from collections.abc import Callable, Sequence

from prm_jax.data.encoding import DoesNotFit, StepFormat, make_format
from prm_jax.data.readers import read_chains
from prm_jax.inference.pretrained import open_pretrained

MAX_LENGTH = 1024
# Random weights over bytes, in the shape of a Llama.
SMALL = {
  'vocab_size': 260,
  'd_model': 256,
  'n_layers': 6,
  'n_heads': 8,
  'n_kv_heads': 8,
  'd_ff': 1024,
  'norm_eps': 1e-6,
}
CANDIDATES = 64
PROMPT_TOKENS = 200  # of the problem that SmolLM2 scores, as near as there is


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


def make_format_of(model: str) -> StepFormat:
  """Bytes for the small model, lines of text for SmolLM2."""
  if model == 'small':
    return make_format('bytes', MAX_LENGTH)
  return make_format(open_pretrained(model).tokenizer, MAX_LENGTH, 'Ċ')


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


def gsm8k_candidates(
  root: pathlib.Path,
  fmt: StepFormat,
  choose: Callable[[Sequence[str]], int] = median_problem,
) -> dict:
  """A GSM8K problem: its own six solutions, then those of other problems."""
  path = root / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  rows = [json.loads(line) for line in path.read_bytes().splitlines()]
  chosen = choose([row['question'] for row in rows])
  rows = [rows[chosen], *rows[:chosen], *rows[chosen + 1 :]]
  solutions = [
    [line for line in c['text'].splitlines() if line.strip()]
    for row in rows[:CANDIDATES]
    for c in row['candidates']
  ]
  problem = rows[0]['question']
  candidates = fitting(problem, [s for s in solutions if s], fmt)
  return {'problem': problem, 'candidates': candidates}


def encode(chain: dict, fmt: StepFormat) -> dict:
  """Ids and step ends, which the other side is handed."""
  tokens, step_ends, _ = fmt.encode(chain['problem'], chain['steps'])
  return {'tokens': tokens.tolist(), 'step_ends': step_ends.tolist()}


def describe(task: dict, fmt: StepFormat) -> dict:
  """A scoring task with its ids and their lengths in tokens."""
  encoded = [
    encode({'problem': task['problem'], 'steps': steps}, fmt)
    for steps in task['candidates']
  ]
  return task | {
    'encoded': encoded,
    'prompt_tokens': len(fmt.encode_prompt(task['problem'])),
    'lengths': [len(chain['tokens']) for chain in encoded],
  }


def make_workload(model: str, warmup_steps: int) -> dict:
  """All that both sides read.

  Args:
    model: 'small' or 'smollm2'.
  """
  root, fmt = data_root(), make_format_of(model)

  def nearest(problems: Sequence[str]) -> int:
    lengths = [len(fmt.encode_prompt(problem)) for problem in problems]
    return min(
      range(len(lengths)), key=lambda i: abs(lengths[i] - PROMPT_TOKENS)
    )

  if model == 'small':
    tasks = {
      'gsm8k': gsm8k_candidates(root, fmt),
      'prm800k': prm800k_candidates(root, fmt),
    }
  else:
    tasks = {'gsm8k': gsm8k_candidates(root, fmt, nearest)}
  return {
    'model': model,
    'max_length': MAX_LENGTH,
    'warmup_steps': warmup_steps,
    'train': [
      chain | encode(chain, fmt) for chain in training_chains(root, fmt)
    ],
    'score': {name: describe(task, fmt) for name, task in tasks.items()},
  }

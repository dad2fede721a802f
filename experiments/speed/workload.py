"""What run.py measures: the models, the chains and the candidates.

Both sides read the same JSON file. Steps that do not fit the window are left
out here, so neither side truncates and both see the same tokens.
"""

import json
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from experiments.label_sources.counting import read_labels
from experiments.runner import Runner
from prm_jax.data import tries
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.data.encoding import DoesNotFit, StepFormat, make_format
from prm_jax.data.readers import read_chains
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.runtime.errors import UserError

MAX_LENGTH = 1024
# A Llama over bytes, with random weights.
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
TEN_OPERATIONS = 'arithmetic.operations=10'
# SmolLM2 scores the problem whose prompt is nearest to this length.
PROMPT_TOKENS = 200


def data_root() -> pathlib.Path:
  """Returns the folder of the data files.

  Raises:
    UserError: there is none.
  """
  root = os.environ.get(DATA_VARIABLE)
  if not root or not pathlib.Path(root).is_dir():
    raise UserError(f'{DATA_VARIABLE} names no folder of data files')
  return pathlib.Path(root)


def training_chains(root: pathlib.Path, fmt: StepFormat) -> list[dict]:
  """Reads PRM800K trajectories, without steps that do not fit the window."""
  chains, _ = read_chains(
    root / 'prm800k' / 'prm800k_subset.jsonl', 'prm800k_flat'
  )
  return records_of(chains, fmt)


def records_of(chains: Sequence[Chain], fmt: StepFormat) -> list[dict]:
  """Writes chains as both sides read them: whole steps, a label for each.

  Where a step has no label of its own, the chain's outcome is its label, which
  changes no time.
  """
  records = []
  for chain in chains:
    try:
      fits = len(fmt.encode(chain.problem, chain.steps).step_ends)
    except DoesNotFit:
      continue
    values = [label.value for label in chain.labels] or [None] * fits
    records.append(
      {
        'problem': chain.problem,
        'steps': chain.steps[:fits],
        'labels': [
          bool(chain.outcome if value is None else value)
          for value in values[:fits]
        ],
      }
    )
  return records


def make_format_of(model: str) -> StepFormat:
  """Returns a model's text format: bytes, or lines of text for SmolLM2."""
  if model == 'small':
    return make_format('bytes', MAX_LENGTH)
  return make_format(open_pretrained(model).tokenizer, MAX_LENGTH, 'Ċ')


def median_problem(problems: Sequence[str]) -> int:
  """Returns the index of the problem of median length."""
  order = sorted(range(len(problems)), key=lambda i: len(problems[i].encode()))
  return order[len(order) // 2]


def fitting(
  problem: str, candidates: Sequence[Sequence[str]], fmt: StepFormat
) -> list[Sequence[str]]:
  """Returns the first CANDIDATES candidates that fit the window as a whole."""
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
  """Takes a PRM800K problem: its trajectories, then those of other problems."""
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
  """Takes a GSM8K problem: its six solutions, then those of other problems.

  Args:
    choose: returns the index of the problem to take.
  """
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


def sampled_candidates(runner: Runner, fmt: StepFormat) -> dict:
  """Samples a policy, trained here, on a problem that it was not trained on."""
  policy = runner.main(
    'policy_math.py:small',
    'policy',
    f'--config.data.{TEN_OPERATIONS}',
    '--config.data.max_length=87',
    '--config.data.row_length=348',
    '--config.data.max_steps_per_row=40',
    '--config.sampling.max_tokens=88',
  )
  samples = runner.main(
    'sample_math.py:small',
    'samples',
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={policy}',
    f'--config.problems.{TEN_OPERATIONS}',
    '--config.problems.train_problems=1',
    f'--config.samples={CANDIDATES}',
    '--config.seed=1',  # other problems than the policy's
  )
  chains = read_labels(samples)
  candidates = fitting(chains[0].problem, [c.steps for c in chains], fmt)
  return {'problem': chains[0].problem, 'candidates': candidates}


def encode(chain: dict, fmt: StepFormat) -> dict:
  """Returns the token ids and step ends of a chain, for the other side."""
  tokens, step_ends, _ = fmt.encode(chain['problem'], chain['steps'])
  return {'tokens': tokens.tolist(), 'step_ends': step_ends.tolist()}


def describe(task: dict, fmt: StepFormat) -> dict:
  """Adds token ids, and their lengths, to a scoring task."""
  encoded = [
    encode({'problem': task['problem'], 'steps': steps}, fmt)
    for steps in task['candidates']
  ]
  return task | {
    'encoded': encoded,
    'prompt_tokens': len(fmt.encode_prompt(task['problem'])),
    'lengths': [len(chain['tokens']) for chain in encoded],
    'unique_tokens': tries.unique_tokens(
      [np.array(chain['tokens']) for chain in encoded]
    ),
  }


def make_workload(model: str, warmup_steps: int, runner: Runner) -> dict:
  """Makes all that both sides read.

  Args:
    model: 'small' or 'smollm2'.
    runner: trains and samples a policy.
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
  tasks['sampled'] = sampled_candidates(runner, fmt)
  return {
    'model': model,
    'max_length': MAX_LENGTH,
    'warmup_steps': warmup_steps,
    'train': [
      chain | encode(chain, fmt) for chain in training_chains(root, fmt)
    ],
    'score': {name: describe(task, fmt) for name, task in tasks.items()},
  }

"""A job on JSON files that a test writes: the `human` config, a thousandth."""

import json
import pathlib
from typing import Any

# A config file as a person would write it; it builds on another.
CONFIG = """
import ml_collections

base = {{}}
exec(open('configs/prm_math.py').read(), base)


def get_config(arg=''):
  config = base['get_config']('human,tiny')
  config.unlock()
  config.data.update(
    root={root!r},
    train=(('train.jsonl', 'prm800k_flat'),),
    decontaminate=('known.jsonl',),
    dev_share=0.3,
    max_length=96,
    row_length=96,
    max_steps_per_row=8,
  )
  config.data.evaluations = ml_collections.ConfigDict(
    dict(bench=('bench.jsonl', 'processbench'))
  )
  config.evaluation.update(resamples=10, shown_chains=2)
  {change}
  return config.lock()
"""


def train_records(count: int = 24) -> list[dict[str, Any]]:
  """Sums in words; in every second one the second step is wrong."""
  return [
    {
      'id': f'train-{i}',
      'problem': f'Tom has {i} apples and buys {i + 1} more. How many?',
      'steps': [
        f'{i} + {i + 1} is what we need.',
        f'That is {2 * i + 1 - i % 2}.',
      ],
      'ratings': [1, -1 if i % 2 else 1],
    }
    for i in range(count)
  ]


def bench_records(count: int = 8) -> list[dict[str, Any]]:
  return [
    {
      'id': f'bench-{i}',
      'generator': 'nobody',
      'problem': f'Ann reads {i} pages a day for {i + 3} days. How many?',
      'steps': [f'{i} * {i + 3} is what we need.', f'It is {i * (i + 3)}.'],
      'final_answer_correct': i % 2 == 0,
      'label': -1 if i % 2 == 0 else 1,
    }
    for i in range(count)
  ]


def write_lines(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))


def write_job(folder: pathlib.Path, change: str = '') -> list[str]:
  """Data and config below `folder`; returns the arguments that run the job.

  Args:
    change: a statement on `config`, after all others.
  """
  root = folder / 'data'
  root.mkdir(parents=True)
  write_lines(root / 'train.jsonl', train_records())
  write_lines(root / 'bench.jsonl', bench_records())
  # The second training problem, spelled otherwise, is known elsewhere.
  write_lines(
    root / 'known.jsonl',
    [{'question': train_records()[1]['problem'].upper(), 'answer': '#### 3'}],
  )
  config = folder / 'job.py'
  config.write_text(CONFIG.format(root=str(root), change=change or 'pass'))
  return [f'--config={config}', f'--workdir={folder / "run"}']

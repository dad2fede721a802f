"""Tokens that the host prepares a second, from a data set that it knows.

    python -m experiments.speed.host

Encodes the PRM800K chains and the GSM8K pool for a small model's bytes and for
SmolLM2, as a training job does for its first run, and then makes batches of
what is kept on the disk, as every later run does. Writes host.json and the
table of HOST.md beside this file.
"""

import collections
import json
import pathlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.speed import sides, workload
from experiments.tables import table
from prm_jax.data import census as census_lib
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import StepFormat
from prm_jax.data.pipeline import make_batches
from prm_jax.data.targets import TargetConfig
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import exit_on_user_error

BATCHES = census_lib.BatchConfig(
  batch_size=16,
  row_length=4096,
  max_steps_per_row=512,
  seed=0,
  trees=True,
)
TARGETS = TargetConfig(after_first_error='keep')
MODELS = ('small', 'smollm2')


def pool_chains(root: pathlib.Path) -> list[Chain]:
  """Reads the solutions of the GSM8K pool as chains, a step for each line."""
  path = root / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  chains = []
  for line in path.read_bytes().splitlines():
    row = json.loads(line)
    for each in row['candidates']:
      steps = [text for text in each['text'].splitlines() if text.strip()]
      labels = tuple(StepLabel(1.0) for _ in steps)
      chains.append(Chain(row['question'], tuple(steps), labels=labels))
  return [chain for chain in chains if chain.steps]


def measure(
  name: str, chains: Sequence[Chain], fmt: StepFormat, seconds: float
) -> dict[str, Any]:
  """Measures the first run, the opening of a later one, and its batches.

  Args:
    seconds: time for which batches are made.
  """
  with tempfile.TemporaryDirectory() as parent:
    folder = pathlib.Path(parent) / 'census'
    began = time.perf_counter()
    census = census_lib.take_census(chains, fmt, TARGETS, BATCHES)
    census_lib.save(census, folder)
    first = time.perf_counter() - began
    began = time.perf_counter()
    batches = iter(make_batches(census_lib.read(folder), BATCHES))
    next(batches)
    opened = time.perf_counter() - began
    found: collections.Counter[str] = collections.Counter()
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
      batch = next(batches)
      found['chains'] += int(batch['flat_tokens'].sum())
      found['rows'] += int((batch['positions'] >= 0).sum())
  return {
    'data': name,
    'tokens': census.tokens,
    'encoded_per_second': census.tokens / first,
    'seconds_to_first_batch': opened,
    'rows_per_second': found['rows'] / taken,
    'chains_per_second': found['chains'] / taken,
  }


def render(document: Mapping[str, Any]) -> str:
  """Makes the table."""
  rows = [
    [
      row['data'],
      f'{row["tokens"]:,}',
      f'{row["encoded_per_second"]:,.0f}',
      f'{row["seconds_to_first_batch"]:.1f}',
      f'{row["rows_per_second"]:,.0f}',
      f'{row["chains_per_second"]:,.0f}',
    ]
    for row in document['rows']
  ]
  heads = (
    'data | tokens | first run: tokens/s encoded | later runs: seconds to the '
    'first batch | tokens/s in rows | tokens/s of the chains'
  )
  return table(heads, rows)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(__doc__, __file__)
  parser.add_argument('--seconds', type=float, default=20.0)
  args = command_line.parse(parser)
  root = workload.data_root()
  rows = []
  for model in MODELS:
    fmt = workload.make_format_of(model)
    prm800k = [
      Chain(
        each['problem'],
        tuple(each['steps']),
        labels=tuple(StepLabel(float(label)) for label in each['labels']),
      )
      for each in workload.training_chains(root, fmt)
    ]
    sets = {'PRM800K': prm800k, 'GSM8K pool': pool_chains(root)}
    for name, chains in sets.items():
      row = measure(f'{name}, {model}', chains, fmt, args.seconds)
      print(row, flush=True)
      rows.append(row)
  document = {
    'command': args.command,
    'git_commit': manifest.git_commit(),
    'cores': sides.cores(),
    'rows': rows,
  }
  command_line.write(
    args.output, document, render(document), 'host.json', 'HOST.md'
  )


if __name__ == '__main__':
  main()

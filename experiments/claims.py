"""What the literature claims, what we found, and whether the claim holds.

    python -m experiments.claims

Reads the results of every experiment, lets its claims.py answer its claims, and
fills the table of README.md beside this file. A verdict follows from the
numbers by the rule of its claim.
"""

import importlib
import json
import pathlib

from experiments.findings import MISSING, OPEN, Claim, Found
from experiments.tables import table
from prm_jax.report import readme_table

HERE = pathlib.Path(__file__).parent
# In the order of the table.
FOLDERS = (
  'prm_vs_orm',
  'human_labels',
  'smollm2_prm',
  'label_sources',
  'test_time_compute',
  'rl_process_vs_outcome',
  'reward_hacking',
  'after_first_error',
  'lm_loss',
  'labelled_chains',
  'prm_and_orm',
  'chain_length',
  'model_sizes',
  'out_of_distribution',
  'thinking_verifiers',
  'neutral_labels',
  'speed',
)


def answer(claim: Claim, folder: pathlib.Path) -> Found:
  """Finds what the results say of a claim, if the experiment was run."""
  path = folder / claim.results
  if not path.exists():
    return Found(MISSING, MISSING, MISSING, OPEN)
  return claim.find(json.loads(path.read_text()))


def render() -> str:
  """Makes the table of all claims."""
  rows = []
  for folder in FOLDERS:
    for claim in importlib.import_module(f'experiments.{folder}.claims').CLAIMS:
      found = answer(claim, HERE / folder)
      rows.append(
        [
          f'[{folder}]({folder})',
          claim.text,
          claim.literature,
          found.effect,
          found.null,
          found.interval,
          found.verdict,
        ]
      )
  return table(
    'experiment | claim | literature | here | null or baseline | '
    '95% interval over problems and seeds | verdict',
    rows,
  )


def main() -> None:
  text = render()
  readme_table.fill(HERE / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()

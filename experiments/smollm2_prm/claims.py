"""The claims of smollm2_prm."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Case, Claim, Effect, Found, judge
from experiments.tables import percent


def training_beats_likelihood(document: Mapping[str, Any]) -> Found:
  """Compares the trained row with the untrained one, on each set."""
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    ours, theirs = rows['likelihood'], rows['digit_likelihood']
    found = ours['minus_digit_likelihood']
    effect = Effect(found['difference'], found['ci95'])
    sides = f'{percent(ours["f1"])} to {percent(theirs["f1"])}'
    cases.append(Case(effect, name, sides, seeds=1))
    rules = ('digit_count', 'chain_length')
    best = max(rows[rule]['f1'] for rule in rules)
    nulls.append(f'a rule on digits or length {percent(best)} ({name})')
  return judge(cases, '; '.join(nulls))


CLAIMS = (
  Claim(
    'A 135M model trained on step labels finds errors better than its own '
    'likelihood does (F1)',
    'none',
    training_beats_likelihood,
  ),
)

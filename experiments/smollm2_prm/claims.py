"""What smollm2_prm is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found


def training_beats_likelihood(document: Mapping[str, Any]) -> Found:
  sets = document['results']['localisation']
  leads = {
    name: rows['likelihood']['minus_digit_likelihood']
    for name, rows in sets.items()
  }
  return Found(
    '; '.join(f'{100 * x["difference"]:+.1f} ({k})' for k, x in leads.items()),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in leads.values()
    ),
    [x['ci95'][0] > 0 for x in leads.values()],
  )


CLAIMS = (
  Claim(
    "A 135M model's training on step labels beats its own likelihood (F1)",
    'none',
    training_beats_likelihood,
  ),
)

"""The claims of smollm2_prm."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found
from experiments.tables import points, points_between


def training_beats_likelihood(document: Mapping[str, Any]) -> Found:
  """Finds whether the trained row's lead is above 0, on each set."""
  leads = {
    name: rows['likelihood']['minus_digit_likelihood']
    for name, rows in document['results']['localisation'].items()
  }
  return Found(
    '; '.join(f'{points(x["difference"])} ({k})' for k, x in leads.items()),
    '; '.join(points_between(x['ci95']) for x in leads.values()),
    [x['ci95'][0] > 0 for x in leads.values()],
  )


CLAIMS = (
  Claim(
    'A 135M model trained on step labels finds errors better than its own '
    'likelihood does (F1)',
    'none',
    training_beats_likelihood,
  ),
)

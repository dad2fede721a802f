"""The claims of test_time_compute."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found
from experiments.tables import points, points_between, times


def little_compute(document: Mapping[str, Any]) -> Found:
  """Finds how much less compute beam takes for best of 64's accuracy."""
  found = {}
  for k, results in document['results'].items():
    (reference,) = (
      it
      for it in results['times_less']
      if (it['method'], it['size']) == ('best of N, PRM', 64)
    )
    found[k] = reference['ours']['beam']
  return Found(
    '; '.join(
      f'{times(it["ratio"])} ({k} operations)' for k, it in found.items()
    ),
    '; '.join(
      ' to '.join(f'{bound:.1f}' for bound in it['ci95'])
      for it in found.values()
    ),
    [it['ci95'][0] >= 5 for it in found.values()],
  )


def beam_with_4(document: Mapping[str, Any]) -> Found:
  """Finds whether beam with 4 is within noise of best of 16, or above it."""
  found = {
    k: results['differences']['beam with 4 and best of 16 by PRM']
    for k, results in document['results'].items()
  }
  return Found(
    '; '.join(
      f'{points(it["mean"])} ({k} operations)' for k, it in found.items()
    ),
    '; '.join(points_between(it['ci95']) for it in found.values()),
    [it['ci95'][1] >= 0 for it in found.values()],
  )


CLAIMS = (
  Claim(
    "Beam search reaches best of 64's accuracy with a fifth of its compute "
    '(interpolated between sizes)',
    'aim of this project',
    little_compute,
  ),
  Claim(
    "Beam search with 4 chains reaches best of 16's accuracy (points)",
    'equal, on MATH (Beeching et al., 2024)',
    beam_with_4,
  ),
)

"""What test_time_compute is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found


def little_compute(document: Mapping[str, Any]) -> Found:
  """Beam's compute for what best of 64 reaches, by operations."""
  found = {}
  for k, results in document['results'].items():
    (asked,) = (
      each
      for each in results['times_less']
      if (each['method'], each['size']) == ('best of N, PRM', 64)
    )
    found[k] = asked['ours']['beam']
  return Found(
    '; '.join(f'{x["ratio"]:.1f}x ({k} operations)' for k, x in found.items()),
    '; '.join(
      ' to '.join(f'{bound:.1f}' for bound in x['ci95']) for x in found.values()
    ),
    [x['ci95'][0] >= 5 for x in found.values()],
  )


def beam_with_4(document: Mapping[str, Any]) -> Found:
  found = {
    k: results['differences']['beam with 4 and best of 16 by PRM']
    for k, results in document['results'].items()
  }
  return Found(
    '; '.join(
      f'{100 * x["mean"]:+.1f} ({k} operations)' for k, x in found.items()
    ),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in found.values()
    ),
    [x['ci95'][1] >= 0 for x in found.values()],
  )


CLAIMS = (
  Claim(
    "Beam search reaches best of 64's accuracy with a fifth of its compute "
    '(read off between sizes)',
    'aim of this project',
    little_compute,
  ),
  Claim(
    'Beam with 4 reaches best of 16 (points)',
    'equal, on MATH (Beeching et al., 2024)',
    beam_with_4,
  ),
)

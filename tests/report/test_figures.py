"""Ticks, labels, smoothing, thinning and intervals of the figures."""

import math

import pytest

from prm_jax.report import figures, svg
from prm_jax.report.sections import wilson


def test_ticks_are_round_and_inside():
  assert svg.nice_ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
  assert svg.nice_ticks(0.37, 0.98, 7) == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
  assert svg.nice_ticks(0.37, 0.98, 6) == [0.4, 0.6, 0.8]
  assert svg.nice_ticks(3, 3) == [3]


def test_labels_are_moved_apart_in_order_and_kept_inside():
  assert svg.spread([50, 52, 10], 20, 0, 100) == [50, 70, 10]
  assert svg.spread([95, 99, 97], 20, 0, 100) == [60, 100, 80]


def test_smoothing_is_a_bias_corrected_average():
  assert figures.smooth([3.0, 3.0, math.nan, 3.0], 5) == pytest.approx([3] * 4)
  assert figures.smooth([1.0, 4.0], 0) == [1.0, 4.0]
  decay = math.exp(-1 / 2)
  expected = (decay * 1 + 5) / (decay + 1)
  assert figures.smooth([1.0, 5.0], 2)[1] == pytest.approx(expected)


def test_thinning_keeps_every_spike():
  points = [(t, 1.0) for t in range(10_000)]
  points[7_654] = (7_654, 9.0)
  points[3_210] = (3_210, -9.0)
  kept = svg.thin(points)
  assert len(kept) <= svg.MAX_VERTICES
  assert (7_654, 9.0) in kept and (3_210, -9.0) in kept
  assert kept == sorted(kept)


def test_wilson_interval_solves_its_own_equation():
  # Its ends solve |share - p| = z sqrt(p (1 - p) / n).
  for share, count in ((0.2, 40), (0.97, 300), (0.5, 1)):
    for p in wilson(share, count):
      width = 1.959964 * math.sqrt(p * (1 - p) / count)
      assert abs(share - p) == pytest.approx(width, rel=1e-9)

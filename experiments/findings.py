"""A claim of the literature, what our results say of it, and whether it holds.

The claims.py of each experiment lists its claims with these types. A claim is
about one or more cases. The effect of a case is a paired difference of two
methods on the same seeds, or a ratio, with an interval over problems and seeds
(`prm_jax.evals.over_seeds`). A case holds where the whole interval lies in the
region that the claim names, fails where all of it lies outside, and is open
otherwise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import ablations
from experiments.tables import (
  mean,
  percent,
  points,
  points_between,
  ratio_between,
  times,
)
from prm_jax.evals import over_seeds

HOLDS, FAILS, OPEN = 'holds', 'fails', 'open'
MISSING = 'not measured yet'
Region = tuple[float, float]
ABOVE: Region = (0.0, math.inf)
BELOW: Region = (-math.inf, 0.0)


class Effect(NamedTuple):
  """The effect of a case, with its 95% interval.

  Attributes:
    value: the effect, or None for a ratio that is never reached.
    ci95: lower and upper end; None where there is one seed or round only.
    open: whether the lower end is somewhere below the number given, and the
      upper end somewhere above, as those of ratios may be.
    at_least: whether the value itself is only known to be at least this.
  """

  value: float | None
  ci95: Sequence[float] | None
  open: Sequence[bool] = (False, False)
  at_least: bool = False


class Case(NamedTuple):
  """One case that a claim is about.

  Attributes:
    effect: its effect; None where the results lack it.
    name: what tells it from the other cases; '' for a single one.
    sides: the two numbers that are compared, as text; '' where that is no help.
    seeds: number of seeds; 0 where repetitions are no seeds.
  """

  effect: Effect | None
  name: str = ''
  sides: str = ''
  seeds: int = 0

  def verdict(self, region: Region) -> str:
    """Says whether the interval lies in the region, outside it, or on both."""
    if self.effect is None or self.effect.ci95 is None:
      return OPEN
    low, high = (
      beyond if is_open else end
      for end, is_open, beyond in zip(
        self.effect.ci95, self.effect.open, (-math.inf, math.inf), strict=True
      )
    )
    least, most = region
    inside = least <= low and high <= most
    outside = high <= least or low >= most
    # Seeds that agree by accident, or at 0 or 1, say nothing of their spread.
    if inside == outside or low == high:
      return OPEN
    return HOLDS if inside else FAILS


class Found(NamedTuple):
  """What our results say of a claim, as the table's cells.

  Attributes:
    effect: the effect of each case, with its unit.
    null: the null or baseline, with its number.
    interval: the 95% interval of each effect.
    verdict: whether the claim holds.
  """

  effect: str
  null: str
  interval: str
  verdict: str


Finder = Callable[[Mapping[str, Any]], Found]  # takes a results.json


class Claim(NamedTuple):
  """A claim, and how the results of an experiment answer it.

  Attributes:
    text: the claim.
    literature: what others found, with its source.
    find: reads the answer from the results.
    results: name of the file with the results.
  """

  text: str
  literature: str
  find: Finder
  results: str = 'results.json'


class Unit(NamedTuple):
  """How effects are shown: one of them, and an interval with its open ends."""

  show: Callable[[float], str]
  between: Callable[[Sequence[float], Sequence[bool]], str]


POINTS = Unit(
  lambda value: f'{points(value)} points',
  lambda ci95, open_ends: points_between(ci95),
)
TIMES = Unit(times, ratio_between)


def judge(
  cases: Sequence[Case],
  null: str,
  region: Region = ABOVE,
  unit: Unit = POINTS,
) -> Found:
  """Judges a claim by its cases.

  Args:
    cases: the cases; without any the claim is not measured yet.
    null: the null or baseline, with its number.
    region: where an effect has to lie, in shares or as a ratio.
    unit: how effects are shown.
  """
  if not cases:
    return Found(MISSING, null, MISSING, OPEN)
  effects, intervals = [], []
  for case in cases:
    notes = '; '.join(filter(None, (case.sides, case.name)))
    note = f' ({notes})' if notes else ''
    if case.effect is None:
      effects.append(f'{MISSING}{note}')
      intervals.append(MISSING)
      continue
    value, ci95, open_ends, at_least = case.effect
    shown = 'never' if value is None else unit.show(value)
    effects.append('at least ' * at_least + shown + note)
    intervals.append(unit.between(ci95, open_ends) if ci95 else MISSING)
  seeds = sorted({it.seeds for it in cases if it.effect and it.effect.ci95})
  about = {0: ', over rounds', 1: ', problems of one seed'}
  measured = any(case.effect for case in cases)
  return Found(
    '; '.join(effects) if measured else MISSING,
    null,
    ('; '.join(intervals) if {*intervals} != {MISSING} else MISSING)
    + ''.join(about.get(count, f', {count} seeds') for count in seeds),
    row_verdict([case.verdict(region) for case in cases]),
  )


def row_verdict(verdicts: Sequence[str]) -> str:
  """Says in how many cases a claim holds, and in how many it fails."""
  count = len(verdicts)
  found = {it: verdicts.count(it) for it in (HOLDS, FAILS) if it in verdicts}
  if not found:
    return OPEN
  if [*found.values()] == [count]:
    return verdicts[0]
  parts = ', '.join(f'{verdict} in {some}' for verdict, some in found.items())
  return f'{parts} of {count}'


def over(
  values: Sequence[float],
  ci95: Sequence[Sequence[float]] | None = None,
  limit: float = 1.0,
) -> Effect:
  """Returns an effect with its interval over seeds that have own problems.

  Args:
    values: the effect in each seed.
    ci95: its interval over problems in each; None where they are not known.
    limit: no effect is above this or below minus this: 1 for shares and their
      differences.
  """
  if len(values) < 2:
    return Effect(mean(values), None)
  errors = None if ci95 is None else over_seeds.error_of(np.array(ci95))
  found = over_seeds.independent(np.array(values), errors)
  ends = np.clip((found.low, found.high), -limit, limit)
  return Effect(float(found.mean), ends.tolist())


def crossed(values: Sequence[float], errors: np.ndarray | None) -> Effect:
  """Returns an effect with its interval over seeds that share the problems.

  Args:
    values: the effect in each seed.
    errors: its standard error over the problems; None where it is not known.
  """
  if errors is None:
    return Effect(mean(values), None)
  found = over_seeds.crossed(np.array(values), errors)
  return Effect(float(found.mean), [float(found.low), float(found.high)])


def lead(
  ours: Sequence[float] | None,
  theirs: Sequence[float] | None,
  name: str = '',
  ci95: Sequence[Sequence[float]] | None = None,
) -> Case:
  """Makes a case of a paired difference, in each seed ours minus theirs.

  Args:
    ours: a share for each seed; None where it was not measured.
    theirs: another share for the same seeds; None where it was not measured.
    name: what tells this case from the others.
    ci95: interval of the difference over the problems of each seed.
  """
  if ours is None or theirs is None:
    return Case(None, name)
  return Case(
    over([a - b for a, b in zip(ours, theirs, strict=True)], ci95),
    name,
    f'{percent(mean(ours))} to {percent(mean(theirs))}',
    len(ours),
  )


def baseline(name: str, values: Sequence[float] | None) -> str:
  """Formats a null or baseline: its name, and the mean of its seeds."""
  return f'{name} {percent(mean(values)) if values else MISSING}'


def arm_leads(
  first: str, second: str, name: str, nulls: Mapping[str, tuple[str, str]]
) -> Finder:
  """Makes a finder of whether one arm of an ablation measures more.

  Args:
    first: the arm that is claimed to be above `second`.
    name: what both measure.
    nulls: name of each null or baseline -> its arm and measure.
  """

  def find(document: Mapping[str, Any]) -> Found:
    ours, theirs = (
      ablations.values(document, arm, name) for arm in (first, second)
    )
    shown = [
      baseline(null, ablations.values(document, *where))
      for null, where in nulls.items()
    ]
    return judge([lead(ours, theirs)], '; '.join(shown))

  return find

"""The claims of speed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.findings import (
  Case,
  Claim,
  Effect,
  Finder,
  Found,
  Unit,
  judge,
  over,
)
from experiments.speed.rl import at_equal_updates, extrapolated
from experiments.speed.training_trees import ratios as ratios_of
from experiments.tables import times

UNIT = Unit(
  lambda ratio: times(ratio, 2),
  lambda ci95, open_ends: f'{ci95[0]:.2f} to {ci95[1]:.2f}',
)


def by_rounds(
  ratios: Mapping[str, Sequence[float]], least: float, theirs: str
) -> Found:
  """Finds whether ours is fast enough, for each case.

  The interval is over rounds on one machine: Student's t of the logarithms.

  Args:
    ratios: how many times faster ours is in each round, by case.
    least: the ratio that is claimed.
    theirs: what is as fast as itself.
  """
  cases = []
  for name, rounds in ratios.items():
    effect = over(np.log(rounds).tolist(), limit=math.inf)
    ci95 = effect.ci95 and np.exp(effect.ci95).tolist()
    count = f'{len(rounds)} round{"s" * (len(rounds) > 1)}'
    cases.append(Case(Effect(math.exp(effect.value), ci95), f'{name}, {count}'))
  return judge(cases, f'{theirs} 1.00x', (least, math.inf), UNIT)


def batch_jobs(what: str, least: float) -> Finder:
  """Makes a finder of training or scoring, each side in its better dtype."""

  def find(document: Mapping[str, Any]) -> Found:
    ratios = {
      row['what'].replace(what, model): row['ratio']['values']
      for model, found in document['models'].items()
      for row in found['rows']
      if row['what'].startswith(what)
      and (model == 'small' or row['dtype'] == 'better of both')
    }
    return by_rounds(ratios, least, 'the PyTorch tools')

  return find


def cache_pays(document: Mapping[str, Any]) -> Found:
  """Compares scoring with a cache and from whole texts."""
  ratios = {
    f'{row["model"]}, {row["problems"]} at once': row['scoring_ratios']
    for row in document['rows']
  }
  return by_rounds(ratios, 5.0, 'whole texts')


def sampling_is_fast(document: Mapping[str, Any]) -> Found:
  """Compares the sampler with that of transformers."""
  ratios = {
    f'{row["model"]}, {row["what"]}': row['ratios'] for row in document['rows']
  }
  return by_rounds(ratios, 3.0, '`transformers.generate`')


def loop_is_fast(document: Mapping[str, Any]) -> Found:
  """Compares the RL loop with that of TRL."""
  ratios = {row['rewards']: row['ratio']['wall'] for row in document['rows']}
  return by_rounds(ratios, 3.0, 'GRPOTrainer')


def races_are_short(document: Mapping[str, Any]) -> Found:
  """Compares the times of as many updates as ours took to 90%.

  How many a side needs to come so far is luck more than speed.
  """
  ratios = {
    f'{row["rewards"]}, {extrapolated(row)} extrapolated': at_equal_updates(row)
    for row in document['rows']
    if row['races']['ours']
  }
  return by_rounds(ratios, 2.0, 'GRPOTrainer')


def trees_pay(data: Sequence[str], least: float) -> Finder:
  """Makes a finder of training on trees beside TRL on chains, on some data."""

  def find(document: Mapping[str, Any]) -> Found:
    ratios = {
      f'{row["data"]}, {row["shared"]:.1f} times shared': ratios_of(row, 'TRL')
      for row in document['rows']
      if row['data'] in data
    }
    return by_rounds(ratios, least, "TRL's PRMTrainer")

  return find


CLAIMS = (
  Claim(
    'Training reads at least as many tokens a second as the PyTorch tools',
    'aim of this project',
    batch_jobs('training', 1.0),
  ),
  Claim(
    'Training on trees, whose chains share several times their tokens, reads '
    'them at least 4x as fast as TRL reads the chains',
    'aim of this project; 6.2x over chains (Tree Training, arXiv 2511.00413)',
    trees_pay(('OmegaPRM', 'PRM800K sessions'), 4.0),
    'training_trees.json',
  ),
  Claim(
    'Training on solutions of the same problems is at least 1.5x as fast',
    'aim of this project',
    trees_pay(('GSM8K pool', 'PRM800K flat'), 1.5),
    'training_trees.json',
  ),
  Claim(
    'Scoring the candidates of a problem is at least 3x as fast',
    'aim of this project',
    batch_jobs('scoring', 3.0),
  ),
  Claim(
    'A PRM that keeps its cache scores a beam at least 5x as fast as one that '
    'reads whole texts',
    'aim of this project',
    cache_pays,
    'tree_search.json',
  ),
  Claim(
    'The sampler is at least 3x as fast as `transformers.generate`',
    'aim of this project',
    sampling_is_fast,
    'sampling.json',
  ),
  Claim(
    "The RL loop is at least 3x as fast as TRL's GRPOTrainer (float32, CPU)",
    'aim of this project',
    loop_is_fast,
    'rl.json',
  ),
  Claim(
    'RL reaches 90% right in half of the time that GRPOTrainer takes for as '
    'many updates (float32, CPU)',
    'aim of this project',
    races_are_short,
    'rl.json',
  ),
)

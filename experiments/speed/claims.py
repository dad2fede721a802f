"""The claims of speed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.findings import Claim, Finder, Found
from experiments.tables import times


def by_rounds(
  ratios: Mapping[str, Sequence[float]], least: float, digits: int = 2
) -> Found:
  """Finds whether the median of the rounds is large enough, for each case.

  Args:
    ratios: how many times faster ours is in each round, by case.
    least: the ratio that is claimed.
  """
  medians = {name: statistics.median(rounds) for name, rounds in ratios.items()}
  spreads = [
    f'{min(rounds):.{digits}f} to {max(rounds):.{digits}f}'
    for rounds in ratios.values()
  ]
  return Found(
    '; '.join(f'{times(x, digits)} ({name})' for name, x in medians.items()),
    f'of rounds: {"; ".join(spreads)}',
    [ratio >= least for ratio in medians.values()],
  )


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
    return by_rounds(ratios, least)

  return find


def cache_pays(document: Mapping[str, Any]) -> Found:
  """Compares scoring with a cache and from whole texts."""
  ratios = {
    f'{row["model"]}, {row["problems"]} at once': row['scoring_ratios']
    for row in document['rows']
  }
  return by_rounds(ratios, least=5, digits=1)


def sampling_is_fast(document: Mapping[str, Any]) -> Found:
  """Compares the sampler with that of transformers."""
  ratios = {
    f'{row["model"]}, {row["what"]}': row['ratios'] for row in document['rows']
  }
  return by_rounds(ratios, least=3)


def loop_is_fast(document: Mapping[str, Any]) -> Found:
  """Compares the RL loop with that of TRL."""
  ratios = {row['rewards']: row['ratio']['wall'] for row in document['rows']}
  return by_rounds(ratios, least=3)


CLAIMS = (
  Claim(
    'Training reads at least as many tokens a second as the PyTorch tools',
    'aim of this project',
    batch_jobs('training', 1.0),
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
)

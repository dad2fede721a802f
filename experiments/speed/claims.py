"""What speed is asked, and how its results answer."""

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found


def batch_jobs(what: str, times: float) -> Finder:
  """Training or scoring beside the PyTorch tools, each in its better dtype."""

  def find(document: Mapping[str, Any]) -> Found:
    ratios = {
      row['what'].replace(what, model): row['ratio']
      for model, found in document['models'].items()
      for row in found['rows']
      if row['what'].startswith(what)
      and (model == 'small' or row['dtype'] == 'better of both')
    }
    return Found(
      '; '.join(f'{x["median"]:.2f}x ({name})' for name, x in ratios.items()),
      'of rounds: '
      + '; '.join(f'{x["min"]:.2f} to {x["max"]:.2f}' for x in ratios.values()),
      [x['median'] >= times for x in ratios.values()],
    )

  return find


def rereads_nothing(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  medians = [statistics.median(row['scoring_ratios']) for row in rows]
  return Found(
    '; '.join(
      f'{ratio:.1f}x ({row["model"]}, {row["problems"]} at once)'
      for ratio, row in zip(medians, rows, strict=True)
    ),
    'of rounds: '
    + '; '.join(
      f'{min(r["scoring_ratios"]):.1f} to {max(r["scoring_ratios"]):.1f}'
      for r in rows
    ),
    [ratio >= 5 for ratio in medians],
  )


def sampling_is_fast(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  return Found(
    '; '.join(f'{r["ratio"]:.2f}x ({r["model"]}, {r["what"]})' for r in rows),
    'of rounds: '
    + '; '.join(
      f'{min(r["ratios"]):.2f} to {max(r["ratios"]):.2f}' for r in rows
    ),
    [r['ratio'] >= 3 for r in rows],
  )


def loop_is_fast(document: Mapping[str, Any]) -> Found:
  ratios = {row['rewards']: row['ratio']['wall'] for row in document['rows']}
  medians = {name: statistics.median(each) for name, each in ratios.items()}
  return Found(
    '; '.join(f'{ratio:.2f}x ({name})' for name, ratio in medians.items()),
    'of rounds: '
    + '; '.join(
      f'{min(each):.2f} to {max(each):.2f}' for each in ratios.values()
    ),
    [ratio >= 3 for ratio in medians.values()],
  )


CLAIMS = (
  Claim(
    'Training takes as many tokens a second as the PyTorch tools',
    'aim of this project',
    batch_jobs('training', 1.0),
  ),
  Claim(
    'Scoring the candidates of a problem is at least 3x as fast',
    'aim of this project',
    batch_jobs('scoring', 3.0),
  ),
  Claim(
    'A PRM that keeps its cache scores a beam at least 5x faster than from '
    'whole texts',
    'aim of this project',
    rereads_nothing,
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

"""Traps of judging steps, on human labels.

Each function measures one trap and returns what results.json keeps.
"""

import functools
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from configs import prm_math
from experiments.evaluation_traps.choosing import RESAMPLES, read_committed
from prm_jax.data import datasets
from prm_jax.data.chains import Chain
from prm_jax.data.config import DataConfig
from prm_jax.data.encoding import DoesNotFit, StepFormat
from prm_jax.data.tokenizer import ByteTokenizer
from prm_jax.evals import localisation, nulls, steps, suite, trivial
from prm_jax.evals.ranking import Ranked, auc_ci
from prm_jax.jobs import settings
from prm_jax.runtime import paths

WINDOWS = (256, 512, 1024, 2048, 4096, 8192)
DRAWS = 200
SIZES = (25, 50, 100, 200, 400)  # chains on which a threshold is chosen


class Labelled(NamedTuple):
  """Holds chains with step labels, as padded arrays.

  Attributes:
    chains: M chains.
    labels: [M, P] 1 for right, 0 for wrong or unknown.
    judged: [M, P] steps up to and including the first error.
    mask: [M, P] steps that exist.
    first: [M] first errors, -1 for none.
    problems: [M] ids of the problems.
  """

  chains: Sequence[Chain]
  labels: np.ndarray
  judged: np.ndarray
  mask: np.ndarray
  first: np.ndarray
  problems: np.ndarray


def labelled(chains: Sequence[Chain]) -> Labelled:
  labels, known, first = suite.label_arrays(chains)
  _, mask = steps.pad([[0.0] * len(chain.steps) for chain in chains])
  judged = known & steps.until_first_error(labels, known)
  problems = suite.problem_ids(chains)
  return Labelled(chains, labels, judged, mask, first, problems)


@functools.cache
def read_data(root: pathlib.Path) -> dict[str, Labelled]:
  """Reads the data of configs/prm_math.py:human: train, dev, gsm8k, math."""
  config = prm_math.get_config('human')
  config.data.root = str(root)
  data: DataConfig = settings.read_settings(config.to_dict()).data
  with tempfile.TemporaryDirectory() as aside:
    splits = datasets.file_splits(data, 0, paths.open_path(aside), print)
  parts = {'train': splits.train, 'dev': splits.dev, **splits.evaluations}
  return {name: labelled(chains) for name, chains in parts.items()}


def steps_read(chain: Chain, window: int) -> int:
  """Counts the steps of a chain that a byte-level model reads."""
  try:
    encoded = StepFormat(ByteTokenizer(), window).encode(
      chain.problem, chain.steps
    )
  except DoesNotFit:
    return 0
  return len(encoded.step_ends)


def measure_unread(root: pathlib.Path) -> dict[str, Any]:
  """Scores ProcessBench by a reader without fault that has a window.

  Either a step that was not read counts as right, or a chain with such a step
  and no flagged one has no verdict.
  """
  found: dict[str, Any] = {'windows': list(WINDOWS)}
  for name in ('gsm8k', 'math'):
    data = read_data(root)[name]
    # Truth up to the first error; what follows it is not looked at.
    truth = np.where(data.judged, data.labels, 1.0)
    rows = []
    for window in WINDOWS:
      read = np.array([steps_read(chain, window) for chain in data.chains])
      seen = steps.scored_mask(data.mask, read)
      honest = localisation.at_threshold(
        truth, data.mask, data.first, 0.5, read
      )
      flattering = localisation.at_threshold(
        np.where(seen, truth, 1.0), data.mask, data.first, 0.5
      )
      rows.append(
        {
          'window': window,
          'steps_read': float(seen.sum() / data.mask.sum()),
          'chains_read': float((seen == data.mask).all(1).mean()),
          'without_verdict': honest,
          'unread_is_right': flattering,
        }
      )
    found[name] = rows
  return found


class Scorer(NamedTuple):
  """Scores steps by a logistic regression on features of their text."""

  names: Sequence[str]
  mean: np.ndarray
  spread: np.ndarray
  weights: np.ndarray  # the last one is the bias

  def scores(self, chains: Sequence[Chain]) -> np.ndarray:
    """Returns the probability that each step is right, [M, P]."""
    features = (features_of(chains, self.names) - self.mean) / self.spread
    logits = features @ self.weights[:-1] + self.weights[-1]
    return 1 / (1 + np.exp(-logits))


def features_of(chains: Sequence[Chain], names: Sequence[str]) -> np.ndarray:
  """Returns features of every step, [M, P, F]."""
  return np.stack([trivial.scores(chains, name) for name in names], axis=-1)


def fit(data: Labelled, names: Sequence[str], ridge: float = 1e-6) -> Scorer:
  """Fits the labels of the judged steps by Newton's method."""
  x = features_of(data.chains, names)[data.judged]
  y = data.labels[data.judged]
  mean, spread = x.mean(0), x.std(0)
  x = np.c_[(x - mean) / spread, np.ones(len(x))]
  weights = np.zeros(x.shape[1])
  for _ in range(25):
    p = 1 / (1 + np.exp(-x @ weights))
    hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x)
    gradient = x.T @ (y - p) / len(x) - ridge * weights
    weights += np.linalg.solve(hessian + ridge * np.eye(len(weights)), gradient)
  return Scorer(tuple(names), mean, spread, weights)


def measure_length(root: pathlib.Path) -> dict[str, Any]:
  """Ranks human-labelled steps by what needs no reading, and by PRMs."""
  data = read_data(root)
  fitted = {
    name: fit(data['train'], [name]) for name in ('length', 'digits', 'place')
  }
  fitted['all three'] = fit(data['train'], ['length', 'digits', 'place'])
  found: dict[str, Any] = {'train_steps': int(data['train'].judged.sum())}
  committed = read_committed('human_labels')['results']['calibration']
  for name in ('gsm8k', 'math'):
    part = data[name]
    right = part.labels[part.judged] >= 0.5
    of_step = np.repeat(part.problems[:, None], part.mask.shape[1], 1)
    rows = {}
    for method, scorer in fitted.items():
      scores = scorer.scores(part.chains)[part.judged]
      value, ci95 = auc_ci(
        Ranked(scores, right, of_step[part.judged]), 0, RESAMPLES
      )
      rows[method] = {'value': value, 'ci95': ci95}
    theirs = committed[name]
    rows['PRM'] = {
      'value': theirs['first_error_auc'],
      'ci95': (theirs.get('ranking') or {}).get('ci95'),
    }
    found[name] = {'steps': int(part.judged.sum()), 'auc': rows}
  return found


def measure_thresholds(root: pathlib.Path) -> dict[str, Any]:
  """Chooses thresholds on other kinds of chains, and on the reported set."""
  data = read_data(root)
  scorer = fit(data['train'], ['length', 'digits', 'place'])
  sets: dict[str, Any] = {}
  dev = data['dev']
  on_dev, of_dev = localisation.choose_threshold(
    scorer.scores(dev.chains), dev.mask, dev.first
  )
  for name in ('gsm8k', 'math'):
    part = data[name]
    scores = scorer.scores(part.chains)
    own, upper = localisation.choose_threshold(scores, part.mask, part.first)
    grid = np.quantile(scores[part.mask], np.linspace(0, 1, 101))
    sets[name] = {
      'curve': [
        [float(t), _f1(scores, part, t)] for t in np.unique(grid).tolist()
      ],
      'from_dev': {'threshold': on_dev, 'f1': _f1(scores, part, on_dev)},
      'from_other_half': _by_halves(scores, part),
      'from_itself': {'threshold': own, 'f1': upper},
      'noise': nulls.noise(part.mask, part.first)['f1'],
      'noise_drawn': _noise_drawn(part),
    }
  return {
    'dev': {
      'f1': of_dev,
      'threshold': on_dev,
      'wrong': float((dev.first >= 0).mean()),
    },
    'wrong': {n: float((data[n].first >= 0).mean()) for n in ('gsm8k', 'math')},
    'sets': sets,
    'optimism': _optimism(data['math']),
  }


def _f1(scores: np.ndarray, part: Labelled, threshold: float) -> float:
  found = localisation.at_threshold(scores, part.mask, part.first, threshold)
  return float(found['f1'] or 0.0)


def _by_halves(scores: np.ndarray, part: Labelled) -> dict[str, Any]:
  """Judges each half of the problems at the threshold of the other half."""
  odd = part.problems % 2 == 1
  predicted = np.empty(len(part.first), np.int64)
  for half in (odd, ~odd):
    threshold, _ = localisation.choose_threshold(
      scores[~half], part.mask[~half], part.first[~half]
    )
    predicted[half] = localisation.predict_first_error(
      scores[half], part.mask[half], threshold
    )
  return {'f1': localisation.localisation(predicted, part.first)['f1']}


def _noise_drawn(part: Labelled) -> dict[str, float]:
  """Draws noise and takes each draw's own best threshold of this set."""
  rng = np.random.default_rng(0)
  best = [
    localisation.choose_threshold(
      rng.random(part.mask.shape), part.mask, part.first
    )[1]
    for _ in range(DRAWS)
  ]
  low, high = np.quantile(best, [0.025, 0.975])
  return {'mean': float(np.mean(best)), 'low': float(low), 'high': float(high)}


def _optimism(part: Labelled) -> list[dict[str, float]]:
  """Chooses a threshold of noise on few chains; compares with all others."""
  rng = np.random.default_rng(1)
  rows = []
  for size in SIZES:
    on_itself, on_others = [], []
    while len(on_itself) < DRAWS:
      order = rng.permutation(len(part.first))
      few, rest = order[:size], order[size:]
      scores = rng.random(part.mask.shape)
      threshold, f1 = localisation.choose_threshold(
        scores[few], part.mask[few], part.first[few]
      )
      on_itself.append(f1)
      others = localisation.at_threshold(
        scores[rest], part.mask[rest], part.first[rest], threshold
      )
      on_others.append(others['f1'])
    rows.append(
      {
        'chains': size,
        'on_itself': float(np.mean(on_itself)),
        'on_others': float(np.mean(on_others)),
      }
    )
  return rows


def measure_calibration(runs: Mapping[str, Any]) -> dict[str, Any]:
  """Reads how trained PRMs are calibrated, over all steps and the unsure."""
  found = {}
  for seed, run in runs.items():
    of = run['calibration']['arithmetic']
    curve = of['reliability']
    filled = [k for k, count in enumerate(curve['count']) if count]
    bins = [
      {name: curve[name][k] for name in ('score', 'accuracy', 'count')}
      for k in filled
    ]
    right = sum(b['count'] * b['accuracy'] for b in bins) / of['count']
    found[seed] = {
      'ece': of['ece'],
      'log_loss': of['log_loss'],
      'constant_log_loss': float(
        -right * np.log(right) - (1 - right) * np.log1p(-right)
      ),
      'unsure': of['unsure'],
      'steps': of['count'],
      'bins': bins,
      'never_right': _never_right(bins),
    }
  return found


def _never_right(bins: Sequence[Mapping[str, float]]) -> dict[str, Any]:
  """Finds the bins from .05 on of which no step is right."""
  empty = [b for b in bins if b['score'] >= 0.05 and b['accuracy'] == 0]
  return {
    'bins': len(empty),
    'lowest': min((b['score'] for b in empty), default=None),
    'highest': max((b['score'] for b in empty), default=None),
    'steps': int(sum(b['count'] for b in empty)),
  }

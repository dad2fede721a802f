"""The step scores of every row: of the text, of a backbone, of heads, trained.

features that a job with `frozen.heads` kept -> likelihoods, heads -> Scores
step_scores.jsonl of a training run -> Scores
"""

import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.smollm2_prm import recipes
from prm_jax.data.chains import Chain, evenly_spaced
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.segments import score_pieces, split_chain
from prm_jax.data.verify.calculator import check_step
from prm_jax.evals import trivial
from prm_jax.evals.best_of_n import best_of_n_curve
from prm_jax.evals.prm import of_some_problems
from prm_jax.evals.scorers import DEV, Part, Scores, make_part
from prm_jax.evals.suite import groups_of_equal_size
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.loading import open_checkpoint, read_description
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs import frozen
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.settings.training import PrmSettings
from prm_jax.jobs.training import open_model
from prm_jax.models import HeadConfig, init_head
from prm_jax.runtime.errors import UserError

REFERENCE = 'digits'
RULE = np.array([10.0, 1.0])  # of an untrained head: digits, other tokens
HELD_OUT = 'math, held out'  # the chains of math that jobs do not score


class Reading(NamedTuple):
  """Holds what a job with `frozen.heads` read.

  Attributes:
    chosen: set -> indices of the chains that are scored.
  """

  settings: PrmSettings
  dataset: Dataset
  features: Features
  chosen: dict[str, list[int]]

  def every(self, name: str) -> Sequence[Chain]:
    """Returns all chains that there are of a set."""
    if name == DEV:
      return self.dataset.dev
    return self.dataset.evaluations['math' if name == HELD_OUT else name]

  def chains(self, name: str) -> list[Chain]:
    """Returns the chains of a set that are scored."""
    every = self.every(name)
    return [every[i] for i in self.chosen[name]]

  def pool(self) -> list[Chain]:
    """Returns the candidates that jobs pick among."""
    wanted = self.settings.evaluation
    every = self.dataset.evaluations[wanted.best_of_n]
    return [every[i] for i in of_some_problems(every, wanted.max_problems)]


def open_reading(workdir: pathlib.Path) -> Reading:
  """Opens the features of a job with `frozen.heads` that is done.

  The job did not read the chains that are held out; they are read here, once.
  """
  config = json.loads((workdir / 'config.json').read_text())
  settings = read_settings(config)
  described = open_model(settings).described
  dataset = load_dataset(settings.data, settings.seed, workdir, _quiet)
  limits = settings.evaluation
  chosen = {DEV: of_some_problems(dataset.dev, limits.max_dev_problems)} | {
    name: of_some_problems(dataset.evaluations[name], limits.max_problems)
    for name in ('gsm8k', 'math')
  }
  seen = set(chosen['math'])
  every = range(len(dataset.evaluations['math']))
  chosen[HELD_OUT] = [i for i in every if i not in seen]
  features = Features(
    described.format,
    described.model.d_model,
    frozen.features_folder(settings, workdir),
  )
  reading = Reading(settings, dataset, features, chosen)
  features.read(
    [split_chain(c, settings.data.segments) for c in reading.chains(HELD_OUT)],
    functools.cache(lambda: _open_as_trained(workdir)),
    lambda text: print(f'{HELD_OUT}: {text}', flush=True),
  )
  return reading


def _open_as_trained(workdir: pathlib.Path) -> Scorer:
  """Opens the backbone in the dtypes of the job that read with it."""
  described = read_description(workdir)
  params, mesh, _ = open_checkpoint(workdir, described)
  model, head, fmt = described.model, described.head, described.format
  return Scorer(params, model, head, fmt, mesh)


def _quiet(text: str) -> None:
  """Says nothing of what the job has said already."""


def text_scores(
  parts: Mapping[str, Part],
  read: Mapping[str, Sequence[int]],
  seeds: Sequence[int],
) -> dict[str, list[Scores]]:
  """Scores the first steps of each chain without a model: row -> each run.

  Args:
    read: set -> how many steps of each chain a model reads.
  """

  def score(of_step: Callable[[str, int], float]) -> Scores:
    return {
      name: [
        np.array(
          [-of_step(step, place) for place, step in enumerate(chain.steps[:n])]
        )
        for chain, n in zip(part.chains, read[name], strict=True)
      ]
      for name, part in parts.items()
    }

  def noise(seed: int) -> Scores:
    rng = np.random.default_rng(seed)
    return score(lambda step, place: rng.random())

  return {
    'noise': [noise(seed) for seed in seeds],
    'length': [score(trivial.FEATURES['length'])],
    'digit_count': [score(trivial.FEATURES['digits'])],
  }


def reading_scores(
  reading: Reading, parts: Mapping[str, Part]
) -> dict[str, list[Scores]]:
  """Scores steps by a backbone's likelihoods, and by heads on it."""
  features, settings = reading.features, reading.settings

  def by(score: Callable) -> Scores:
    score = score_pieces(score, settings.data.segments)
    return {name: score(part.chains) for name, part in parts.items()}

  def by_head(params: Any, head: HeadConfig) -> Scores:
    return by(make_scoring(features, params, head))

  def by_sum(column: int) -> Scores:
    return by(
      lambda chains: [
        features.of(chain.problem, chain.steps).likelihood[:, column]
        for chain in chains
      ]
    )

  train = reading.dataset.train
  train = evenly_spaced(train, settings.frozen.chains)
  data, problems = frozen.step_data(train, features, settings)
  rule = HeadConfig(settings.head.kind, likelihood=True)
  untrained = init_head(jax.random.key(0), data.states.shape[1], rule)
  rows = {
    REFERENCE: [by_sum(0)],
    'words': [by_sum(1)],
    'untrained': [by_head(untrained, rule)],
  }
  rows['checked'] = [checked(scores, parts) for scores in rows['untrained']]
  for name in settings.frozen.heads:
    fits = frozen.fit_seeds(name, data, problems, settings)
    rows[name] = [by_head(*each) for each in fits]
  return rows


def checked(scores: Scores, parts: Mapping[str, Part]) -> Scores:
  """Puts steps in which the calculator finds a false equation below all."""
  return {
    name: [
      np.where(
        [check_step(s) is False for s in chain.steps[: len(own)]], -1, own
      )
      for chain, own in zip(part.chains, scores[name], strict=True)
    ]
    for name, part in parts.items()
  }


def text_picks(chains: Sequence[Chain]) -> dict[str, list[float]]:
  """Picks from all samples without a model: way to pick -> share of right ones.

  Args:
    chains: candidates with outcomes, equally many of each problem.
  """
  false = [[check_step(s) is False for s in chain.steps] for chain in chains]
  methods = {
    'fewest_steps': -np.array([len(chain.steps) for chain in chains], float),
    'calculator': -np.array([sum(steps) for steps in false], float),
  }
  groups = np.array(groups_of_equal_size(chains))
  right = np.array([bool(chain.outcome) for chain in chains])[groups]
  n = groups.shape[1]
  return {
    name: [float(best_of_n_curve(scores[groups], right, [n]).mean())]
    for name, scores in methods.items()
  }


def sums_together(
  readings: Sequence[Reading], parts: Mapping[str, Part]
) -> Scores:
  """Scores steps by the rule of an untrained head on the sums of readings."""

  def score(chain: Chain) -> np.ndarray:
    sums = [
      reading.features.of(chain.problem, chain.steps).likelihood
      for reading in readings
    ]
    return sum(sums) @ RULE

  return {
    name: [score(chain) for chain in part.chains]
    for name, part in parts.items()
  }


def dev_of(run: pathlib.Path) -> tuple[Part, list[int]]:
  """Returns the dev chains of a training run, and their indices.

  A seed holds out problems of its own.
  """
  settings = read_settings(json.loads((run / 'config.json').read_text()))
  dev = load_dataset(settings.data, settings.seed, run, _quiet).dev
  indices = of_some_problems(dev, settings.evaluation.max_dev_problems)
  return make_part([dev[i] for i in indices]), indices


def trained_scores(
  run: pathlib.Path, chosen: Mapping[str, Sequence[int]]
) -> Scores:
  """Reads the step scores that a training run wrote.

  Raises:
    UserError: the run has no scores of a chain.
  """
  written = recipes.read_scores(run)
  scores: dict[str, list[np.ndarray]] = {}
  for name, indices in chosen.items():
    known = written.get(name, {})
    if missing := [i for i in indices if i not in known]:
      raise UserError(
        f'{run}/step_scores.jsonl has no scores of chain {missing[0]} of '
        f'{name}; delete {run} and train it again'
      )
    scores[name] = [known[i] for i in indices]
  return scores

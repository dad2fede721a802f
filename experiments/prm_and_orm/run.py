"""Do an ORM's scores add to a PRM's?

    pip install -e '.[experiments]'
    python -m experiments.prm_and_orm.run --workdir /tmp/ablations

A chain's score is (1 - w) logit(PRM's lowest step) + w logit(ORM). The models
are those of labelled_chains. Writes results.json, figure.svg and the table of
README.md beside this file.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.labelled_chains.run import train
from experiments.runner import Runner
from prm_jax import load
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import load_dataset
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals import suite
from prm_jax.jobs.settings import read_settings

NS = (4, 16)
METHODS = {'best': 'both', 'weighted vote': 'weighted_vote'}
CHAINS = {'82 chains': 82, '2,050 chains': 2050}
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
ARMS = {f'w = {weight:g}': weight for weight in WEIGHTS}


def random_of(what: str) -> str:
  """Names the null of a choice, such as one of 'best of 16, 82 chains'."""
  return f'random per text of {what}'


def logit(chance: np.ndarray) -> np.ndarray:
  # float32 does not tell chances nearer to 0 or 1 than this from 0 and 1.
  kept = np.clip(chance, 2.0**-25, 1 - 2.0**-25)
  return np.log(kept) - np.log1p(-kept)


def test_chains(workdir: pathlib.Path) -> Sequence[Chain]:
  """Returns the test chains of a PRM's own data."""
  config = json.loads((workdir / 'config.json').read_text())
  settings = read_settings(config)
  dataset = load_dataset(settings.data, settings.seed, workdir, print)
  (chains,) = dataset.evaluations.values()
  return chains


def prepare(runner: Runner, seed: int) -> None:
  """Scores the test chains by both models; keeps the scores beside them."""
  for count in CHAINS.values():
    workdir = train(runner, seed, count)
    chains = test_chains(workdir)
    prm = prm_evaluation.score_chains(load(workdir), chains)
    orm = prm_evaluation.score_chains(load(workdir / 'orm'), chains)
    scores = {
      'prm': prm_evaluation.chain_scores(chains, prm, 'min').tolist(),
      'orm': prm_evaluation.chain_scores(chains, orm, 'last').tolist(),
    }
    (workdir / 'both.json').write_text(json.dumps(scores))


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Chooses among the test chains by the sum with one weight."""
  weight, measured = ARMS[arm], {}
  for name, count in CHAINS.items():
    workdir = train(runner, seed, count)
    scores = json.loads((workdir / 'both.json').read_text())
    mixed = (1 - weight) * logit(np.array(scores['prm']))
    mixed = mixed + weight * logit(np.array(scores['orm']))
    chance = 1 / (1 + np.exp(-mixed))
    curves = suite.best_of_n_section(
      test_chains(workdir), {'both': mixed}, chance, NS, seed, 2000
    )
    for k, n in enumerate(NS):
      where = f'{n}, {name}'
      names = {f'{shown} of {where}': it for shown, it in METHODS.items()}
      for shown, method in (names | {random_of(where): suite.NULL}).items():
        curve = curves[method]
        measured[shown] = Measured(curve['mean'][k], tuple(curve['ci95'][k]))
  return measured


ABLATION = Ablation(__file__, "the ORM's share", list(ARMS), measure, prepare)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

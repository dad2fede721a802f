"""Do an ORM's scores add to a PRM's?

    pip install -e '.[experiments]'
    python -m experiments.prm_and_orm.run --workdir /tmp/ablations

A chain's score is (1 - w) logit(PRM's lowest step) + w logit(ORM). The models
are those of labelled_chains. Writes results.json, figure.svg and the table of
README.md beside this file.
"""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.labelled_chains.run import folder
from experiments.runner import Runner
from prm_jax import load
from prm_jax.data.datasets import load_dataset
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals import suite

NS = (4, 16)
METHODS = {'best': 'both', 'weighted vote': 'weighted_vote'}
CHAINS = {'82 chains': 82, '2,050 chains': 2050}
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
ARMS = {f'w = {weight:g}': weight for weight in WEIGHTS}


def logit(chance: np.ndarray) -> np.ndarray:
  # float32 tells no more chances from 0 and 1.
  kept = np.clip(chance, 2.0**-25, 1 - 2.0**-25)
  return np.log(kept) - np.log1p(-kept)


def score_test(workdir: pathlib.Path) -> None:
  """[M] scores of the test chains by both models, into their workdir."""
  config = json.loads((workdir / 'config.json').read_text())
  dataset = load_dataset(config['data'], config['seed'], workdir, print)
  (chains,) = dataset.evaluations.values()
  of_prm = prm_evaluation.score_chains(load(workdir), chains)
  of_orm = prm_evaluation.score_chains(load(workdir / 'orm'), chains)
  scores = {
    'prm': prm_evaluation.chain_scores(chains, of_prm, 'min').tolist(),
    'orm': prm_evaluation.chain_scores(chains, of_orm, 'last').tolist(),
  }
  (workdir / 'both.json').write_text(json.dumps(scores))


def prepare(runner: Runner, seed: int) -> None:
  for chains in CHAINS.values():
    score_test(folder(runner, seed, chains))


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  weight, found = ARMS[arm], {}
  for name, chains in CHAINS.items():
    workdir = folder(runner, seed, chains)
    config = json.loads((workdir / 'config.json').read_text())
    scores = json.loads((workdir / 'both.json').read_text())
    dataset = load_dataset(config['data'], config['seed'], workdir, print)
    (test,) = dataset.evaluations.values()
    mixed = (1 - weight) * logit(np.array(scores['prm']))
    mixed = mixed + weight * logit(np.array(scores['orm']))
    chance = 1 / (1 + np.exp(-mixed))
    curves = suite.best_of_n_section(
      test, {'both': mixed}, chance, NS, seed, 2000
    )
    for k, n in enumerate(NS):
      for told, method in METHODS.items():
        curve = curves[method]
        found[f'{told} of {n}, {name}'] = Measured(
          float(curve['mean'][k]), tuple(curve['ci95'][k])
        )
  return found


ABLATION = Ablation(__file__, "the ORM's share", list(ARMS), measure, prepare)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

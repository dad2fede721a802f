"""What of a PRM holds on chains unlike those it was trained on?

    pip install -e '.[experiments]'
    python -m experiments.out_of_distribution.run --workdir /tmp/ablations

A PRM trained on chains of five steps modulo 10 judges longer chains, other
moduli, other mistakes and, where its training had no products, products. Writes
results.json, figure.svg and the table of README.md beside this file.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import ablations
from experiments.ablations import (
  AUC,
  BY_PRM,
  F1,
  NOISE,
  VOTE,
  Ablation,
  Measured,
)
from experiments.runner import Runner
from prm_jax import load
from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals import suite
from prm_jax.runtime.workdir import read_results

SAMPLES, PROBLEMS = 16, 200
LONGEST = 12  # steps that fit the window
ALL, NO_PRODUCTS = 'all', 'no_products'
RIGHT = 'right chains'
# Training's own chains fill less than half of the window.
WINDOW = (
  f'--config.data.max_length={8 * LONGEST + 6}',
  f'--config.data.row_length={8 * LONGEST + 6}',
  '--config.data.batch_size=16',
)
TRAINED = {ALL: (), NO_PRODUCTS: ('--config.data.arithmetic.ops=+-',)}


class Arm(NamedTuple):
  """Which PRM judges which chains.

  Attributes:
    trained: the PRM, a key of `TRAINED`.
    domain: fields of the chains' `ArithmeticConfig` that differ from its
      defaults.
    other_solver: whether a solver with other wrong beliefs wrote the chains.
  """

  trained: str
  domain: Mapping[str, Any]
  other_solver: bool = False


ARMS = {
  'as in training': Arm(ALL, {}),
  'another solver, with other wrong beliefs': Arm(ALL, {}, True),
  '8 steps': Arm(ALL, {'operations': 8}),
  '12 steps': Arm(ALL, {'operations': LONGEST}),
  '2 steps': Arm(ALL, {'operations': 2}),
  'modulo 9': Arm(ALL, {'modulus': 9}),
  'modulo 7': Arm(ALL, {'modulus': 7}),
  'trained without products: none': Arm(NO_PRODUCTS, {'ops': '+-'}),
  'trained without products: with them': Arm(NO_PRODUCTS, {}),
}


def prepare(runner: Runner, seed: int) -> None:
  for trained in TRAINED:
    make_prm(runner, seed, trained)


def make_prm(runner: Runner, seed: int, trained: str) -> pathlib.Path:
  """Trains one of the PRMs."""
  flags = WINDOW + TRAINED[trained]
  return ablations.train(runner, seed, f'windows_{trained}', *flags)


def sample(arm: Arm, seed: int) -> Sequence[Chain]:
  """Samples chains that a PRM of this seed has not seen."""
  solver_seed = seed + 100 if arm.other_solver else seed
  fields = {'solver_seed': solver_seed} | dict(arm.domain)
  config = arithmetic.ArithmeticConfig(**fields)
  problems = arithmetic.sample_problems(config, PROBLEMS, seed + 1000)
  transitions = arithmetic.make_solver(config)
  written = arithmetic.sample_results(
    transitions, problems, SAMPLES, seed + 1000
  )
  return arithmetic.to_chains(config, problems, written)


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Judges an arm's chains, with the threshold chosen on training's kind."""
  wanted = ARMS[arm]
  workdir = make_prm(runner, seed, wanted.trained)
  threshold = read_results(workdir)['manifest']['threshold']['value']
  chains = sample(wanted, seed)
  scores = prm_evaluation.score_chains(load(workdir), chains)
  rule = suite.ChosenOnDev(threshold, 0, {})
  found = suite.localisation_section(chains, scores, rule, seed, 2000)
  steps = suite.calibration_section(chains, scores, {}, seed, 2000)
  lowest = prm_evaluation.chain_scores(chains, scores, 'min')
  curves = suite.best_of_n_section(
    chains, {'prm': lowest}, np.maximum(lowest, 0.0), [SAMPLES], seed, 2000
  )
  measured = {
    F1: Measured(found['f1'], found['ci95']),
    NOISE: Measured(found['baselines']['noise']['f1']),
    AUC: Measured(steps['ranking']['auc'], steps['ranking']['ci95']),
  }
  for name, method in ((RIGHT, 'random'), ('oracle of 16', 'oracle')):
    curve = curves[method]
    measured[name] = Measured(curve['mean'][0], tuple(curve['ci95'][0]))
  chosen = {BY_PRM: 'prm', VOTE: 'weighted_vote'}
  return measured | ablations.read_choices(curves, chosen)


ABLATION = Ablation(__file__, 'chains', list(ARMS), measure, prepare)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

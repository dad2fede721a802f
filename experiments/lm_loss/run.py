"""What are the language-model loss and a trained backbone worth to a PRM?

    pip install -e '.[experiments]'
    python -m experiments.lm_loss.run --workdir /tmp/ablations

Each PRM starts at random or from a policy of its size that imitates the solver.
Writes results.json, figure.svg and the table of README.md beside this file.
"""

import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.rl_runs import SMALL
from experiments.runner import Runner

SCRATCH, POLICY = 'from scratch', 'from the policy'
LONGER = 'from scratch, twice the updates'  # as many as policy and PRM together
WEIGHTS = {SCRATCH: (0, 0.1, 0.3, 1, 3), LONGER: (1,), POLICY: (0, 0.3, 1)}
ARMS = {
  f'{start}, weight {weight:g}': (start, weight)
  for start, weights in WEIGHTS.items()
  for weight in weights
}


def make_policy(runner: Runner, seed: int) -> pathlib.Path:
  """Trains a policy of the PRMs' size on the same chains."""
  return ablations.train_policy(runner, seed, 'policy_128', *SMALL)


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Trains a PRM with one start and one weight of the loss."""
  start, weight = ARMS[arm]
  flags = [f'--config.loss.lm_weight={weight}']
  if start == SCRATCH and weight == 1:  # the default
    workdir = ablations.train(runner, seed, ablations.DEFAULT)
  elif start == SCRATCH:
    workdir = ablations.train(runner, seed, f'lm_{weight:g}', *flags)
  elif start == LONGER:
    flags = ('--config.train.steps=800', '--config.train.checkpoint_every=800')
    workdir = ablations.train(runner, seed, 'longer', *flags)
  else:
    flags.append(f'--config.base={make_policy(runner, seed)}')
    name = f'from_policy_lm_{weight:g}'
    workdir = ablations.train(runner, seed, name, *flags, variant='from_run')
  return ablations.read(workdir)


ABLATION = Ablation(
  __file__, 'start, and weight of the loss', list(ARMS), measure, make_policy
)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

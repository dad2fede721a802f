"""How many labelled chains does a PRM take, and how many an ORM?

    pip install -e '.[experiments]'
    python -m experiments.labelled_chains.run --workdir /tmp/ablations

Each arm has five times the chains of the arm before, and a chain has five
steps: the PRM of a row has at most as many labels as the ORM of the next row.
Both are trained until the ORM, which learns more slowly, stands still. Writes
results.json, figure.svg and the table of README.md beside this file.
"""

import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.runner import Runner

# Chains -> updates, after one look with seed 0. At the end of them the ORM's
# AUC on dev chains stood still, at .51, .60, .75 and .86: from 82 chains it
# learned nothing, and 6,400 updates on 10,250 chains took it no higher.
UPDATES = {82: 400, 410: 1600, 2050: 1600, 10_250: 1600}
ARMS = {f'{chains:,}': chains for chains in UPDATES}


def train(runner: Runner, seed: int, chains: int) -> pathlib.Path:
  """Trains a PRM and an ORM on the same chains, with equal updates."""
  updates = UPDATES[chains]
  return ablations.train(
    runner,
    seed,
    f'chains_{chains}_updates_{updates}',
    f'--config.data.train_problems={chains}',
    '--config.orm_baseline=True',
    f'--config.train.steps={updates}',
    f'--config.train.checkpoint_every={updates}',
  )


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  return ablations.read(train(runner, seed, ARMS[arm]))


ABLATION = Ablation(__file__, 'labelled chains', list(ARMS), measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

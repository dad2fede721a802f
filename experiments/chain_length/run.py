"""Short and long chains: where is a PRM worth more than an ORM?

    pip install -e '.[experiments]'
    python -m experiments.chain_length.run --workdir /tmp/ablations

Writes results.json, figure.svg and the table of README.md beside this file.
"""

from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.runner import Runner

# A chain of one step is a single fact, which a PRM knows or does not know.
ARMS = {'2 steps': 2, '3 steps': 3, '5 steps': 5, '8 steps': 8}


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Trains a PRM and an ORM on the same chains, with equal updates."""
  steps = ARMS[arm]
  workdir = ablations.train(
    runner,
    seed,
    f'length_{steps}',
    '--config.orm_baseline=True',
    operations=steps,
  )
  return ablations.read(workdir)


ABLATION = Ablation(__file__, 'a chain has', list(ARMS), measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

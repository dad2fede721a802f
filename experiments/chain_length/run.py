"""Short and long chains: when is a PRM worth more than an ORM?

    pip install -e '.[experiments]'
    python -m experiments.chain_length.run --workdir /tmp/ablations

Writes results.json, figure.svg and the table of README.md beside this file.
"""

from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.runner import Runner

# One step is a fact, of which a PRM has seen all or learns nothing.
ARMS = {'2 steps': 2, '3 steps': 3, '5 steps': 5, '8 steps': 8}


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """A PRM and an ORM on the same chains, with equal updates."""
  steps = ARMS[arm]
  done = ablations.train(
    runner,
    seed,
    f'length_{steps}',
    '--config.orm_baseline=True',
    operations=steps,
  )
  return ablations.read(done)


ABLATION = Ablation(__file__, 'a chain has', list(ARMS), measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

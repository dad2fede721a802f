"""What a PRM may learn from the steps after a chain's first error.

    pip install -e '.[experiments]'
    python -m experiments.after_first_error.run --workdir /tmp/ablations

Writes results.json, figure.svg and the table of README.md beside this file.
"""

import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.runner import Runner

ARMS = ('mask', 'bad', 'keep')


def folder(runner: Runner, seed: int, arm: str) -> pathlib.Path:
  if arm == 'mask':  # the default
    return ablations.train(runner, seed, ablations.AS_IT_IS)
  flag = f'--config.targets.after_first_error={arm}'
  return ablations.train(runner, seed, f'after_{arm}', flag)


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  return ablations.read(folder(runner, seed, arm))


ABLATION = Ablation(__file__, 'steps after the first error', ARMS, measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

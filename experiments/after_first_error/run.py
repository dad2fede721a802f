"""What may a PRM learn from the steps after a chain's first error?

    pip install -e '.[experiments]'
    python -m experiments.after_first_error.run --workdir /tmp/ablations

Writes results.json, figure.svg and the table of README.md beside this file.
"""

from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import Ablation, Measured
from experiments.runner import Runner

ARMS = ('mask', 'bad', 'keep')


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Trains a PRM with one treatment of the steps after the first error."""
  if arm == 'mask':  # the default
    workdir = ablations.train(runner, seed, ablations.DEFAULT)
  else:
    flag = f'--config.targets.after_first_error={arm}'
    workdir = ablations.train(runner, seed, f'after_{arm}', flag)
  return ablations.read(workdir)


ABLATION = Ablation(__file__, 'steps after the first error', ARMS, measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

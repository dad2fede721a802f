"""What people call neutral: is it learned as right, wrong, half, or not at all?

    pip install -e '.[experiments]'
    python -m experiments.neutral_labels.run --workdir /tmp/neutral_labels

A byte-level PRM on human step labels (the variant `human` of
configs/prm_math.py; PRM_JAX_DATA names the data), with windows of half the
length and fewer problems to test on. Writes results.json, figure.svg and the
table of README.md beside this file.
"""

import json
import pathlib
from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import AUC, F1, Ablation, Measured
from experiments.runner import Runner

ARMS = ('good', 'bad', 'ignore', 'half')
FLAGS = (
  '--config.data.max_length=1024',
  '--config.data.row_length=1024',
  '--config.data.max_steps_per_row=64',
  '--config.data.batch_size=4',
  '--config.evaluation.max_problems=200',
  '--config.train.checkpoint_every=200',
)


def folder(runner: Runner, seed: int, arm: str) -> pathlib.Path:
  return runner.main(
    'prm_math.py:human',
    f'seed_{seed}/neutral_{arm}',
    f'--config.seed={seed}',
    f'--config.targets.neutral={arm}',
    *FLAGS,
  )


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  done = folder(runner, seed, arm)
  results = json.loads((done / 'results.json').read_text())['results']
  found = {}
  for name, where in results['localisation'].items():
    found[f'{F1}, {name}'] = Measured(where['f1'], where['ci95'])
    auc = results['calibration'][name]['first_error_auc']
    found[f'{AUC}, {name}'] = Measured(auc)
  return found


ABLATION = Ablation(__file__, 'neutral is', ARMS, measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

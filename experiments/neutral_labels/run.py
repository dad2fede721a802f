"""Is a step that people call neutral right, wrong, half, or no target at all?

    pip install -e '.[experiments]'
    python -m experiments.neutral_labels.run --workdir /tmp/neutral_labels

Trains a byte-level PRM on human step labels (the variant `human` of
configs/prm_math.py; PRM_JAX_DATA names the data), with windows of half the
length and fewer problems to test on. Writes results.json, figure.svg and the
table of README.md beside this file.
"""

from collections.abc import Mapping

from experiments import ablations
from experiments.ablations import (
  AUC,
  F1,
  LENGTH,
  NOISE,
  Ablation,
  Measured,
)
from experiments.runner import Runner, read_results

ARMS = ('good', 'bad', 'ignore', 'half')
FLAGS = (
  '--config.data.max_length=1024',
  '--config.data.row_length=1024',
  '--config.data.max_steps_per_row=64',
  '--config.data.batch_size=4',
  '--config.evaluation.max_problems=200',
  '--config.train.checkpoint_every=200',
)


def measure(runner: Runner, seed: int, arm: str) -> Mapping[str, Measured]:
  """Trains a PRM with one target for neutral steps."""
  workdir = runner.main(
    'prm_math.py:human',
    f'seed_{seed}/neutral_{arm}',
    f'--config.seed={seed}',
    f'--config.targets.neutral={arm}',
    *FLAGS,
  )
  results = read_results(workdir)
  measured = {}
  for name, found in results['localisation'].items():
    measured[f'{F1}, {name}'] = Measured(found['f1'], found['ci95'])
    noise = found['baselines']['noise']['f1']
    measured[f'{NOISE}, {name}'] = Measured(noise)
    steps = results['calibration'][name]
    length = steps['baselines']['length']
    for shown, ranked in ((AUC, steps['ranking']), (LENGTH, length)):
      area = Measured(ranked['auc'], ranked['ci95'])
      measured[f'{shown}, {name}'] = area
  return measured


ABLATION = Ablation(__file__, 'neutral is', ARMS, measure)
render = ablations.render

if __name__ == '__main__':
  ablations.run(ABLATION)

"""The training runs of this experiment, each a call of the main command."""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.runner import Runner
from prm_jax.report import write_report
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import is_done, read_results

CONFIG = 'configs/prm_math.py'
# One pass over the training chains.
SIZE = (
  '--config.data.batch_size=8',
  '--config.train.steps=250',
  '--config.train.checkpoint_every=250',
  '--config.model.remat=dots',
)
# What is scored: as many evenly spaced problems as frozen readings have.
SCORED = (
  '--config.evaluation.max_problems=400',
  '--config.evaluation.max_dev_problems=200',
)
# Supervised fine-tuning on GSM8K's worked answers: a third of a pass, or three.
SFT = (
  '--config.data.max_length=1024',
  '--config.data.dev_share=0.01',
  '--config.train.best_metric=',
  '--config.evaluation.max_problems=10',
)
SFT_STEPS = {'sft': 100, 'sft_long': 900}
# Ways to read all chains, and what their rows are called.
READINGS = {
  '': '',
  'sft': 'after a third of a pass over worked answers, ',
  'sft_long': 'after three passes over worked answers, ',
  'sentences': 'by sentences, ',
}


class Recipe(NamedTuple):
  """Says how a model is trained, beside the `smollm2` variant.

  Attributes:
    text: name of its row.
    flags: changes to the config.
    variant: further variants of the config, with a comma before each.
    start: a key of SFT_STEPS, whose model it starts from; '' is the published.
  """

  text: str
  flags: tuple[str, ...] = ()
  variant: str = ''
  start: str = ''


RECIPES: dict[str, Recipe] = {
  'likelihood': Recipe('head that reads the likelihood, too'),
  'likelihood_lm': Recipe(
    'that head, with the LM loss', ('--config.loss.lm_weight=0.5',)
  ),
  'lora': Recipe('that head, adapters of rank 16', variant=',lora'),
  # For a CPU: a quarter of the updates of SIZE.
  'lora_quarter': Recipe(
    'that head, adapters of rank 16, a quarter of the pass',
    ('--config.train.steps=62', '--config.train.checkpoint_every=62'),
    ',lora',
  ),
  'likelihood_sft': Recipe(
    'that head, after three passes over worked answers', start='sft_long'
  ),
  'state': Recipe(
    'head on the hidden state alone', ('--config.head.likelihood=False',)
  ),
}


def fine_tune(runner: Runner, name: str) -> pathlib.Path:
  """Fine-tunes the model on worked answers; returns the workdir of the job."""
  steps = SFT_STEPS[name]
  return runner.main(
    'policy_math.py:smollm2',
    name,
    *SFT,
    f'--config.train.steps={steps}',
    f'--config.train.checkpoint_every={steps}',
  )


def read_chains(
  runner: Runner, reading: str, data: pathlib.Path, extra: Sequence[str]
) -> pathlib.Path:
  """Reads all chains once, and fits heads; returns the workdir of the job.

  Args:
    reading: one of READINGS.
    data: folder of the data set, which all jobs share.
    extra: further flags of the job.
  """
  flags = [f'--config.data.dir={data}', *extra]
  if reading in SFT_STEPS:
    flags.append(f'--config.base={fine_tune(runner, reading)}')
  if reading == 'sentences':
    flags.append('--config.data.segments=sentences')
  folder = reading_folder(reading)
  return runner.main('prm_math.py:smollm2,frozen', folder, *flags)


def folder(name: str, seed: int) -> str:
  """Returns the name of a run's folder in the workdir."""
  return f'{name}_seed_{seed}'


def train(
  runner: Runner, name: str, data: pathlib.Path, extra: Sequence[str], seed: int
) -> pathlib.Path:
  """Trains a recipe, or resumes it, and evaluates it; returns the workdir.

  Args:
    data: folder of the data set, which all recipes share.
    extra: further flags of the run.

  Raises:
    SystemExit: the run failed, or one that is done had other flags.
  """
  recipe = RECIPES[name]
  flags = recipe.flags
  if recipe.start:
    flags += (f'--config.base={runner.workdir / recipe.start}',)
  return runner.main(
    f'prm_math.py:smollm2{recipe.variant}',
    folder(name, seed),
    f'--config.seed={seed}',
    f'--config.data.dir={data.absolute()}',
    *SCORED,
    *SIZE,
    *flags,
    *extra,
  )


def trained(workdir: pathlib.Path) -> dict[str, list[int]]:
  """Finds the runs that are done: recipe -> seeds, each ascending."""
  found: dict[str, list[int]] = {}
  for name in RECIPES:
    for path in workdir.glob(f'{name}_seed_*'):
      seed = path.name.removeprefix(f'{name}_seed_')
      if seed.isdecimal() and is_done(path):
        found.setdefault(name, []).append(int(seed))
  return {name: sorted(seeds) for name, seeds in found.items()}


def reading_folder(reading: str) -> str:
  """Returns the name of the folder of a reading in the workdir."""
  return f'frozen_{reading}' if reading else 'frozen'


def read_scores(
  run: pathlib.Path,
) -> dict[str, dict[int, np.ndarray]]:
  """Reads the step scores that a run wrote: set -> index of the chain -> [R].

  R steps of the chain were read.
  """
  found: dict[str, dict[int, np.ndarray]] = {}
  with (run / 'step_scores.jsonl').open() as file:
    for record in map(json.loads, file):
      scores = np.array(record['scores'], np.float64)
      found.setdefault(record['set'], {})[record['chain']] = scores
  return found


def read(run: pathlib.Path) -> Mapping:
  """Reads manifest and results of a run.

  The command is that of this experiment, as folders differ between machines.
  """
  found = read_results(run)
  name, _, seed = run.name.partition('_seed_')
  reading = name.removeprefix('frozen').removeprefix('_')
  also = f'--train {name} --seeds {seed}' if seed else ''
  also = also or (f'--also {reading}' if reading else '')
  found['manifest']['command'] = (
    f'python -m experiments.smollm2_prm.run --workdir DIR {also}'.strip()
  )
  return found


def write_report_without_chains(
  run: pathlib.Path, output: pathlib.Path
) -> None:
  """Writes a run's report.html without chains, which are other people's data.

  Raises:
    UserError: the run is not done.
  """
  if not is_done(run):
    raise UserError(f'{run} has no results to report; let its training end')
  with tempfile.TemporaryDirectory() as temporary:
    part = pathlib.Path(temporary)
    (part / 'results.json').write_text(json.dumps(read(run)))
    shutil.copy(run / 'metrics.jsonl', part)
    shutil.copy(write_report(part), output / 'report.html')

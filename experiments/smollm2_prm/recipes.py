"""The training runs of this experiment, each a call of the main command."""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

import numpy as np

import prm_jax
from experiments.runner import Runner
from prm_jax.data.chains import Chain
from prm_jax.evals.prm import score_chains
from prm_jax.report import write_report
from prm_jax.runtime.errors import UserError

CONFIG = 'configs/prm_math.py'
# Name -> (variant of the config, changes to it, text of its row).
RECIPES: dict[str, tuple[str, tuple[str, ...], str]] = {
  'likelihood': (
    'smollm2',
    (),
    'head that reads the likelihood too; planted errors added',
  ),
  'likelihood_human': (
    'smollm2',
    ('--config.data.worked_answers=',),
    'the same on human labels alone',
  ),
  'head': (
    'smollm2',
    ('--config.head.likelihood=False',),
    'head on the hidden state alone; planted errors added',
  ),
  'head_human': (
    'smollm2',
    ('--config.head.likelihood=False', '--config.data.worked_answers='),
    'head on the hidden state alone, human labels alone',
  ),
  'lora': ('smollm2,lora', (), 'as the first, but LoRA of rank 16'),
  'lm_loss': (
    'smollm2',
    ('--config.loss.lm_weight=0.1',),
    'as the first, with the LM loss at 0.1',
  ),
  'words': (
    'smollm2',
    ('--config.data.words_problems=4096',),
    'as the first, with 4,096 planted word problems',
  ),
}


def train(
  name: str, workdir: pathlib.Path, data: pathlib.Path, extra: Sequence[str]
) -> None:
  """Runs a recipe in workdir/name, or resumes it.

  Args:
    data: folder of the data set, which all recipes share.
    extra: further flags of the run.
  """
  variant, overrides, _ = RECIPES[name]
  Runner(workdir, jobs=1).run(
    name,
    *('-m', 'prm_jax.main'),
    f'--config={CONFIG}:{variant}',
    *overrides,
    *extra,
    f'--workdir={(workdir / name).absolute()}',
    f'--config.data.dir={data.absolute()}',
  )


def trained(workdir: pathlib.Path) -> list[str]:
  """Returns the recipes whose run has its last checkpoint."""

  def done(folder: pathlib.Path) -> bool:
    if not (folder / 'config.json').exists():
      return False
    steps = json.loads((folder / 'config.json').read_text())['train']['steps']
    return (folder / 'checkpoints' / str(steps)).is_dir()

  return [name for name in RECIPES if done(workdir / name)]


def read(name: str, workdir: pathlib.Path) -> dict:
  """Reads manifest and results of a run; both empty where it has none yet.

  The command is that of this experiment, as folders differ between machines.
  """
  path = workdir / name / 'results.json'
  if not path.exists():
    return {'manifest': {}, 'results': {}}
  run = json.loads(path.read_text())
  run['manifest']['command'] = (
    f'python -m experiments.smollm2_prm.run --workdir DIR --train {name}'
  )
  return run


def write_report_without_chains(
  name: str, workdir: pathlib.Path, output: pathlib.Path
) -> None:
  """Writes a run's report.html without chains, which are other people's data.

  Raises:
    UserError: the run has no results yet.
  """
  run = read(name, workdir)
  if not run['results']:
    raise UserError(
      f'{workdir / name} has no results.json to report; let --train {name} end'
    )
  with tempfile.TemporaryDirectory() as folder:
    part = pathlib.Path(folder)
    (part / 'results.json').write_text(json.dumps(run))
    shutil.copy(workdir / name / 'metrics.jsonl', part)
    shutil.copy(write_report(part), output / 'report.html')


class TrainedScores:
  """The step scores of one trained run, which are kept beside it.

  Its checkpoint is opened only for chains that were not scored before.
  """

  def __init__(self, name: str, workdir: pathlib.Path):
    self._folder = workdir / name
    self._scorer = None

  def score(
    self, name: str, chains: Sequence[Chain], fingerprint: str
  ) -> list[np.ndarray]:
    """Returns step scores [R] in [0, 1] of each chain's R steps that were read.

    Args:
      name: the set, for the name of the file.
      fingerprint: fingerprint of exactly these chains.

    Raises:
      UserError: the file has the scores of other chains.
    """
    path = self._folder / f'read_scores_{name}_{fingerprint}.npz'
    if not path.exists():
      if self._scorer is None:
        self._scorer = prm_jax.load(self._folder)
      scores = score_chains(self._scorer, chains)
      np.savez(path, lengths=[len(s) for s in scores], flat=np.hstack(scores))
    with np.load(path) as file:
      lengths, flat = file['lengths'], file['flat']
    if len(lengths) != len(chains):
      raise UserError(f'{path} holds the scores of other chains; delete it')
    return np.split(flat, np.cumsum(lengths)[:-1])

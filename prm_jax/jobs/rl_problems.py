"""The problems of an RL job: for training, for watching, and for its test."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grain
import numpy as np

from prm_jax.data import problems as problems_lib
from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE


class Tasks(NamedTuple):
  """Problems to learn from, and others."""

  train: list[Problem]
  held_out: list[Problem]
  test: list[Problem]


def read_tasks(config: Mapping[str, Any]) -> Tasks:
  """All problems of the job.

  Of arithmetic problems those of the three splits. Of files, what is held out
  has a file of its own, or is the end of the training file.
  """
  section, seed = config['problems'], config['seed']

  def read(split: str, path: str = '') -> list[Problem]:
    given = section | {'split': split} | ({'path': path} if path else {})
    return problems_lib.read_problems(given, seed)

  count = config['held_out']['problems']
  train = read('train')
  if section['kind'] == 'arithmetic' or config['held_out']['path']:
    held_out = read('dev', config['held_out']['path'])[:count]
  else:
    train, held_out = train[:-count], train[-count:]
  test = read('test', config['test']['path'])
  tasks = Tasks(train, held_out, test[: config['test']['problems'] or None])
  for name, found in tasks._asdict().items():
    if len(found) < (config['train']['problems'] if name == 'train' else 2):
      raise UserError(
        f'{len(found)} problems to {name.replace("_", " ")}: too few; see '
        'problems, held_out and test in the config'
      )
  known = {problem.text for problem in train}
  if met := [p.id for p in (*tasks.held_out, *tasks.test) if p.text in known]:
    raise UserError(
      f'{len(met)} problems of held_out or test are trained on, such as '
      f'{met[0][:60]!r}; name other files'
    )
  return tasks


def that_fit(
  tasks: Tasks, fmt: StepFormat, log: Callable[[str], None]
) -> Tasks:
  """Without the problems that leave the policy no room to write.

  Those of the test stay: they are answered wrongly.

  Raises:
    UserError: too few are left.
  """

  def fitting(name: str, problems: list[Problem]) -> list[Problem]:
    kept = [p for p in problems if fmt.has_room(p.text)]
    if left_out := len(problems) - len(kept):
      log(
        f'rl: {left_out:,} of {len(problems):,} problems ({name}) left out: no '
        f"room for a chain in the policy's window of {fmt.max_length} tokens"
      )
    return kept

  fit = tasks._replace(
    train=fitting('train', tasks.train),
    held_out=fitting('held out', tasks.held_out),
  )
  if not fit.train or len(fit.held_out) < 2:
    raise UserError(
      f"the policy's window of {fmt.max_length} tokens is too short for these "
      'problems; train one with a longer data.max_length'
    )
  return fit


def check_unseen(tasks: Tasks, model: str | os.PathLike) -> None:
  """Problems that tell what is learned are none that a model has learned from.

  Seen for runs on the arithmetic domain, whose splits are drawn again.

  Args:
    model: the workdir of its run; of a published one nothing is known, and ''
      is none.

  Raises:
    UserError: some are.
  """
  if not model or str(model).startswith(HUB):
    return
  path = paths.open_path(model).expanduser() / 'config.json'
  if not path.is_file():
    return
  trained = paths.read_json(path, DELETE)
  section = trained.get('data') or trained.get('problems') or {}
  if section.get('kind') != 'arithmetic' or section.get('labels'):
    return
  known = problems_lib.read_problems(
    section | {'split': 'train'}, trained['seed']
  )
  texts = {problem.text for problem in known}
  told = [*tasks.held_out, *tasks.test]
  if met := [problem for problem in told if problem.text in texts]:
    raise UserError(
      f'{model} was trained on {len(met):,} of the {len(told):,} problems of '
      f'held_out and test, such as {met[0].text!r}; set seed, '
      'problems.train_problems, dev_problems and test_problems as they are in '
      f'{path}'
    )


def batches_of(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Indices of the problems of each batch, shuffled anew in every epoch."""
  data = grain.MapDataset.range(count).shuffle(seed=seed).repeat().batch(size)
  return iter(data.to_iter_dataset(grain.ReadOptions(1, 2)))

"""Reads the problems of an RL job: for training, held-out checks and test."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grain
import numpy as np

from prm_jax.data import problems as problems_lib
from prm_jax.data.config import DrawConfig, ProblemsConfig
from prm_jax.data.domains.known import DOMAINS
from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import checks, paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE

Log = Callable[[str], None]
DRAWN = (*DOMAINS, 'words')  # whose problems are drawn


class Tasks(NamedTuple):
  """Holds the problems of a job by their use."""

  train: list[Problem]
  held_out: list[Problem]
  test: list[Problem]


def read_tasks(settings: RlSettings) -> Tasks:
  """Reads all problems of the job.

  A domain has three splits. From files, the held-out problems come from their
  own file, or else from the end of the training file.

  Raises:
    UserError: they are too few, or some are in training and test.
  """
  section = settings.problems

  def read(split: str, path: str = '') -> list[Problem]:
    config = dataclasses.replace(section, path=path or section.path)
    return problems_lib.read_problems(config, split, settings.seed)

  count = settings.held_out.problems
  train = read('train')
  if section.kind != 'file' or settings.held_out.path:
    held_out = read('dev', settings.held_out.path)[:count]
  else:
    train, held_out = train[:-count], train[-count:]
  test = read('test', settings.test.path)
  tasks = Tasks(train, held_out, test[: settings.test.problems or None])
  for name, problems in tasks._asdict().items():
    least = settings.train.problems if name == 'train' else 2
    if len(problems) < least:
      raise UserError(
        f'{len(problems)} problems for {name.replace("_", " ")}: expected at '
        f'least {least}; see problems, held_out and test in the config'
      )
  known = {problem.text for problem in train}
  if met := [p.id for p in (*tasks.held_out, *tasks.test) if p.text in known]:
    raise UserError(
      f'{len(met)} problems of held_out or test are trained on, such as '
      f'{met[0][:60]!r}; name other files'
    )
  return tasks


def drop_too_long(tasks: Tasks, fmt: StepFormat, log: Log) -> Tasks:
  """Drops the problems that leave the policy no room to write.

  Test problems are kept, and their answers count as wrong.

  Raises:
    UserError: too few are left.
  """

  def short_enough(name: str, problems: list[Problem]) -> list[Problem]:
    kept = [p for p in problems if fmt.has_room(p.text)]
    if dropped := len(problems) - len(kept):
      log(
        f'rl: {dropped:,} of {len(problems):,} problems ({name}) are dropped: '
        "no room for a chain in the policy's window of "
        f'{fmt.max_length} tokens'
      )
    return kept

  kept = tasks._replace(
    train=short_enough('train', tasks.train),
    held_out=short_enough('held out', tasks.held_out),
  )
  if not kept.train or len(kept.held_out) < 2:
    raise UserError(
      f"the policy's window of {fmt.max_length} tokens is too short for these "
      'problems; train one with a longer data.max_length'
    )
  return kept


def check_unseen(tasks: Tasks, model: str | os.PathLike, kind: str) -> None:
  """Checks that a model was not trained on held-out or test problems.

  Only runs on a domain can be checked: their splits are drawn again.

  Args:
    model: the workdir of its run; published models and '' are not checked.
    kind: kind of the job's problems.

  Raises:
    UserError: it was trained on some.
  """
  if not model or str(model).startswith(HUB):
    return
  path = paths.open_path(model) / 'config.json'
  if not path.is_file():
    return
  trained = paths.read_json(path, DELETE)
  section = trained.get('data') or trained.get('problems') or {}
  if kind not in DRAWN or section.get('kind') != kind:
    return
  if section.get('labels'):
    return
  names = {*checks.field_types(DrawConfig), 'kind', 'words'}
  draw = {name: section[name] for name in names if name in section}
  known = problems_lib.read_problems(
    checks.read(ProblemsConfig, draw, str(path)), 'train', trained['seed']
  )
  texts = {problem.text for problem in known}
  unseen = [*tasks.held_out, *tasks.test]
  if met := [problem for problem in unseen if problem.text in texts]:
    raise UserError(
      f'{model} was trained on {len(met):,} of the {len(unseen):,} problems of '
      f'held_out and test, such as {met[0].text!r}; set seed, '
      'problems.train_problems, dev_problems and test_problems as they are in '
      f'{path}'
    )


def iterate_batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Yields indices of each batch's problems, shuffled anew in every epoch."""
  data = grain.MapDataset.range(count).shuffle(seed=seed).repeat().batch(size)
  return iter(data.to_iter_dataset(grain.ReadOptions(1, 2)))

"""Reads the problems of an RL job: for training, held-out checks and test."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grain
import numpy as np

from prm_jax.data import problems as problems_lib
from prm_jax.data.encoding import StepFormat
from prm_jax.data.problems import Problem
from prm_jax.data.shards import ShardedBatches, Share
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError

Log = Callable[[str], None]


class Tasks(NamedTuple):
  """Holds the problems of a job by their use."""

  train: list[Problem]
  held_out: list[Problem]
  test: list[Problem]


def read_tasks(settings: RlSettings, log: Log) -> Tasks:
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
  for name in ('held_out', 'test'):
    asked = getattr(settings, name).problems
    if len(found := getattr(tasks, name)) < asked:
      log(f'rl: {name} has {len(found):,} problems, of {asked:,} asked for')
  _check_apart(
    train, [*tasks.held_out, *tasks.test], 'held_out or test', 'trained on'
  )
  # The best checkpoint is chosen on held-out problems.
  _check_apart(tasks.held_out, tasks.test, 'test', 'in held_out, too')
  return tasks


def _check_apart(
  used: list[Problem], others: list[Problem], names: str, how: str
) -> None:
  """Raises UserError if problems have two uses."""
  known = {problem.text for problem in used}
  if met := [problem.id for problem in others if problem.text in known]:
    raise UserError(
      f'{len(met)} problems of {names} are {how}, such as {met[0][:60]!r}; '
      'name other files in problems.path, held_out.path or test.path'
    )


def drop_too_long(tasks: Tasks, fmt: StepFormat, least: int, log: Log) -> Tasks:
  """Drops the problems that leave the policy no room to write.

  Test problems are kept, and their answers count as wrong.

  Args:
    least: number of training problems that have to be left.

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
  if len(kept.train) < least or len(kept.held_out) < 2:
    raise UserError(
      f"the policy's window of {fmt.max_length} tokens is too short for these "
      f'problems: of those in training {len(kept.train)} fit, where '
      f'train.problems={least} are needed, and of those held out '
      f'{len(kept.held_out)}, where 2 are needed; train a policy with a longer '
      'data.max_length'
    )
  return kept


def iterate_batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Yields indices of each batch's problems, shuffled anew in every epoch.

  All processes draw the same; process 0 saves the position.
  """
  data = grain.MapDataset.range(count).shuffle(seed=seed).repeat().batch(size)
  share = Share(1, (0,), (0,) if processes.is_first() else ())
  batches = data.to_iter_dataset(grain.ReadOptions(1, 2))
  return iter(ShardedBatches([batches], share))

"""Checks from what a model learned whether it may be judged as it is to be."""

import dataclasses
import os
from collections.abc import Sequence

from prm_jax.data import problems as problems_lib
from prm_jax.data.config import DrawConfig, ProblemsConfig
from prm_jax.data.critiques.examples import CritiquesConfig
from prm_jax.data.critiques.questions import read_question
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.domains.known import DOMAINS
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import checks, paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE

DRAWN = (*DOMAINS, 'words')  # whose problems are drawn


def check_unseen(
  texts: Sequence[str], model: str | os.PathLike, kind: str
) -> None:
  """Checks that a model was not trained on any of some problems.

  Args:
    texts: problems, or questions to a critic about chains of them.
    model, kind: as those of `learned_problems`.

  Raises:
    UserError: it was trained on some.
  """
  if seen := says_seen(texts, model, kind):
    raise UserError(seen)


def says_seen(texts: Sequence[str], model: str | os.PathLike, kind: str) -> str:
  """Says that a model was trained on some problems; '' if on none of them.

  Args:
    texts, model, kind: as those of `check_unseen`.
  """
  known = learned_problems(model, kind)
  problems = [_problem_of(text) for text in texts]
  met = [problem for problem in problems if problem in known]
  if not met:
    return ''
  return (
    f'{model} was trained on {len(met):,} of the {len(problems):,} problems '
    f'that it is to be judged by, such as {met[0]!r}; set seed, '
    'train_problems, dev_problems and test_problems as they are in its '
    'config.json, or in that of the job whose chains it learned from'
  )


def check_outcome_model(model: str | os.PathLike) -> None:
  """Checks that a model whose step scores count did not learn outcomes alone.

  Args:
    model: the workdir of its run; published models and '' are not known.

  Raises:
    UserError: it did.
  """
  if not model or str(model).startswith(HUB):
    return
  workdir = paths.open_path(model)
  path = _job_of(workdir) / 'config.json'
  if not path.is_file():
    return
  targets = paths.read_json(path, DELETE).get('targets', {})
  baseline = path.parent != workdir and workdir.name == 'orm'
  if baseline or targets.get('supervision') == 'outcome':
    raise UserError(
      f'{model} was trained on outcomes alone, so its scores of steps mean '
      'nothing; judge it with --config.targets.supervision=outcome'
    )


def learned_problems(model: str | os.PathLike, kind: str) -> set[str]:
  """Returns the texts of the problems that a model was trained on.

  This is possible for runs on a domain, whose splits are drawn again. For a run
  on a labelling job's chains they are the problems of those chains, and for a
  critic the problems of the chains that it judged in training. The problems of
  a run's base are not included.

  Args:
    model: the workdir of its run; published models and '' are not known.
    kind: kind of the problems.
  """
  if kind not in DRAWN or not model or str(model).startswith(HUB):
    return set()
  return _problems_of(_job_of(paths.open_path(model)), kind)


def _job_of(workdir: paths.Path) -> paths.Path:
  """Returns the workdir of the job that trained the model in a folder.

  A job keeps its baseline in a folder below its own.
  """
  return workdir if (workdir / 'config.json').is_file() else workdir.parent


def _problems_of(workdir: paths.Path, kind: str) -> set[str]:
  """Returns the problems that a job learned from, labelled, or sampled."""
  path = workdir / 'config.json'
  if not path.is_file():
    return set()
  job = paths.read_json(path, DELETE)
  sections = ('data', 'chains', 'problems')
  section = next((job[name] for name in sections if job.get(name)), {})
  source = section.get('labels')
  if section.get('kind') == 'workdir':  # of a labelling job
    source = section.get('workdir')
  if source:
    return _problems_of(paths.open_path(source), kind)
  if section.get('kind') != kind:
    return set()
  names = {*checks.field_types(DrawConfig), 'kind', 'words'}
  draw = {name: section[name] for name in names if name in section}
  drawn = checks.read(ProblemsConfig, draw, str(path))
  drawn = dataclasses.replace(drawn, critiques=CritiquesConfig())
  if shortest := section.get('shortest'):
    splits = drawn_splits(kind, drawn, (1, 1, 1), job['seed'], shortest)
    return {chain.problem for chain in splits.train}
  split = section.get('split', 'train')
  problems = problems_lib.read_problems(drawn, split, job['seed'])
  first, count = section.get('first', 0), section.get('count', 0)
  problems = problems[first : first + count if count else None]
  return {problem.text for problem in problems}


def _problem_of(text: str) -> str:
  question = read_question(text)
  return question.problem if question else text

"""Reads problems with their right answers, which jobs sample and search.

A config's problems section -> Problems, from a domain or a file.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.data.config import ProblemsConfig, SplitConfig
from prm_jax.data.datasets import data_root
from prm_jax.data.domain_splits import (
  critique_splits,
  drawn_splits,
  words_splits,
)
from prm_jax.data.domains.known import domain_of
from prm_jax.data.readers import records
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.runtime.errors import UserError

# What a file may call the answer; the first that is there.
ANSWERS = ('answer', 'target')


class Problem(NamedTuple):
  """Holds a problem to solve.

  Attributes:
    id: unique among the job's problems.
  """

  id: str
  dataset: str
  text: str
  truth: str


def choose_problems(config: SplitConfig, seed: int) -> list[Problem]:
  """Reads the problems and returns those to sample or search.

  Raises:
    UserError: there are none.
  """
  problems = read_problems(config, config.split, seed)
  end = config.first + config.count if config.count else None
  chosen = problems[config.first : end]
  if not chosen:
    raise UserError(
      f'config.problems.first={config.first}: there are {len(problems)} '
      'problems; lower it'
    )
  return chosen


def read_problems(
  config: ProblemsConfig, split: str, seed: int
) -> list[Problem]:
  """Reads the problems that a config names, in order.

  Args:
    config: a file has JSON lines, or one JSON array, with `problem` (or
      `question`, `input`) and `answer` (or `target`): the answer itself, a
      number, or a worked answer that ends `#### 72`.
    split: split of a domain.
    seed: seed of the draw of its problems, as in configs/prm_math.py.

  Raises:
    UserError: the file or one of its records has another form.
  """
  if config.kind != 'file':
    if config.kind == 'words':
      splits = words_splits(config, config.words, seed)
    else:
      splits = drawn_splits(config.kind, config, (1, 1, 1), seed)
    if config.critiques.style:
      splits = critique_splits(splits, config.critiques, seed, lambda _: None)
    chosen = {
      'train': splits.train,
      'dev': splits.dev,
      'test': splits.evaluations[config.kind],
    }[split]
    if not chosen:
      raise UserError(
        f'problems.{split}_problems=0: there are none to work on; raise it'
      )
    return [
      Problem(chain.problem, config.kind, chain.problem, _truth_of(chain))
      for chain in chosen
    ]
  path = data_root(config.root, 'problems.root') / config.path
  problems = []
  for number, record in enumerate(records.iterate(path), 1):
    try:
      problems.append(_read(record, f'{path.stem}:{number}', path.stem))
    except UserError as error:
      raise UserError(
        f'{path}:{record.line}: {error}; correct the record'
      ) from None
  if not problems:
    raise UserError(f'{path}: has no records; expected JSON or JSON lines')
  return problems


def _truth_of(chain: Chain) -> str:
  if 'truth' in chain.meta:
    return chain.meta['truth']
  return domain_of(chain.problem).true_answer(chain.problem)


def _read(record: records.Record, name: str, dataset: str) -> Problem:
  if isinstance(record.value, UserError):
    raise record.value
  fields = record.value
  if not isinstance(fields, dict):
    raise UserError(f'{records.show(fields)} where a JSON object belongs')
  text = next(
    (field for field in records.PROBLEM_FIELDS if field in fields), 'problem'
  )
  answer = next((field for field in ANSWERS if field in fields), 'answer')
  truth = _truth(fields, answer)
  return Problem(name, dataset, records.text(fields, text), truth)


def _truth(fields: records.Fields, name: str) -> str:
  value = fields.get(name)
  if isinstance(value, int) and not isinstance(value, bool):
    return str(value)
  if isinstance(value, float):
    return str(int(value)) if value.is_integer() else repr(value)
  answer = records.text(fields, name)
  truth = final_answer([answer]) if '####' in answer else answer
  if not truth:
    raise UserError(f'{name!r} has nothing after ####')
  return truth


def fingerprint(problems: Sequence[Problem]) -> str:
  """Returns 16 hex digits over all problems, in order."""
  text = json.dumps(problems, ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()[:16]

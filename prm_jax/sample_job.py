"""The sampling job: problems in, a policy's chains with their outcomes out.

    problems -> policy -> chains, the final answer checked -> WORKDIR/data

What `main.py` runs for `config.task = 'sample'`, in every process of the job.
`rounds/engine.py` runs and resumes it: an item is a problem with all its
samples.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax import paths, policies
from prm_jax.chains import Chain
from prm_jax.data.datasets import arithmetic_splits, data_root
from prm_jax.data.readers import records
from prm_jax.domains import arithmetic_text
from prm_jax.errors import UserError
from prm_jax.labels.labelling import is_right
from prm_jax.policy import Request
from prm_jax.rounds import engine
from prm_jax.rounds.driver import CannotDo, Models, Work
from prm_jax.rounds.journal import Ended
from prm_jax.verify.final_answer import final_answer

Log = Callable[[str], None]
KINDS = ('arithmetic', 'file')
SPLITS = ('train', 'dev', 'test')


class Problem(NamedTuple):
  """Something to solve.

  Attributes:
    id: no other problem of the job has it.
    truth: the right answer.
  """

  id: str
  dataset: str
  text: str
  truth: str


def read_problems(config: Mapping[str, Any], seed: int) -> list[Problem]:
  """The problems that a config names, in order.

  Args:
    config: the problems section. A file has JSON lines, or one JSON array, with
      `problem` or `question`, and `answer`: the answer itself or a worked one
      that ends `#### 72`.
    seed: of the draw of arithmetic problems: those of configs/prm_math.py.

  Raises:
    UserError: the file or one of its records is not so.
  """
  if config['kind'] == 'arithmetic':
    ones = {f'{name}_samples': 1 for name in SPLITS}
    splits = arithmetic_splits(config | ones, seed)
    chosen = {
      'train': splits.train,
      'dev': splits.dev,
      'test': splits.evaluations['arithmetic'],
    }[config['split']]
    return [
      Problem(
        chain.problem,
        'arithmetic',
        chain.problem,
        arithmetic_text.true_answer(chain.problem),
      )
      for chain in chosen
    ]
  path = data_root(config['root'], 'problems.root') / config['path']
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


def _read(record: records.Record, name: str, dataset: str) -> Problem:
  if isinstance(record.value, UserError):
    raise record.value
  if not isinstance(record.value, dict):
    raise UserError(f'{records.show(record.value)} where a JSON object belongs')
  field = 'question' if 'question' in record.value else 'problem'
  answer = records.text(record.value, 'answer')
  truth = final_answer([answer]) if '####' in answer else answer
  if not truth:
    raise UserError("'answer' has nothing after ####")
  return Problem(name, dataset, records.text(record.value, field), truth)


def fingerprint(problems: Sequence[Problem]) -> str:
  """16 hex digits over all of them, in order."""
  text = json.dumps(problems, ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def sample(problem: Problem, samples: int, generator: str) -> Work:
  """The samples of one problem, in order; what has no whole step is left out.

  A chain that did not come to its end has no answer and is wrong. The outcome
  of one whose answer could not be compared in time is None.

  Args:
    generator: the policy's name.

  Raises:
    CannotDo: some could not be had.
  """
  request = Request(problem.text, (), f'{problem.id}/samples', samples)
  (completions,) = yield [request]
  if lost := sum(completion is None for completion in completions):
    raise CannotDo(f'{lost} of {samples} completions could not be had')
  return [
    Chain(
      problem.text,
      written.steps,
      answer=final_answer(written.steps) if written.finished else None,
      outcome=is_right(problem.text, written, problem.truth),
      meta={
        'id': f'{problem.id} # {i}',
        'problem_id': problem.id,
        'dataset': problem.dataset,
        'generator': generator,
        'truth': problem.truth,
        'tokens': written.tokens,
        'finished': written.finished,
      },
    )
    for i, written in enumerate(completions)
    if written.steps
  ]


def check(config: Mapping[str, Any]) -> None:
  """Raises UserError for all that can be seen before anything is read."""
  engine.check(config)
  policies.check(config['policy'])
  problems = config['problems']
  for name, choices in (('kind', KINDS), ('split', SPLITS)):
    if problems[name] not in choices:
      raise UserError(
        f'problems.{name}={problems[name]!r}: expected one of '
        f'{", ".join(choices)}'
      )
  if config['samples'] < 1:
    raise UserError(f'samples={config["samples"]}: expected >= 1')


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  check(config)
  paths.check_local(workdir, 'the workdir of a sampling job')
  seed, samples = config['seed'], config['samples']
  policy = policies.open_policy(config['policy'], seed, workdir)
  problems = read_problems(config['problems'], seed)

  def counts(items: Mapping[int, Ended]) -> dict[str, Any]:
    sampled = [ended for ended in items.values() if not ended.failed]
    chains = [chain for ended in sampled for chain in ended.chains]
    return {
      'problems': len(problems),
      'sampled': len(sampled),
      'chains': len(chains),
      'right': sum(bool(chain.outcome) for chain in chains),
      'unfinished': sum(not chain.meta['finished'] for chain in chains),
      'unchecked': sum(chain.outcome is None for chain in chains),
      'without_a_step': samples * len(sampled) - len(chains),
    }

  job = engine.Job(
    name='samples',
    kind='samples',
    about={
      'data_fingerprint': fingerprint(problems),
      'policy': policy.name,
    },
    count=len(problems),
    start=lambda i: sample(problems[i], samples, policy.name),
    counts=counts,
    models=Models(policy=policy),
    at_once=policies.at_once(config['policy']),
  )
  engine.run(job, config, workdir, log)

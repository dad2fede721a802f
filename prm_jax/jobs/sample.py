"""The sampling job: problems in, a policy's chains with their outcomes out.

    problems -> policy -> chains, the final answer checked -> WORKDIR/data

What `main.py` runs for `config.task = 'sample'`, in every process of the job.
`jobs/engine.py` runs and resumes it: an item is a problem with all its
samples.
"""

from collections.abc import Callable, Mapping
from typing import Any

from prm_jax.data import problems as problems_lib
from prm_jax.data.chains import Chain
from prm_jax.data.problems import Problem
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.driver import CannotDo, Ended, Models, Work
from prm_jax.inference.grading import is_right
from prm_jax.inference.protocols import Request
from prm_jax.jobs import engine, policies
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

Log = Callable[[str], None]


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
  problems_lib.check(config['problems'])
  if config['samples'] < 1:
    raise UserError(f'samples={config["samples"]}: expected >= 1')


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  check(config)
  paths.check_local(workdir, 'the workdir of a sampling job')
  seed, samples = config['seed'], config['samples']
  policy = policies.open_policy(config['policy'], seed, workdir)
  problems = problems_lib.read_problems(config['problems'], seed)

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
      'data_fingerprint': problems_lib.fingerprint(problems),
      'policy': policy.name,
    },
    count=len(problems),
    start=lambda i: sample(problems[i], samples, policy.name),
    counts=counts,
    models=Models(policy=policy),
    at_once=policies.at_once(config['policy']),
  )
  engine.run(job, config, workdir, log)

"""Runs the sampling job: problems in, a policy's chains with outcomes out.

    problems -> policy -> chains, the final answer checked -> WORKDIR/data

`main.py` runs it for `config.task = 'sample'`, in every process of the job.
`engine.py` runs and resumes its items: an item is a problem with all its
samples.
"""

from collections.abc import Callable, Mapping
from typing import Any

from prm_jax.data import problems as problems_lib
from prm_jax.data.chains import Chain
from prm_jax.data.problems import Problem
from prm_jax.inference.driver import AskedModels, CannotDo, Ended, Work
from prm_jax.inference.grading import answer_of, is_right
from prm_jax.inference.protocols import Request
from prm_jax.jobs import engine, policies
from prm_jax.jobs.settings.items import SampleSettings
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]


def run(settings: SampleSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  workdir.check_local('a sampling job')
  policy = policies.open_policy(settings, workdir)
  problems = problems_lib.choose_problems(settings.problems, settings.seed)
  samples = settings.samples
  job = engine.ItemJob(
    name='samples',
    kind='samples',
    about={
      'data_fingerprint': problems_lib.fingerprint(problems),
      'policy': policy.name,
    },
    count=len(problems),
    start=lambda i: sample(problems[i], samples, policy.name),
    counts=lambda items: count_chains(items, len(problems), samples),
    models=AskedModels(policy=policy),
  )
  engine.run(job, settings, workdir, log)


def sample(problem: Problem, samples: int, generator: str) -> Work:
  """Samples the chains of one problem; drops those without a whole step.

  A chain that was cut off has no answer and counts as wrong. The outcome is
  None if comparing the answer took too long.

  Returns:
    The chains, in the order of their samples.

  Raises:
    CannotDo: the policy could not give all samples.
  """
  request = Request(problem.text, (), f'{problem.id}/samples', samples)
  (completions,) = yield [request]
  if lost := sum(completion is None for completion in completions):
    raise CannotDo(f'{lost} of {samples} completions could not be had')
  return [
    Chain(
      problem.text,
      written.steps,
      answer=answer_of(problem.text, written.steps)
      if written.finished
      else None,
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


def count_chains(
  items: Mapping[int, Ended], problems: int, samples: int
) -> dict[str, Any]:
  """Returns the ledger's counts of problems and chains."""
  sampled = [ended for ended in items.values() if not ended.failed]
  chains = [chain for ended in sampled for chain in ended.chains]
  return {
    'problems': problems,
    'sampled': len(sampled),
    'chains': len(chains),
    'right': sum(bool(chain.outcome) for chain in chains),
    'unfinished': sum(not chain.meta['finished'] for chain in chains),
    'unchecked': sum(chain.outcome is None for chain in chains),
    'without_a_step': samples * len(sampled) - len(chains),
  }

"""Runs the policy job: data, supervised fine-tuning, samples, results.

`main.py` runs it for `config.task = 'policy'`, in every process of the job. The
best checkpoint is the one with the highest likelihood of the dev chains. It is
evaluated on chains that it samples.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.data.census import take_census
from prm_jax.data.chains import Chain
from prm_jax.data.domains import known
from prm_jax.data.pipeline import make_batches, pad_rows
from prm_jax.data.segments import split_chain
from prm_jax.evals import policy as policy_evaluation
from prm_jax.evals.prm import some_problems
from prm_jax.inference.generator import Generator
from prm_jax.jobs.settings.training import PolicySettings
from prm_jax.jobs.training import (
  TrainingJob,
  batch_config,
  open_job,
  train_best,
)
from prm_jax.models.decoding_params import take_over
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import batch_sharding
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.objective import (
  POLICY_LOSS,
  ObjectiveConfig,
  batch_loss,
)

Log = Callable[[str], None]


def run(settings: PolicySettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  began = time.monotonic()
  check_grading(settings.data.kind)
  opened = open_job(settings, workdir, log)
  for name, chains in opened.dataset.evaluations.items():
    some = some_problems(chains, settings.evaluation.max_problems)
    policy_evaluation.known_answers(name, some)  # before hours of work
  workdir.claim(opened.dataset.fingerprint)
  described = opened.model.described
  dev = dev_set(opened)
  likelihood = make_likelihood(opened, dev)

  def evaluate(params: Any) -> dict[str, float]:
    return {'eval/log_likelihood': likelihood(described.attached(params))}

  params = train_best('policy', opened, workdir, evaluate, log)
  results: dict[str, Any] = {'dev': {'log_likelihood': likelihood(params)}}
  of_solver = settings.data.kind == 'arithmetic'
  if of_solver and not settings.data.critiques.style and dev.whole:
    total = policy_evaluation.solver_log_likelihood(
      settings.data.arithmetic, dev.chains
    )
    results['dev']['solver_log_likelihood'] = total / dev.tokens
  policy = Generator(
    take_over(
      params.pop('backbone'),
      described.model,
      opened.mesh,
      settings.sampling.spread,
    ),
    described.model,
    described.format,
    opened.mesh,
    settings.sampling,
    settings.seed,
  )
  results['sampling'] = evaluate_samples(opened, policy, log)
  about = opened.manifest() | {
    'sampled_tokens': policy.stats.tokens,
    'sampling_seconds': round(policy.stats.seconds, 1),
    'wall_seconds': round(time.monotonic() - began, 1),
  }
  workdir.write_results(about, results)
  print_table(results, log)
  log(f'results: {workdir / "results.json"}')


class DevSet(NamedTuple):
  """Holds the dev chains, packed as training chains are.

  Attributes:
    whole: whether all dev chains fit without being cut.
    batches: batches with all rows, the same in every process.
    tokens: number of tokens that the loss counts.
  """

  chains: Sequence[Chain]
  whole: bool
  batches: Sequence[Mapping[str, np.ndarray]]
  tokens: float


def dev_set(opened: TrainingJob) -> DevSet:
  """Packs the dev chains; empty rows fill up the last batch."""
  settings, fmt = opened.settings, opened.model.described.format
  targets = settings.targets
  limit, how = settings.evaluation.max_dev_problems, settings.data.segments
  chains = [
    split_chain(chain, how)
    for chain in some_problems(opened.dataset.dev, limit)
  ]
  config = dataclasses.replace(batch_config(settings), seed=0, epochs=1)
  census = take_census(chains, fmt, targets, config)
  batches = [
    pad_rows(batch, config.batch_size) for batch in make_batches(census, config)
  ]
  return DevSet(
    [chains[i] for i in census.usable],
    not census.truncated and not census.too_long,
    batches,
    float(sum(batch['lm_weights'].sum() for batch in batches)),
  )


def make_likelihood(opened: TrainingJob, dev: DevSet) -> Callable[[Any], float]:
  """Returns a function: parameters -> log-likelihood of the dev chains.

  It is in nats per token that the loss counts; 0 would be certainty.
  """
  mesh, model = opened.mesh, opened.model.described.model
  objective = ObjectiveConfig(model, None, POLICY_LOSS)
  placed = batch_sharding(mesh)

  def put(value: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(value.shape, placed, value.__getitem__)

  @jax.jit
  def summed(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    total, _ = batch_loss(params, batch, 1.0, 1.0, objective)
    # Whole on every device, so that every process can read it.
    return jax.lax.with_sharding_constraint(total, NamedSharding(mesh, P()))

  def likelihood(params: Any) -> float:
    with jax.set_mesh(mesh):
      total = sum(
        float(summed(params, {k: put(v) for k, v in batch.items()}))
        for batch in Heartbeat('dev batches', len(dev.batches)).over(
          dev.batches
        )
      )
    return -total / dev.tokens

  return likelihood


def evaluate_samples(
  opened: TrainingJob, policy: Generator, log: Log
) -> dict[str, Any]:
  """Samples the problems of every evaluation, and measures the chains.

  `data` has the metrics of the evaluation's own chains, if it has as many of
  each problem.
  """
  wanted = opened.settings.evaluation
  sections = {}
  for name, every_chain in opened.dataset.evaluations.items():
    chains = some_problems(every_chain, wanted.max_problems)
    problems, truths = policy_evaluation.known_answers(name, chains)
    log(f'{name}: {wanted.samples} chains of {len(problems):,} problems')
    written = {
      'policy': policy_evaluation.complete(policy, problems, wanted.samples),
      'data': policy_evaluation.recorded_completions(
        chains, problems, wanted.samples
      ),
    }
    sections[name] = {
      whose: policy_evaluation.sampling_section(
        problems,
        truths,
        completions,
        wanted.ns,
        opened.settings.seed,
        wanted.resamples,
      )
      for whose, completions in written.items()
      if completions
    }
  return sections


def print_table(results: Mapping[str, Any], log: Log) -> None:
  """Prints the main numbers of a run."""
  dev = results['dev']
  log('')
  best = dev.get('solver_log_likelihood')
  than = '' if best is None else f' (of the solver itself: {best:.4f})'
  log(
    f'log-likelihood of dev chains: {dev["log_likelihood"]:.4f} a token{than}'
  )
  for name, sections in results['sampling'].items():
    first = next(iter(sections.values()))
    log('')
    log(f'{name:16}' + ''.join(f'{n:>8}' for n in first['by_n']['n']))
    for writer, section in sections.items():
      for kind in ('pass', 'majority'):
        means = section['by_n'][kind]['mean']
        cells = ''.join(f'{100 * mean:8.1f}' for mean in means)
        log(f'{writer + " " + kind:16}{cells}')
    for writer, section in sections.items():
      agree = section['agreement_in_error']
      log(
        f'{writer}: accuracy {100 * section["accuracy"]["mean"]:.1f}, '
        f'rightly formed {100 * section["formed"]:.1f}, '
        f'majority wrong {100 * section["majority_wrong"]:.1f}'
        + ('' if agree is None else f', errors agree {100 * agree:.1f}')
      )
  log('')


def check_grading(kind: str) -> None:
  """Raises UserError, before hours of work, if answers cannot be compared.

  Args:
    kind: kind of the data; a known domain's answers need no library.
  """
  if kind not in known.DOMAINS and not find_spec('math_verify'):
    raise UserError(
      'math-verify, which compares answers, is not installed: pip install '
      "'prm_jax[verify]'"
    )

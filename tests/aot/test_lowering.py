"""Every job's programs lower for GPUs and TPUs, on a machine without either."""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tests.shared import lowered_programs, tiny_jobs
from tests.shared.command_line import ROOT
from tests.shared.tiny_jobs import POLICY, PRM, TRAINED

ADAPTERS = ('--config.lora.rank=2', '--config.model.remat=full')
QUICK = ('--config.evaluation.resamples=10', '--config.orm_baseline=False')
FEW_UPDATES = (
  '--config.train.updates=2',
  '--config.evaluation.resamples=10',
)
# In stages, with every kind of job, head, loss, estimator and cache.
JOBS = (
  {
    'prm': ('prm_math:tiny', *QUICK),
    'policy': ('policy_math:tiny', '--config.evaluation.resamples=10'),
  },
  {
    'prm_adapters': (
      'prm_math:from_run,tiny',
      '--config.base={tmp}/policy',
      '--config.head.kind=two_class',
      '--config.loss.name=cross_entropy',
      '--config.loss.lm_weight=0.5',
      '--config.train.microbatches=2',
      *ADAPTERS,
      *QUICK,
    ),
    'sample': ('sample_math:tiny', *TRAINED),
    'label': ('label_math:rollouts,tiny', *TRAINED),
    'search': (
      'search_math:beam,tiny',
      *TRAINED,
      '--config.prm.kind=workdir',
      PRM,
    ),
    'rl_grpo': ('rl_math:grpo,tiny', POLICY, PRM, *FEW_UPDATES, *ADAPTERS),
    'rl_ppo': ('rl_math:ppo,tiny', POLICY, PRM, *FEW_UPDATES),
    'rl_prime': ('rl_math:prime,tiny', POLICY, *FEW_UPDATES),
  },
)
# Functions that some job must have jitted.
PROGRAMS = {
  *('best_of_n', 'gather_cache', 'implicit', 'init', 'init_cache', 'init_pool'),
  *('insert', 'merge', 'process_returns', 'put', 'put_cache', 'read'),
  *('read_on', 'read_prompts', 'read_rows', 'row_scores', 'sample_chunk'),
  *('summed', 'token_advantages', 'train_step', 'unstack_layers', 'zeroed'),
}
# What these modules jit runs in several processes, or is compiled alone.
ELSEWHERE = {
  'prm_jax.runtime.stopping',
  'prm_jax.aot.programs',
  'prm_jax.models.hub.maxtext',
}


def run_recorded(output, *args, **options):
  done = subprocess.run(
    [sys.executable, '-m', 'tests.shared.lowered_programs', output, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    **options,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def run_jobs(folder, stages):
  """Runs jobs in stages; returns what was lowered."""
  output = folder / 'lowered.jsonl'
  for jobs in stages:
    lines = [
      tiny_jobs.command_line(job, folder, name) for name, job in jobs.items()
    ]
    answer = run_recorded(output, input=json.dumps(lines))
    for name, (code, _, err) in zip(jobs, json.loads(answer), strict=True):
      assert code == 0, f'{name}: {err}'
  return output


def modules_that_jit():
  found = set()
  for path in (ROOT / 'prm_jax').rglob('*.py'):
    if re.search(r'\bjax\.jit\b', re.sub(r'`+.*?`+', '', path.read_text())):
      found.add('.'.join(path.relative_to(ROOT).with_suffix('').parts))
  return found


@pytest.fixture(scope='module')
def lowered(tmp_path_factory):
  folder = tmp_path_factory.mktemp('lowered')
  output = run_jobs(folder, JOBS)
  run_recorded(output, str(folder / 'prm_adapters'))
  return lowered_programs.read(output)


@pytest.mark.job
@pytest.mark.parametrize('platform', lowered_programs.PLATFORMS)
def test_every_program_lowers(platform, lowered):
  here = [each for each in lowered if each.platform == platform]
  assert [each for each in here if each.error] == []
  assert {each.name for each in here} >= PROGRAMS


@pytest.mark.job
def test_no_module_jits_what_no_job_runs(lowered):
  assert modules_that_jit() - {each.module for each in lowered} == ELSEWHERE


def test_a_primitive_of_the_cpu_alone_is_found():
  jitted = jax.jit(jax.lax.linalg.schur)
  error = lowered_programs.try_to_lower(jitted, 'cuda', jnp.eye(3))
  assert "rule for primitive 'schur' not found for platform cuda" in error
  assert not lowered_programs.try_to_lower(jitted, 'cpu', jnp.eye(3))


@pytest.mark.slow
def test_every_tiny_config_lowers(tmp_path):
  stages = list(tiny_jobs.STAGES)
  if os.environ.get('PRM_JAX_DATA'):
    stages[1] = stages[1] | tiny_jobs.ON_DATA
  found = lowered_programs.read(run_jobs(tmp_path, stages))
  assert [each for each in found if each.error] == []

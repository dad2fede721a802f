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
from tests.shared.tiny_jobs import POLICY, PRM

ADAPTERS = ('--config.lora.rank=2', '--config.model.remat=full')
# Beside tiny_jobs.STAGES, which train whole models.
WITH_ADAPTERS = {
  'prm_adapters': (
    'prm_math:from_run,tiny',
    '--config.base={tmp}/policy',
    '--config.head.kind=two_class',
    '--config.loss.name=cross_entropy',
    '--config.loss.lm_weight=0.5',
    '--config.train.microbatches=2',
    '--config.orm_baseline=False',
    *ADAPTERS,
  ),
  'rl_adapters': ('rl_math:grpo,tiny', POLICY, PRM, *ADAPTERS),
}
# Jobs that compute nothing, as the domain's solver writes and its truth judges,
# and those whose programs another one has.
OTHERS = re.compile(r'sample$|label_(?!active)|search_(?!trained)|prm_o')
# Functions that some job must have jitted.
PROGRAMS = {
  *('best_of_n', 'gather_cache', 'implicit', 'init', 'init_cache', 'init_pool'),
  *('insert', 'merge', 'next_logprobs', 'process_returns', 'put'),
  *('put_cache', 'read', 'read_on', 'read_prompts', 'read_rows', 'row_scores'),
  *(
    'sample_chunk',
    'sum_words',
    'summed',
    'token_advantages',
    'train_step',
    'unstack_layers',
    'zeroed',
  ),
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


def modules_that_jit():
  found = set()
  for path in (ROOT / 'prm_jax').rglob('*.py'):
    if re.search(r'\bjax\.jit\b', re.sub(r'`+.*?`+', '', path.read_text())):
      found.add('.'.join(path.relative_to(ROOT).with_suffix('').parts))
  return found


@pytest.fixture(scope='module')
def lowered(tmp_path_factory):
  """What tiny jobs lowered, and a trained PRM that scores chains."""
  folder = tmp_path_factory.mktemp('lowered')
  output = folder / 'lowered.jsonl'
  stages = list(tiny_jobs.STAGES)
  stages[1] = stages[1] | WITH_ADAPTERS
  if os.environ.get('PRM_JAX_DATA'):
    stages[1] = stages[1] | tiny_jobs.ON_DATA
  for jobs in stages:
    names = [name for name in jobs if not OTHERS.match(name)]
    lines = [tiny_jobs.command_line(jobs[name], folder, name) for name in names]
    answer = run_recorded(output, input=json.dumps([lines]))
    for name, (code, _, err) in zip(names, json.loads(answer), strict=True):
      assert code == 0, f'{name}: {err}'
  run_recorded(output, str(folder / 'prm_adapters'))
  return lowered_programs.read(output)


@pytest.mark.slow
@pytest.mark.parametrize('platform', lowered_programs.PLATFORMS)
def test_every_program_lowers(platform, lowered):
  here = [each for each in lowered if each.platform == platform]
  assert [each for each in here if each.error] == []
  assert {each.name for each in here} >= PROGRAMS


@pytest.mark.slow
def test_no_module_jits_what_no_job_runs(lowered):
  assert modules_that_jit() - {each.module for each in lowered} == ELSEWHERE


def test_a_primitive_of_the_cpu_alone_is_found():
  jitted = jax.jit(jax.lax.linalg.schur)
  error = lowered_programs.try_to_lower(jitted, 'cuda', jnp.eye(3))
  assert "rule for primitive 'schur' not found for platform cuda" in error
  assert not lowered_programs.try_to_lower(jitted, 'cpu', jnp.eye(3))

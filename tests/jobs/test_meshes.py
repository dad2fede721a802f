"""Jobs of many items on eight devices give what they give on one."""

import pytest

from prm_jax.data import chain_sets
from tests.shared.command_line import LABEL, run_all
from tests.shared.finished_jobs import FinishedJobs
from tests.shared.several_processes import process_flags

pytestmark = [pytest.mark.job, pytest.mark.slow]

POLICY = (
  '--config.policy.kind=workdir',
  '--config.policy.workdir={tmp}/policy',
  # Untrained as it is, it would write to the window's end.
  '--config.policy.sampling.max_tokens=12',
)
JOBS = {
  'sample': ('--config=configs/sample_math.py:tiny', *POLICY),
  'label': (
    f'{LABEL}rollouts,tiny',
    *POLICY,
    '--config.chains.train_problems=8',
  ),
  'search': (
    '--config=configs/search_math.py:beam,tiny',
    *POLICY,
    '--config.prm.kind=workdir',
    '--config.prm.path={prm}',
  ),
}
EIGHT = (
  '--config.cpu_devices=8',
  '--config.mesh.fsdp=4',
  '--config.mesh.model=2',
  '--config.policy.sampling.spread=True',
)


@pytest.fixture(scope='module')
def jobs(tmp_path_factory, finished) -> FinishedJobs:
  return FinishedJobs(
    tmp_path_factory.mktemp('jobs'),
    {'policy': ['--config=configs/policy_math.py:tiny']},
    {name: [*args] for name, args in JOBS.items()}
    | {f'{name} on eight': [*args, *EIGHT] for name, args in JOBS.items()},
    prm=finished,
  )


def said(chains):
  """What the chains say, with the labels of their steps."""
  return [(chain.problem, chain.steps, chain.labels) for chain in chains]


@pytest.mark.parametrize('name', JOBS)
def test_eight_devices_write_what_one_writes(jobs, name):
  one, eight = (jobs.chains(each) for each in (name, f'{name} on eight'))
  assert said(one) == said(eight)
  assert sum(len(chain.steps) for chain in one) > 3


@pytest.mark.parametrize('name', JOBS)
def test_two_processes_of_four_devices_write_what_one_writes(
  jobs, tmp_path, name
):
  """The mesh names the devices of one process."""
  four = (
    '--config.cpu_devices=4',
    '--config.mesh.fsdp=2',
    '--config.mesh.model=2',
    '--config.policy.sampling.spread=True',
    f'--workdir={tmp_path}',
  )
  arguments = [*jobs.fill(JOBS[name]), *four]
  ended = run_all(
    [[*arguments, *flags] for flags in process_flags(2)], together=True
  )
  assert [done.returncode for done in ended] == [0, 0], ended
  together = chain_sets.read(str(tmp_path), 'x')
  assert said(together) == said(jobs.chains(name))

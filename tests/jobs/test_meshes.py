"""Jobs of many items on eight devices give what they give on one."""

import pytest

from tests.shared.command_line import LABEL
from tests.shared.finished_jobs import FinishedJobs

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


@pytest.mark.parametrize('name', JOBS)
def test_eight_devices_write_what_one_writes(jobs, name):
  one, eight = (jobs.chains(each) for each in (name, f'{name} on eight'))
  assert [chain.steps for chain in one] == [chain.steps for chain in eight]
  assert [chain.labels for chain in one] == [chain.labels for chain in eight]
  assert sum(len(chain.steps) for chain in one) > 8

"""Jobs with a PRM at a server do what they do with it in process."""

import pytest

from tests.serve.live_server import LiveServer
from tests.shared.finished_jobs import FinishedJobs

pytestmark = [pytest.mark.job, pytest.mark.slow]

FIRST = {
  'samples': ['--config=configs/sample_math.py:tiny'],
  'policy': ['--config=configs/policy_math.py:tiny'],
  'prm': ['--config=configs/prm_math.py:tiny'],
}
JOBS = {
  'beam': ['--config=configs/search_math.py:beam,tiny'],
  'active': [
    '--config=configs/label_math.py:active,tiny',
    '--config.chains.workdir={tmp}/samples',
    '--config.active.budget=2',
  ],
  'rl': [
    '--config=configs/rl_math.py:grpo,tiny',
    '--config.policy.workdir={tmp}/policy',
  ],
}
HERE = ['--config.prm.kind=workdir', '--config.prm.path={tmp}/prm']
THERE = ['--config.prm.kind=endpoint', '--config.prm.endpoint.base_url={url}']


@pytest.fixture(scope='module')
def jobs(tmp_path_factory):
  """Each job twice: with the PRM here, and with the one at a server."""
  tmp = tmp_path_factory.mktemp('jobs')
  FinishedJobs(tmp, FIRST)
  server = LiveServer(tmp / 'prm').wait()
  both = {
    f'{name} {place}': [*job, *prm]
    for name, job in JOBS.items()
    for place, prm in (('here', HERE), ('there', THERE))
  }
  try:
    yield FinishedJobs(tmp, both, url=f'http://127.0.0.1:{server.port}/v1')
  finally:
    server.stop()


def test_a_beam_search_finds_the_same(jobs):
  here, there = (jobs.chains(f'beam {place}') for place in ('here', 'there'))
  assert [chain.steps for chain in here] == [chain.steps for chain in there]
  paid = jobs.read('beam there')['prm_server']
  assert paid['calls'] > 0 and paid['failed'] == {}
  assert paid['prompt_tokens'] == jobs.read('beam here')['scored_tokens']


def test_the_same_chains_are_selected_for_labels(jobs):
  here, there = (jobs.chains(f'active {place}') for place in ('here', 'there'))
  assert here and [(c.problem, c.steps) for c in here] == [
    (c.problem, c.steps) for c in there
  ]
  assert jobs.read('active there')['prm_server']['calls'] > 0


def test_rl_gets_the_same_scores_and_counts_its_calls(jobs):
  here, there = (
    jobs.read(f'rl {place}', 'results.json') for place in ('here', 'there')
  )
  assert there['manifest']['prm_server']['calls'] > 0
  assert 'prm_server' not in here['manifest']
  told = [each['results']['rl']['looks'][0]['told'] for each in (here, there)]
  assert told[0].keys() == told[1].keys() and told[0]
  for name in told[0]:
    assert told[1][name] == pytest.approx(told[0][name], abs=1e-4), name

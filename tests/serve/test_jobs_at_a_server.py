"""Jobs with a PRM at a server do what they do with it in process."""

import pytest

from tests.serve.live_server import LiveServer
from tests.shared.finished_jobs import FinishedJobs

pytestmark = [pytest.mark.job, pytest.mark.slow]

BEAM = '--config=configs/search_math.py:beam,tiny'
ACTIVE = (
  '--config=configs/label_math.py:active,tiny',
  '--config.chains.workdir={tmp}/samples',
  '--config.active.budget=2',
)
RL = (
  '--config=configs/rl_math.py:grpo,tiny',
  '--config.policy.workdir={tmp}/policy',
)


@pytest.fixture(scope='module')
def jobs(finished, tmp_path_factory):
  """Each job twice: with the PRM here, and with the one at a server."""
  server = LiveServer(finished).wait()
  here = ('--config.prm.kind=workdir', f'--config.prm.path={finished}')
  there = (
    '--config.prm.kind=endpoint',
    f'--config.prm.endpoint.base_url=http://127.0.0.1:{server.port}/v1',
  )
  first = {
    'samples': ['--config=configs/sample_math.py:tiny'],
    'policy': ['--config=configs/policy_math.py:tiny'],
  }
  then = {
    f'{name} {place}': [*job, *prm]
    for name, job in (('beam', (BEAM,)), ('active', ACTIVE), ('rl', RL))
    for place, prm in (('here', here), ('there', there))
  }
  try:
    yield FinishedJobs(tmp_path_factory.mktemp('jobs'), first, then)
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
  first = []
  for place in ('here', 'there'):
    results = jobs.read(f'rl {place}', 'results.json')
    first.append(results['results']['rl'])
  assert results['manifest']['prm_server']['calls'] > 0
  assert first[0]['score'][0] == pytest.approx(first[1]['score'][0], abs=1e-5)

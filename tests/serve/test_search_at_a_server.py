"""A beam search with a PRM at a server chooses what it chooses in process."""

import pytest

from tests.serve.live_server import LiveServer
from tests.shared.finished_jobs import FinishedJobs

pytestmark = [pytest.mark.job, pytest.mark.slow]

BEAM = '--config=configs/search_math.py:beam,tiny'


def test_a_beam_search_through_the_server(finished, tmp_path):
  server = LiveServer(finished).wait()
  try:
    jobs = FinishedJobs(
      tmp_path,
      {
        'here': [
          BEAM,
          '--config.prm.kind=workdir',
          f'--config.prm.path={finished}',
        ],
        'there': [
          BEAM,
          '--config.prm.kind=endpoint',
          f'--config.prm.endpoint.base_url=http://127.0.0.1:{server.port}/v1',
        ],
      },
    )
  finally:
    server.stop()
  here, there = (jobs.chains(name) for name in ('here', 'there'))
  assert [chain.steps for chain in here] == [chain.steps for chain in there]
  paid = jobs.read('there')['prm_server']
  assert paid['calls'] > 0 and paid['failed'] == {}
  assert paid['prompt_tokens'] == jobs.read('here')['scored_tokens']

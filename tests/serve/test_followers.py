"""Two processes serve one PRM, whose layers and rows are split over both."""

import re
import signal
import subprocess
import sys
import time

import pytest

import prm_jax
from tests.serve.live_server import LiveServer
from tests.shared.command_line import ROOT
from tests.shared.several_processes import process_flags, wait_for_all

pytestmark = [pytest.mark.job, pytest.mark.slow]

PROBLEM = 'mod 10 : 7 * 3 + 4'
CHAINS = [(PROBLEM, ['7 * 3 = 1', f'1 + 4 = {n}']) for n in range(4)]
SPLITS = {'fsdp': (), 'model': ('--model', '2')}


def start(prm, *flags):
  """Starts both; each has two CPU devices."""
  return [
    LiveServer(prm, *flags, *own, environment={'JAX_NUM_CPU_DEVICES': '2'})
    for own in process_flags(2)
  ]


@pytest.mark.parametrize('split', SPLITS)
def test_scores_are_those_of_one_process(finished, split):
  first, second = start(finished, *SPLITS[split])
  try:
    first.wait()
    prm = prm_jax.load(finished)
    for chain in CHAINS:
      for steps in (chain[1][:1], chain[1]):  # the second from the cache
        status, reply = first.score((chain[0], steps))
        assert status == 200
        wanted = prm.score(chain[0], steps).tolist()
        assert reply['data'][0]['scores'] == pytest.approx(wanted, abs=1e-6)
    assert reply['usage']['cached_tokens'] > 0
    code, said = first.stop()
    assert code == 0, said
    assert second.process.wait(timeout=60) == 0, second.said()
  finally:
    for server in (first, second):
      server.process.kill()
  assert 'Traceback' not in said + second.said()


def test_a_signal_to_the_second_waits_for_the_first(finished):
  first, second = start(finished)
  try:
    first.wait()
    second.process.send_signal(signal.SIGTERM)
    # If it ends by the signal, it does so by the next message at the latest.
    for chain in CHAINS[:2]:
      assert first.score(chain)[0] == 200
    assert second.process.poll() is None
  finally:
    for server in (first, second):
      server.process.kill()


def test_a_server_that_lost_a_process_says_so(finished):
  first, second = start(finished)
  try:
    first.wait()
    assert first.score(CHAINS[0])[0] == 200
    second.process.kill()
    second.process.wait()
    # The next call cannot be computed. The server says so, or JAX ends it after
    # 40 seconds without the other; whoever watches /health learns it.
    try:
      assert first.score(CHAINS[1])[0] == 503
    except ConnectionError:
      assert first.process.wait(timeout=60), first.said()
    end = time.monotonic() + 60
    while is_healthy(first):
      assert time.monotonic() < end
      time.sleep(0.05)
  finally:
    for server in (first, second):
      server.process.kill()


def is_healthy(server):
  try:
    return server.get('/health')[0] == 200
  except ConnectionError:
    return False


def fail(who):
  """Returns how both ended, where a call failed in both or in one of them."""
  line = [sys.executable, '-m', 'tests.shared.calls_that_fail', who]
  return wait_for_all(
    [
      subprocess.Popen(
        [*line, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
      for flags in process_flags(2)
    ]
  )


def test_after_a_call_that_failed_in_both_they_go_on():
  first, second = fail('both')
  assert first.returncode == second.returncode == 0, first.stderr
  said = re.sub('.*Gloo.*\n', '', first.stdout)
  assert said == 'failed: no room\nscored: (2.0,)\n'


@pytest.mark.parametrize('who', [0, 1])
def test_one_that_fails_alone_ends_and_the_other_learns_of_it(who):
  """Else the other would wait in a program for ever."""
  ended = fail(str(who))
  assert ended[who].returncode == 1
  said = f'process {who} failed alone (no room); start all of them'
  assert said in ended[who].stderr
  other = ended[1 - who]
  assert other.returncode, other.stdout  # JAX may abort it
  assert 'scored' not in ended[0].stdout

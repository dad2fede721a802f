"""Tests that jobs that ask a server and are killed pay for nothing twice."""

import json
import pathlib
import signal
from collections import defaultdict

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from prm_jax.inference.server import usage
from prm_jax.inference.server.config import EndpointConfig
from tests.shared import command_line
from tests.shared.command_line import LABEL, chain_flags, run_all, workdir_flag
from tests.shared.faulty_server import (
  USAGE,
  Gate,
  count_replies,
  serving,
  verdict,
)
from tests.shared.finished_jobs import read_outcome
from tests.shared.interruptions import count_journal_lines, fill_in, interrupt

pytestmark = [pytest.mark.job, pytest.mark.slow]

# Asks the server of the test.
JUDGE = (
  f'{LABEL}judge',
  *chain_flags(300),
  '--config.policy.endpoint.base_url={server}',
  '--config.policy.endpoint.model=m',
  '--config.policy.endpoint.attempts=1',
  '--config.judge.samples=2',
  '--config.price.tokens=2',
  '--config.price.prompt_tokens=1',
)


def replies_of(workdir: pathlib.Path) -> int:
  """Returns the number of answers on disk."""
  return count_replies(workdir / 'replies')


def ledger_of(workdir: pathlib.Path) -> dict:
  return json.loads((workdir / 'ledger.json').read_text())


def server_of(workdir: pathlib.Path) -> dict:
  """Returns the ledger's usage of the server."""
  return ledger_of(workdir)['server']


def test_a_killed_judge_and_a_failing_one_are_resumed(tmp_path):
  """Answers on disk are not asked for again; lost ones are."""
  with serving() as server:
    server.fault = verdict
    arguments = fill_in(JUDGE, {'server': server.url})
    (whole,) = run_all([[*arguments, workdir_flag(tmp_path / 'whole')]])
    assert whole.returncode == 0, whole.stderr
    expected = read_outcome(tmp_path / 'whole')
    assert expected['ledger']['calls'] == len(server.asked) == 600
    assert expected['ledger']['failed']  # votes that are tied

    server.pause = 0.02
    folder = tmp_path / 'killed'
    killed = interrupt(arguments, folder, 100, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert 99 <= count_journal_lines(folder) - 1 < 300
    server.pause, kept = 0, replies_of(folder)
    asked = len(server.asked)
    (done,) = run_all([[*arguments, workdir_flag(folder)]])
    assert done.returncode == 0, done.stderr
    assert len(server.asked) - asked == 600 - kept
    assert read_outcome(folder) == expected

    # At first the server fails at both replies of every tenth chain and at one
    # reply of another tenth; then it answers them.
    folder = tmp_path / 'failing'
    replies = defaultdict(list)
    for body in server.asked[:600]:
      replies[json.dumps(body['messages'])].append(json.dumps(body))
    pairs = [sorted(replies[question]) for question in sorted(replies)]
    assert [len(pair) for pair in pairs] == [2] * 300
    fails = {it for pair in pairs[::10] for it in pair}
    fails |= {first for first, _ in pairs[5::10]}
    server.fault = lambda body, before: (
      500 if json.dumps(body) in fails else verdict(body, before)
    )
    (first,) = run_all([[*arguments, workdir_flag(folder)]])
    assert first.returncode == 0, first.stderr
    ledger = read_outcome(folder)['ledger']
    assert ledger['lost'] == 90
    assert server_of(folder)['failed'] == {'status 500': 90}
    # Items decided by one of two replies are done; the others are tried again.
    assert ledger['partly_answered'] == 30
    wanting = 60
    server.fault, asked = verdict, len(server.asked)
    (second,) = run_all([[*arguments, workdir_flag(folder)]])
    assert second.returncode == 0, second.stderr
    assert 'once more' in second.stdout
    ledger = read_outcome(folder)['ledger']
    assert set(ledger['failed']) == set(expected['ledger']['failed'])
    assert ledger['calls'] > 600
    # Answers of the first run are neither asked for nor paid for again.
    assert len(server.asked) - asked == wanting
    paid = server_of(folder)
    assert paid['calls'] == 600 + wanting
    assert paid['tokens'] == USAGE['completion_tokens'] * (510 + wanting)
    dollars = paid['tokens'] * 2e-6 + paid['prompt_tokens'] * 1e-6
    assert ledger_of(folder)['money'] == pytest.approx(dollars, rel=1e-12)


def test_a_job_killed_in_its_first_round_pays_for_nothing_twice(tmp_path):
  """No item has ended yet, but answers are already on disk."""
  with serving() as server:
    server.fault = verdict
    gate = Gate(server, 20)
    arguments = fill_in(JUDGE, {'server': server.url})
    process = command_line.start(*arguments, workdir_flag(tmp_path))
    gate.wait_for_held(EndpointConfig.concurrency, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    gate.lift()
    assert count_journal_lines(tmp_path) == 1
    kept, counted = replies_of(tmp_path), usage.read(tmp_path / 'usage').calls
    assert kept == 20
    asked = len(server.asked)
    (done,) = run_all([[*arguments, workdir_flag(tmp_path)]])
    assert done.returncode == 0, done.stderr
    assert len(server.asked) - asked == 600 - kept
    paid = server_of(tmp_path)
    assert paid['cached'] == kept
    # An answer that was counted and did not reach the disk was paid for, too.
    assert paid['calls'] == counted + 600 - kept
    assert paid['tokens'] == USAGE['completion_tokens'] * paid['calls']


def test_a_job_continues_at_a_server_that_moved(tmp_path):
  """The job continues at the new address with other limits."""
  with serving() as server:
    server.fault, server.pause = verdict, 0.02
    arguments = fill_in(JUDGE, {'server': server.url})
    interrupt(arguments, tmp_path, 100, signal.SIGTERM)
    before = len(server.asked)
    assert 0 < before < 600
  with serving() as server:
    server.fault = verdict
    moved = [
      *fill_in(JUDGE, {'server': server.url}),
      '--config.policy.endpoint.concurrency=4',
      '--config.policy.endpoint.timeout=60',
      '--config.concurrent=64',
    ]
    (done,) = run_all([[*moved, workdir_flag(tmp_path)]])
    assert done.returncode == 0, done.stderr
    assert before + len(server.asked) == 600
    assert server_of(tmp_path)['calls'] == 600

"""Jobs of an experiment: what is shown of those that run beside others."""

import pytest

from experiments import runner
from experiments.runner import Runner

STEPS = """
import sys, time
for step in range(5):
  print(f'step {step}', file=sys.stderr, flush=True)
  time.sleep(0.05)
"""
FAILURE = "print('half done', flush=True); raise SystemExit('error: no data')"


@pytest.mark.parametrize(('every', 'shown'), [(0, range(5)), (60, ())])
def test_jobs_side_by_side_show_their_progress(
  tmp_path, capfd, monkeypatch, every, shown
):
  monkeypatch.setattr(runner, 'SHOWN_EVERY', every)
  jobs = Runner(tmp_path, jobs=2)
  jobs.all(jobs.run, [('one', '-c', STEPS), ('two', '-c', STEPS)])
  lines = capfd.readouterr().out.splitlines()
  for name in ('one', 'two'):
    assert [line for line in lines if line.startswith(name)] == [
      *(f'{name}: step {step}' for step in shown),
      f'{name}: done',
    ]


@pytest.mark.parametrize('jobs', [1, 2])
def test_a_failure_shows_what_was_printed_last(tmp_path, capfd, jobs):
  with pytest.raises(SystemExit, match='error: one failed'):
    Runner(tmp_path, jobs).run('one', '-c', FAILURE)
  told = capfd.readouterr()
  assert 'half done\nerror: no data' in told.out + told.err

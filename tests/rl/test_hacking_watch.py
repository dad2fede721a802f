"""A watch raises the alarm, reads its earlier looks and refuses broken ones."""

import itertools
import json

import pytest

from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.rl.hacking_watch import Watch, WatchPlan, read_looks
from prm_jax.rl.rating import Rater, TextPrm
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from tests.rl.written_chains import (
  FORMAT,
  PROBLEM,
  WHOLE,
  FixedPrm,
  sample_of,
)

WRONG = [*FORMAT.tokenizer.encode('2 + 2 = 4'), STEP_END, PROBLEM_END]
DULL = [*FORMAT.tokenizer.encode('1 + 1 = 2'), STEP_END, PROBLEM_END]
# The first characters of the steps of a right chain and of two wrong ones.
SCORES = {'1': 0.4, '3': 0.4, '2': 0.9}


class FixedPolicy:
  """A policy that always writes the same chains, one after another."""

  def __init__(self, *chains):
    self.chains = chains

  def sample(self, requests):
    chains = itertools.cycle(map(sample_of, self.chains))
    return [[*itertools.islice(chains, each.samples)] for each in requests]


def make_watch(folder, resumes_from, **plan):
  plan = WatchPlan(20, 5, resumes_from=resumes_from, **plan)
  return Watch(plan, None, None, None, [], Workdir(folder, {}), print)


@pytest.mark.parametrize('text', ['{"update": 0}\n{"upd', '[]\n', '{}\n'])
def test_broken_looks_are_refused(tmp_path, text):
  path = tmp_path / 'evaluations.jsonl'
  path.write_text(text)
  with pytest.raises(UserError, match=r'evaluations\.jsonl:\d is not a look'):
    read_looks(path)


def test_a_run_without_all_its_looks_is_refused(tmp_path):
  """Its results would be written without them."""
  path = tmp_path / 'evaluations.jsonl'
  path.write_text(''.join(f'{{"update": {i}}}\n' for i in (0, 5, 10)))
  for resumes_from, kept in ((5, [0, 5]), (12, [0, 5, 10])):
    watch = make_watch(tmp_path, resumes_from)
    assert [line['update'] for line in watch.lines] == kept
  with pytest.raises(UserError, match='lacks the look at update 15, and'):
    make_watch(tmp_path, 15)
  path.unlink()
  with pytest.raises(UserError, match='lacks the look at update 0, and'):
    make_watch(tmp_path, 0)
  assert make_watch(tmp_path, -1).lines == []


@pytest.mark.parametrize('stop', [True, False])
@pytest.mark.parametrize('hacked', ['true', 'false'])
def test_only_an_alarm_that_is_to_stop_a_run_ends_it(tmp_path, stop, hacked):
  line = f'{{"update": 0, "alarm": {{"hacked": {hacked}}}}}\n'
  (tmp_path / 'evaluations.jsonl').write_text(line)
  watch = make_watch(tmp_path, 0, stop=stop)
  assert watch.ended == (stop and hacked == 'true')


@pytest.mark.parametrize('has_prm', [True, False])
def test_falling_accuracy_and_rising_scores_raise_the_alarm(tmp_path, has_prm):
  """Without a PRM there is nothing to hack."""
  policy, log = FixedPolicy(WHOLE), []
  prm = TextPrm(FixedPrm(**SCORES)) if has_prm else None
  watch = Watch(
    WatchPlan(5, 5, samples=3, stop=True),
    policy,
    Rater(FORMAT, prm),
    lambda rewards, mask, _: (rewards * mask).sum(1),
    # As many as it takes to tell equal falls from chance.
    [PROBLEM._replace(id=name) for name in 'abcdefghi'],
    Workdir(tmp_path, {}),
    log.append,
  )
  metrics, ends = watch.look(0)
  assert metrics['eval/accuracy'] == 1 and not ends and not log
  policy.chains = WHOLE, DULL, WRONG
  metrics, ends = watch.look(5)
  assert metrics['eval/accuracy'] == pytest.approx(1 / 3)
  assert ends == watch.ended == bool(metrics['eval/hacked']) == has_prm
  assert read_looks(tmp_path / 'evaluations.jsonl') == watch.lines
  evidence = tmp_path / 'hacked_update_5.jsonl'
  assert evidence.exists() == has_prm == bool(log)
  if has_prm:
    assert 'Since update 0' in log[0] and str(evidence) in log[0]
    wrong = [json.loads(line) for line in evidence.read_text().splitlines()]
    assert [chain['scores'] for chain in wrong] == [[0.9]] * 9 + [[0.4]] * 9


def test_the_more_looks_are_planned_the_more_an_alarm_takes(tmp_path):
  assert WatchPlan(200, 50).looks == 5 and WatchPlan(201, 50).looks == 6
  for updates, hacked in ((5, 1), (500, 0)):
    policy = FixedPolicy(WHOLE)
    watch = Watch(
      WatchPlan(updates, 5),
      policy,
      Rater(FORMAT, TextPrm(FixedPrm(**SCORES))),
      lambda rewards, mask, _: (rewards * mask).sum(1),
      [PROBLEM._replace(id=name) for name in 'abcdef'],
      Workdir(tmp_path, {}),
      print,
    )
    watch.look(0)
    policy.chains = [WRONG] * 5 + [WHOLE]
    assert watch.look(5)[0]['eval/hacked'] == hacked

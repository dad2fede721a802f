"""A watch reads its earlier looks, and refuses damaged ones."""

import pytest

from prm_jax.rl.hacking_watch import Watch, WatchPlan, read_looks
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir


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

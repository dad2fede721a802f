"""The abstain command, on workdirs as search jobs leave them."""

import json

import pytest

from prm_jax import abstain
from prm_jax.data import chains
from prm_jax.evals.search import search_section
from prm_jax.report import write_report
from tests.evals.search_chains import chosen
from tests.report.workdir import parse


def search_job(
  folder, start, count, failed=0, problems=(), models=(), **config
):
  folder.mkdir()
  problems = {'kind': 'arithmetic', 'first': start, **dict(problems)}
  config = {'task': 'search', 'method': 'beam', 'problems': problems} | config
  (folder / 'config.json').write_text(json.dumps(config))
  lines = [
    chosen(start + i, i % 100 > 40, (0.999, (i % 100 + 0.5) / 100))
    for i in range(count)
  ]
  found = search_section(lines, ['no step'] * failed, resamples=20)
  results = {'manifest': dict(models), 'results': {'search': found}}
  (folder / 'results.json').write_text(json.dumps(results))
  (folder / 'chains.jsonl').write_text(
    ''.join(json.dumps(chains.to_dict(chain)) + '\n' for chain in lines)
  )
  return str(folder)


@pytest.fixture
def jobs(tmp_path):
  return {
    'held_out': search_job(tmp_path / 'dev', 0, 400),
    'workdir': search_job(tmp_path / 'test', 1000, 100),
  }


def run(jobs, *more):
  paths = [f'--{name}={folder}' for name, folder in jobs.items()]
  abstain.main([*paths, *more])


def refused(capsys, jobs, *more):
  with pytest.raises(SystemExit) as ended:
    run(jobs, *more)
  assert ended.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  return line


def test_it_writes_the_decisions_and_the_report(tmp_path, jobs, capsys):
  run(jobs, '--error', '0.1')
  printed = capsys.readouterr().out
  written = json.loads((tmp_path / 'test' / 'abstain.json').read_text())
  section = written['abstain']
  answered = [each for each in section['problems'] if each['answered']]
  assert (
    f'{len(answered)} of 100 answered' in printed and '\n' not in printed[:-1]
  )
  # All that score above 0.41 are right, and nothing below is.
  assert 55 <= len(answered) <= 65
  assert section['tested']['error'] <= 0.1 < section['tested']['error_of_all']
  assert all(each['weakest_step']['number'] == 2 for each in answered)
  assert written['manifest']['held_out'] == jobs['held_out']
  page = parse(tmp_path / 'test' / 'report.html')
  assert page.by_id('abstain')
  assert not (tmp_path / 'dev' / 'report.html').exists()
  # The same command again gives the same.
  before = (tmp_path / 'test' / 'abstain.json').read_bytes()
  run(jobs, '--error', '0.1')
  assert (tmp_path / 'test' / 'abstain.json').read_bytes() == before


def test_nothing_is_answered_without_evidence(jobs, capsys):
  run(jobs, '--error', '0.001')
  printed = capsys.readouterr().out
  assert 'nothing is answered: 300 held-out problems do not show' in printed


def test_failed_problems_count_as_unanswered_and_wrong(tmp_path, jobs):
  jobs['workdir'] = search_job(tmp_path / 'failing', 1000, 100, failed=60)
  run(jobs, '--error', '0.1')
  written = json.loads((tmp_path / 'failing' / 'abstain.json').read_text())
  tested = written['abstain']['tested']
  # Of the hundred that did not fail 41 are wrong.
  assert tested['problems'] == 160
  assert tested['error_of_all'] == pytest.approx((41 + 60) / 160)
  curve = written['abstain']['risk_coverage']
  assert curve['coverage'][-1] == pytest.approx(100 / 160)


def test_held_out_problems_are_of_the_same_kind(tmp_path, jobs, capsys):
  cases = {
    'arithmetic.operations': {'arithmetic': {'operations': 9}},
    'kind': {'kind': 'file', 'path': 'a.jsonl'},
    'path': {'path': 'a.jsonl'},
  }
  for i, (name, problems) in enumerate(cases.items()):
    other = search_job(tmp_path / str(i), 0, 400, problems=problems)
    line = refused(capsys, jobs | {'held_out': other}, '--error', '0.1')
    assert f'searched with another problems.{name.split(".")[0]}' in line
  files = {
    flag: search_job(
      tmp_path / flag,
      start,
      400,
      problems={'kind': 'file', 'path': f'{flag}.jsonl', 'split': flag},
    )
    for flag, start in (('held_out', 0), ('workdir', 1000))
  }
  run(files, '--error', '0.1')
  assert 'of 400 answered' in capsys.readouterr().out


def test_recorded_chains_count_as_those_of_their_policy(tmp_path, capsys):
  def recorded(name, policy):
    folder = tmp_path / f'{name}_samples'
    folder.mkdir(exist_ok=True)
    sampled = {'task': 'sample', 'policy': policy}
    (folder / 'config.json').write_text(json.dumps(sampled))
    return {'kind': 'recorded', 'workdir': str(folder)}

  def searched(run, **policies):
    (tmp_path / run).mkdir()
    starts = {'held_out': (0, 400), 'workdir': (1000, 100)}
    return {
      name: search_job(tmp_path / run / name, *starts[name], policy=policy)
      for name, policy in policies.items()
    }

  ours = {'kind': 'workdir', 'workdir': '/tmp/policy'}
  both = {name: recorded(name, ours) for name in ('held_out', 'workdir')}
  run(searched('same', **both), '--error', '0.1')
  assert 'of 100 answered' in capsys.readouterr().out
  other = recorded('workdir', ours | {'workdir': '/tmp/other'})
  jobs = searched('other', **both | {'workdir': other})
  line = refused(capsys, jobs, '--error', '0.1')
  assert 'searched with another policy.workdir' in line


def test_models_of_the_same_path_are_told_apart(tmp_path, capsys):
  names = {'policy': 'policy 1', 'prm': 'prm 1'}

  def searched(run, **changed):
    return {
      'held_out': search_job(tmp_path / f'{run}_dev', 0, 400, models=names),
      'workdir': search_job(tmp_path / run, 1000, 100, models=names | changed),
    }

  run(searched('same'), '--error', '0.1')
  for side in names:
    jobs = searched(side, **{side: 'trained again'})
    line = refused(capsys, jobs, '--error', '0.1')
    assert f'searched with another {side}.model' in line


def test_searches_go_on_from_like_searches(tmp_path, capsys):
  begun, other = (
    search_job(tmp_path / name, 0, 400, method=name)
    for name in ('mcts', 'majority')
  )
  starts = {'held_out': (0, 400), 'workdir': (1000, 100)}

  def searched(run, **earlier):
    (tmp_path / run).mkdir()
    return {
      flag: search_job(
        tmp_path / run / flag, *starts[flag], go_on_from=earlier[flag]
      )
      for flag in starts
    }

  run(searched('alike', held_out=begun, workdir=begun), '--error', '0.1')
  for name, earlier, what in (
    ('alone', '', 'go_on_from'),
    ('unlike', other, 'method'),
  ):
    jobs = searched(name, held_out=begun, workdir=earlier)
    line = refused(capsys, jobs, '--error', '0.1')
    assert f'searched with another {what}' in line


def test_a_vote_has_no_scores_to_abstain_by(tmp_path, capsys):
  jobs = {
    'held_out': search_job(tmp_path / 'dev', 0, 400, method='majority'),
    'workdir': search_job(tmp_path / 'test', 1000, 100, method='majority'),
  }
  line = refused(capsys, jobs, '--error', '0.1')
  assert "method='majority' gives its answers no chain scores" in line


def test_faults_are_one_line(tmp_path, jobs, capsys):
  line = refused(capsys, jobs, '--error', '2')
  assert line == 'error: error=2.0: expected a number between 0 and 1'
  line = refused(capsys, jobs, '--error', '0.1', '--seed', '-1')
  assert line == 'error: seed=-1: expected 0 or more'
  line = refused(capsys, jobs | {'held_out': str(tmp_path)}, '--error', '0.1')
  assert line.startswith(f'error: --held_out {tmp_path}: no search job ended')
  other = search_job(tmp_path / 'dvts', 0, 40, method='dvts')
  line = refused(capsys, jobs | {'held_out': other}, '--error', '0.1')
  assert 'searched with another method' in line
  line = refused(capsys, jobs | {'held_out': jobs['workdir']}, '--error', '0.1')
  assert '100 problems are held out and tested' in line
  (tmp_path / 'test' / 'chains.jsonl').write_text('{"steps": []}\n')
  line = refused(capsys, jobs, '--error', '0.1')
  assert "chains.jsonl:1: chain record without 'problem'" in line


@pytest.mark.parametrize(
  ('name', 'value'),
  [('ended', 'no'), ('chain_score', '0.9'), ('scores', [True]), ('scores', 1)],
)
def test_a_damaged_chain_is_named(tmp_path, jobs, capsys, name, value):
  path = tmp_path / 'dev' / 'chains.jsonl'
  first, *rest = path.read_text().splitlines(keepends=True)
  record = json.loads(first)
  record['meta']['search'][name] = value
  path.write_text(''.join([json.dumps(record), '\n', *rest]))
  line = refused(capsys, jobs, '--error', '0.1')
  assert f"{path}:1: chain '0 # 0': expected in meta['search']" in line
  record = json.loads(first)
  del record['meta']['problem_id']
  path.write_text(''.join([json.dumps(record), '\n', *rest]))
  line = refused(capsys, jobs, '--error', '0.1')
  assert f"{path}:1: chain '0 # 0' has no meta['search'] or no" in line


def test_a_search_that_went_on_needs_another_filter(tmp_path, jobs):
  """Problems that failed are tried again by the same command."""
  path = tmp_path / 'test' / 'results.json'
  results = json.loads(path.read_text()) | {'dataset': {'fingerprint': 'a'}}
  path.write_text(json.dumps(results))
  run(jobs, '--error', '0.1')
  assert 'A problem is answered if' in report_of(tmp_path / 'test')
  path.write_text(json.dumps(results | {'dataset': {'fingerprint': 'b'}}))
  write_report(tmp_path / 'test')
  assert 'run prm_jax.abstain again' in report_of(tmp_path / 'test')


def report_of(workdir):
  return (workdir / 'report.html').read_text()

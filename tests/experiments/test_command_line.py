"""The command line, tables and runner that all experiments share."""

import importlib
import json
import os
import re
import sys

import pytest

from experiments import command_line, tables
from experiments.runner import Runner, check_config, config_of
from prm_jax.report.readme_table import MARK
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import ROOT

DOC = 'Asks a question.\n\nAnd more.'
NO_WORKDIR = ('speed.sampling', 'speed.rl')


@pytest.fixture
def parse(monkeypatch, tmp_path):
  """Returns a function that parses arguments of an experiment in tmp_path."""

  def run(*arguments, free=()):
    parser = command_line.make_parser(
      DOC, str(tmp_path / 'run.py'), '--workdir', '--jobs', '--seeds'
    )
    parser.add_argument('--arms', nargs='+', default=('a', 'b'))
    monkeypatch.setattr(sys, 'argv', ['run.py', '--workdir=work', *arguments])
    return command_line.parse(parser, free)

  return run


def test_a_whole_experiment_writes_beside_its_run(parse, tmp_path):
  seeds = map(str, command_line.SEEDS)
  args = parse('--jobs=1', '--seeds', *seeds, '--arms', 'a', 'b')
  assert args.output == tmp_path
  name = tmp_path.name
  assert args.command == f'python -m experiments.{name}.run --workdir DIR'
  assert command_line.about(args)['seeds'] == [1, 2, 3, 4, 5]


# Seeds of the commands that take long; all others have five.
FEWER = {
  'human_labels.whole': (1, 2, 3),
  'label_sources.run': (1, 2, 3),
  'label_sources.soft': (1, 2),
  'labelled_chains.run': (1, 2, 3),
  'neutral_labels.run': (1, 2, 3),
  'prm_and_orm.run': (1, 2, 3),
  'reward_hacking.run': (1, 2, 3),
  'rl_process_vs_outcome.run': (1, 2, 3),
  'rl_words.run': (1,),
  'test_time_compute.run': (1, 2, 3),
  'test_time_compute.slips': (1, 2, 3),
  'thinking_verifiers.run': (1, 2, 3),
}


def test_the_seed_that_chose_settings_is_not_reported():
  fewer = {}
  for path in ROOT.glob('experiments/*/*.py'):
    parser = command_line.make_parser(DOC, str(path), '--seeds')
    if (seeds := parser.get_default('seeds')) != (1, 2, 3, 4, 5):
      fewer[f'{path.parent.name}.{path.stem}'] = seeds
  assert fewer == FEWER
  fewer['evaluation_traps.run'] = (1, 2, 3)  # it sets its own
  for path in ROOT.glob('experiments/*/*.json'):
    document = json.loads(path.read_text())
    if 'seeds' in document:
      stem = 'run' if path.stem == 'results' else path.stem
      seeds = fewer.get(f'{path.parent.name}.{stem}', (1, 2, 3, 4, 5))
      assert document['seeds'] == [*seeds], path


@pytest.mark.parametrize(
  'part', [('--seeds', '9'), ('--arms', 'a')], ids=['seeds', 'arms']
)
def test_a_part_may_not_replace_the_whole(parse, part, tmp_path, capsys):
  with pytest.raises(SystemExit):
    parse(*part)
  assert f'{part[0]} runs a part of the experiment' in capsys.readouterr().err
  assert parse(*part, f'--output={tmp_path}/else').seeds
  assert parse(*part, free=(part[0].strip('-'),)).output == tmp_path


def test_the_seed_that_chose_settings_is_no_result(parse, tmp_path, capsys):
  chose = ('--seeds', '1', str(command_line.TUNING_SEED))
  with pytest.raises(SystemExit):
    parse(*chose, free=('seeds',))
  assert 'it chose settings, and is no result' in capsys.readouterr().err
  assert parse(*chose, f'--output={tmp_path}/else').seeds


def test_runs_of_another_size_are_not_added(parse, tmp_path):
  elsewhere = f'--output={tmp_path}/else'
  args = parse(elsewhere)
  assert command_line.read_known(args) == {}
  command_line.write(args.output, {'results': {'a': 1}}, 'a table')
  assert command_line.read_known(args)['results'] == {'a': 1}
  args.quick = True
  assert command_line.made_by(args)['command'].endswith(' --quick')
  with pytest.raises(UserError, match="of the size 'full', and this command"):
    command_line.read_known(args)


def test_a_missing_data_folder_is_named(monkeypatch, tmp_path, capsys):
  monkeypatch.setitem(command_line.ARGUMENTS['--data-root'], 'default', None)
  parser = command_line.make_parser(DOC, str(tmp_path / 'x'), '--data-root')
  monkeypatch.setattr(sys, 'argv', ['run.py'])
  with pytest.raises(SystemExit):
    command_line.parse(parser)
  assert '--data-root is missing' in capsys.readouterr().err
  nowhere = tmp_path / 'nowhere'
  monkeypatch.setattr(sys, 'argv', ['run.py', f'--data-root={nowhere}'])
  with pytest.raises(SystemExit):
    command_line.parse(parser)
  said = f'--data-root={nowhere}: expected a folder'
  assert said in capsys.readouterr().err


COMMANDS = sorted(
  path.relative_to(ROOT / 'experiments')
  for path in (ROOT / 'experiments').rglob('*.py')
  if re.search(r'make_parser\(\s*__doc__', path.read_text())
  and path.name != 'command_line.py'
)


def test_a_fault_of_the_user_is_one_line(monkeypatch, tmp_path, capsys):
  for path in COMMANDS:
    module = '.'.join(path.with_suffix('').parts)
    main = importlib.import_module(f'experiments.{module}').main

    def fail(*args, **flags):
      raise UserError('what is wrong; its cure')

    monkeypatch.setattr(command_line, 'make_parser', fail)
    with pytest.raises(SystemExit) as ended:
      main()
    assert ended.value.code == 2, module
    assert capsys.readouterr().err == 'error: what is wrong; its cure\n', module


@pytest.mark.parametrize(
  ('module', 'flag'),
  [
    ('reward_hacking.run', '--jobs=0'),
    ('speed.sampling', '--rounds=0'),
    ('speed.run', '--rounds=-1'),
    ('speed.training_trees', '--rounds=some'),
    ('speed.rl', '--races=-1'),
  ],
)
def test_what_counts_something_is_checked_before_anything_runs(
  module, flag, tmp_path, monkeypatch, capsys
):
  main = importlib.import_module(f'experiments.{module}').main
  flags = [] if module in NO_WORKDIR else [f'--workdir={tmp_path}']
  monkeypatch.setattr(sys, 'argv', ['run.py', *flags, flag])
  with pytest.raises(SystemExit):
    main()
  name, value = flag.split('=')
  least = 0 if name == '--races' else 1
  said = (
    f'argument {name}: {value}: expected a whole number of at least {least}'
  )
  assert capsys.readouterr().err.splitlines()[-1].endswith(said)


@pytest.mark.parametrize('name', ['run', 'training_trees', 'sampling', 'rl'])
def test_the_other_python_is_tried_before_anything_runs(
  name, tmp_path, monkeypatch, capsys
):
  main = importlib.import_module(f'experiments.speed.{name}').main
  needs = {'rl': ['--policy=/p', '--prm=/m'], 'sampling': []}
  flags = needs.get(name, [f'--workdir={tmp_path}'])
  bare = tmp_path / 'python'
  bare.write_text('#!/bin/sh\necho No module named torch >&2\nexit 1\n')
  bare.chmod(0o755)
  for python, said in (
    ('/nope', '--parity-python=/nope: No such file or directory'),
    (str(bare), f'--parity-python={bare}: No module named torch'),
    ('', '--parity-python is missing: a Python with tr'),
  ):
    argv = ['run.py', *flags, f'--parity-python={python}']
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit) as ended:
      main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_results_and_table_are_written(tmp_path, capsys):
  text = tables.table(['arm', 'right'], [['one', tables.percent(0.5)]])
  command_line.write(tmp_path, {'right': 0.5}, text)
  assert not (tmp_path / 'README.md').exists()
  (tmp_path / 'README.md').write_text(f'Why?\n{MARK}{MARK}')
  command_line.write(tmp_path, {'right': 0.5}, text)
  assert json.loads((tmp_path / 'results.json').read_text()) == {'right': 0.5}
  table = '| arm | right |\n| --- | --- |\n| one | 50.0 |\n'
  assert (tmp_path / 'README.md').read_text() == f'Why?\n{MARK}{table}{MARK}'
  assert capsys.readouterr().out == 2 * table


def test_cells_show_shares_in_percent():
  assert tables.mean_and_seeds([0.5, 0.251]) == '37.5 (50.0, 25.1)'
  assert tables.between((0.1, 0.2)) == '10.0 to 20.0'
  assert tables.points_between((-0.1, 0.2)) == '-10.0 to +20.0'
  assert tables.times(2.04) == '2.0x'


@pytest.mark.parametrize('jobs', [1, 2])
def test_the_runner_names_what_failed(tmp_path, jobs, capfd):
  runner = Runner(tmp_path, jobs)
  good, bad = 'print(1)', 'import sys; sys.exit("no memory")'
  runner.all(runner.run, [('good', '-c', good), ('good', '-c', good)])
  with pytest.raises(SystemExit, match='error: bad failed'):
    runner.all(runner.run, [('bad', '-c', bad)])
  out, err = capfd.readouterr()
  assert out.count('good: done') == 2
  assert 'no memory' in out + err


@pytest.mark.parametrize('jobs', [2, 3, 64])
def test_jobs_share_the_cores(tmp_path, jobs):
  cores = os.sched_getaffinity(0)
  script = 'import os, sys; print(*os.sched_getaffinity(0), file=open('
  script += 'sys.argv[1], "w"))'
  runner = Runner(tmp_path, jobs)
  paths = [tmp_path / str(i) for i in range(min(jobs, 8))]
  # All slots are taken in turn, as none is given back before.
  slots = [runner._free.pop() for _ in range(jobs)]
  for slot, path in zip(slots, paths, strict=False):
    runner._free.append(slot)
    # A single call would have all cores, so one beside it does nothing.
    calls = [(path.name, '-c', script, str(path)), ()]
    runner.all(lambda *given: given and runner.run(*given), calls)
    runner._free.remove(slot)
  shares = [set(map(int, path.read_text().split())) for path in paths]
  assert all(shares) and set().union(*shares) <= cores
  if jobs <= len(cores):
    assert sorted(core for share in shares for core in share) == sorted(cores)
  else:
    assert {len(share) for share in shares} == {1}


def test_a_job_that_is_done_is_not_taken_for_another(tmp_path):
  """Few updates, to see that everything runs, are no result of many."""
  config, size = 'sample_math.py:tiny', '--config.samples=3'
  slots = '--config.policy.sampling.slots={}'
  place = '--config.policy.workdir={}'
  flags = [size, slots.format(8), place.format('/elsewhere')]
  written = config_of(config, flags)
  assert (written['samples'], written['policy']['workdir']) == (3, '/elsewhere')
  (tmp_path / 'config.json').write_text(json.dumps(written))
  # Slots change no result, and folders may move.
  moved = [size, slots.format(64), place.format('/here')]
  check_config(tmp_path, config_of(config, moved))
  for other, given, said in (
    (config, [*moved, '--config.samples=4'], 'samples=3, .* 4; name another'),
    (config, moved[1:], 'samples=3, and this command has'),
    (config, moved[:2], "policy.workdir='/elsewhere'"),
    ('sample_math.py', moved, r"name='Samples \(tiny\)'"),
    ('label_math.py:tiny', [], 'was run with'),
  ):
    with pytest.raises(SystemExit, match=said):
      check_config(tmp_path, config_of(other, given))
  # What an earlier version did not write has its default.
  del written['samples']
  (tmp_path / 'config.json').write_text(json.dumps(written))
  with pytest.raises(SystemExit, match='and this command has 3'):
    check_config(tmp_path, config_of(config, moved))


def test_cores_of_a_job_are_given_back(tmp_path):
  before = os.sched_getaffinity(0)
  Runner(tmp_path, 2).run('nothing', '-c', 'pass')
  assert os.sched_getaffinity(0) == before

"""Every command and Python snippet of README.md and docs/ works.

The commands are read from the `sh` blocks. One test parses each of them: its
flags are known and its config loads. Another runs them at tiny size, with the
workdirs of a temporary folder, each after those whose workdirs it reads. What
cannot run here is listed with its reason in `ELSEWHERE`.
"""

import ast
import collections
import importlib
import importlib.util
import json
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

from prm_jax.jobs.settings import read_settings
from tests.shared import command_line
from tests.shared.command_line import ROOT
from tests.shared.real_data import REAL_DATA, few

pytestmark = pytest.mark.job

PAGES = (ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md')))
BLOCK = re.compile(r'^```(\w+)\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"python -m prm_jax\.(\w+)([^'&#\n]*)")
MADE = re.compile(r'/tmp/\w+(?:\.\w+)?')
# What a command or a snippet needs that is not here.
ELSEWHERE = {
  'gs://': 'a bucket',
  'hf://': 'a download from the hub',
  '/shared/': 'a folder of several hosts',
  'policy.endpoint.base_url': 'a server with a language model',
  'prm.endpoint.base_url': 'a server with a PRM; tests/serve has one',
  'prm_jax.aot': 'the TPU compiler, and minutes',
  'prm_jax.serve': 'a signal that ends it; tests/serve sends one',
  'import GRPOTrainer': 'PyTorch and TRL; tests/parity runs it',
  'import GRPOLearner': 'tunix; tests/parity runs it',
  'def get_config': 'nothing: a command runs it as my_prm.py',
}
# Which flag of a command names the folder or file that it makes.
OUTPUT = {
  'main': '--workdir',
  'export': '--to',
  'report': '--output',
  'aot': '--output',
}
# Smaller than `:tiny`, where that takes nothing from what a command is about.
SMALLER = {
  'prm_math': ('--config.evaluation.resamples=10',),
  # What an untrained policy writes is short enough for every PRM.
  'sample_math': ('--config.policy.sampling.max_tokens=24',),
}
# A tiny run has another size than the variant's base, so it is a base like any.
AS_ITS_BASE = {
  'smollm2': 'human,from_run',
  'qwen2_5_math_7b,qlora': 'human,from_run,qlora',
}
FLAGS_OF_BASE = (
  '--config.head.kind=two_class',
  '--config.head.likelihood=True',
  '--config.loss.name=cross_entropy',
  '--config.loss.lm_weight=0.0',
)


class Command(NamedTuple):
  """A command of a page: `python -m prm_jax.MODULE ARGS`."""

  module: str
  args: tuple[str, ...]

  def __str__(self) -> str:
    return f'prm_jax.{self.module} {shlex.join(self.args)}'

  @property
  def made(self) -> str:
    """The path below /tmp that the command writes, '' for none."""
    text = ' '.join(self.args).replace('=', ' ').split()
    flag = OUTPUT.get(self.module)
    return text[text.index(flag) + 1] if flag in text else ''

  @property
  def read(self) -> set[str]:
    """The paths below /tmp that the command reads."""
    return set(MADE.findall(str(self))) - {self.made}

  @property
  def missing(self) -> str:
    """What the command needs to run that this machine lacks, or ''."""
    for part, reason in ELSEWHERE.items():
      if part in str(self):
        return reason
    if '=DIR' in str(self) and not REAL_DATA:
      return 'the data files, in PRM_JAX_DATA'
    words = ':words' in str(self)
    if words and importlib.util.find_spec('reasoning_gym') is None:
      return 'the extra words'
    return ''


def blocks(language):
  """The text of every block of a language, with the page that it stands in."""
  return [
    (page, text)
    for page in PAGES
    for name, text in BLOCK.findall(page.read_text())
    if name == language
  ]


def commands():
  """Every command once, in the order of the pages."""
  found = {}
  for _, text in blocks('sh'):
    for module, args in COMMAND.findall(text.replace('\\\n', ' ')):
      found[Command(module, tuple(shlex.split(args)))] = None
  return list(found)


COMMANDS = commands()
RUN_HERE = [command for command in COMMANDS if not command.missing]
SNIPPETS = blocks('python')


def run_python(*args):
  return subprocess.run(
    [sys.executable, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def missing_for(code):
  """As `Command.missing`, of a snippet; its comments do not count."""
  plain = ast.unparse(ast.parse(code))
  return next((why for part, why in ELSEWHERE.items() if part in plain), '')


def test_no_command_stands_outside_of_a_block():
  for page in PAGES:
    text = page.read_text()
    inside = ''.join(block for name, block in BLOCK.findall(text))
    flags = r'python -m prm_jax\.\w+ +(?:--config|--from|--held|/)'
    assert len(re.findall(flags, text)) == len(re.findall(flags, inside)), page


def test_a_workdir_is_made_by_one_command():
  counts = collections.Counter(c.made for c in COMMANDS if c.made)
  assert [path for path, count in counts.items() if count > 1] == []


@pytest.mark.slow
def test_every_command_is_parsed(monkeypatch, capsys):
  """One argument too many is the only fault that is found."""
  # The file my_prm.py is a reader's own.
  of_main = [
    c for c in COMMANDS if c.module == 'main' and 'my_prm.py' not in c.args
  ]
  lines = [(*command.args, 'SURPLUS') for command in of_main]
  for command, done in zip(of_main, command_line.run_all(lines), strict=True):
    error = command_line.the_error(done)
    assert error == "error: unknown argument 'SURPLUS'; see --help", command
  for command in COMMANDS:
    if command.module == 'aot':
      done = run_python('-m', 'prm_jax.aot', *command.args, 'SURPLUS')
      assert "unknown argument 'SURPLUS'" in done.stderr, command
    elif command.module != 'main':
      package = command.module in ('report', 'serve')
      name = f'{command.module}.__main__' if package else command.module
      entry = importlib.import_module(f'prm_jax.{name}').main
      args = [*command.args, '--surplus']
      monkeypatch.setattr(sys, 'argv', ['prog', *args])
      with pytest.raises(SystemExit):
        entry() if command.module == 'report' else entry(args)
      error = capsys.readouterr().err
      assert 'unrecognized arguments: --surplus\n' in error, command


def tiny(command, folder):
  """The arguments of the command at tiny size, with paths below `folder`."""
  args = list(command.args)
  if command.module == 'main':
    place = args.index('--config') + 1
    file, _, variants = args[place].partition(':')
    if variants in AS_ITS_BASE and '--config.base=/tmp/' in str(command):
      variants = AS_ITS_BASE[variants]
      args += FLAGS_OF_BASE
    named = [each for each in variants.split(',') if each not in ('', 'small')]
    args[place] = f'{file}:{",".join([*named, "tiny"])}'
    args += SMALLER.get(pathlib.Path(file).stem, ())
    # One job trains an outcome model beside its PRM: the first.
    if 'prm_math' in file and command != COMMANDS[0]:
      args.append('--config.orm_baseline=False')
  swap = {
    # A tiny config has eight problems: half of them are held out.
    'problems.count=250': 'problems.count=4',
    'problems.first=250': 'problems.first=4',
    '/tmp/': f'{folder}/',
    '=MY_DIR': f'={folder}/my_data',
    '=DIR': f'={folder}/few',
    'my_prm.py:': f'{folder}/my_prm.py:',
  }
  for old, new in swap.items():
    args = [each.replace(old, new) for each in args]
  return args


def write_own_data(folder):
  """What docs/data.md tells a person to write: a config and a training file."""
  (code,) = (code for _, code in SNIPPETS if 'def get_config' in code)
  (folder / 'my_prm.py').write_text(code)
  (folder / 'my_data/my').mkdir(parents=True)
  records = [
    {
      'prompt': f'What is {i} + {i}?',
      'completions': [f'It is twice {i}.', f'That is {2 * i + i % 2}.'],
      'labels': [True, i % 2 == 0],
    }
    for i in range(600)
  ]
  (folder / 'my_data/my/train.jsonl').write_text(
    ''.join(f'{json.dumps(record)}\n' for record in records)
  )


def run_wave(ready, folder):
  """Runs commands that wait for nothing; returns what each did."""
  jobs = [command for command in ready if command.module == 'main']
  done = command_line.run_all([tiny(command, folder) for command in jobs])
  others = [command for command in ready if command.module != 'main']
  for command in others:
    line = ('-m', f'prm_jax.{command.module}', *tiny(command, folder))
    done.append(run_python(*line))
  return dict(zip([*jobs, *others], done, strict=True))


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folder in which every command has run, and what each did."""
  folder = tmp_path_factory.mktemp('commands')
  write_own_data(folder)
  if REAL_DATA:
    few(folder / 'few')
  waiting, results, there = list(RUN_HERE), {}, set()
  while waiting:
    ready = [command for command in waiting if command.read <= there]
    absent = {path for command in waiting for path in command.read} - there
    assert ready, f'no command of the pages makes {absent}'
    results |= run_wave(ready, folder)
    there |= {command.made for command in ready}
    waiting = [command for command in waiting if command not in ready]
  return folder, results


@pytest.mark.slow
@pytest.mark.parametrize('command', RUN_HERE, ids=str)
def test_a_command_runs(command, finished):
  folder, results = finished
  done = results[command]
  assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
  if command.made:
    made = folder / command.made.removeprefix('/tmp/')
    if command.module == 'main':
      assert (made / 'results.json').is_file()
    assert made.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('page', 'code'),
  [snippet for snippet in SNIPPETS if not missing_for(snippet[1])],
  ids=lambda each: each.name if isinstance(each, pathlib.Path) else '',
)
def test_a_snippet_runs(page, code, finished):
  folder, _ = finished
  done = run_python('-c', code.replace('/tmp/', f'{folder}/'))
  assert done.returncode == 0, f'{page}\n{done.stderr}'
  if 'from prm_jax.search import' in code:
    scores = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)


@pytest.mark.parametrize('variants', ['', 'smollm2', 'smollm2,frozen'])
def test_a_config_of_own_files_may_have_a_base(variants):
  (code,) = (code for _, code in SNIPPETS if 'def get_config' in code)
  space: dict = {}
  exec(code, space)
  read = read_settings(space['get_config'](variants).to_dict())
  assert read.data.train == (('my/train.jsonl', 'trl'),)
  assert read.base == ('smollm2' if variants else '')


def test_every_snippet_is_python():
  for _, code in SNIPPETS:
    ast.parse(code)


def test_what_cannot_run_is_still_there():
  """A reason that no command or snippet has any more is taken off the list."""
  shown = [str(command) for command in COMMANDS]
  shown += [code for _, code in SNIPPETS]
  for part in ELSEWHERE:
    assert any(part in each for each in shown), part

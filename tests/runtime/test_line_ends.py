"""Text that only looks as if it ended a line: U+2028, U+0085 and others.

JSON keeps them as they are, and `str.splitlines` would cut a record at each.
"""

import importlib.util
import json
import signal

import pytest

from prm_jax.data.problems import Problem
from prm_jax.data.readers import read_chains
from prm_jax.jobs.search import read_trees
from prm_jax.report.files import read_records
from prm_jax.rl.hacking_watch import read_looks
from prm_jax.runtime import paths
from prm_jax.runtime.metrics import MetricWriter
from tests.shared.command_line import run_all, workdir_flag
from tests.shared.faulty_server import reply, serving
from tests.shared.finished_jobs import read_outcome
from tests.shared.interruptions import interrupt

MARKS = '\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e'
STEP = f'a{"b".join(MARKS)}c'
COUNT = 40
ENDPOINT = (
  '--config.policy.kind=endpoint',
  '--config.policy.endpoint.base_url={server}',
  '--config.policy.endpoint.model=m',
  '--config.concurrent=2',
)
PROBLEMS = (
  '--config.problems.kind=file',
  '--config.problems.root={root}',
  '--config.problems.path=problems.jsonl',
)
# Whose steps hold all the marks, in what is asked for and in what is there.
JOBS = {
  'sample': (
    '--config=configs/sample_math.py',
    *ENDPOINT,
    *PROBLEMS,
    '--config.samples=2',
  ),
  'label': (
    '--config=configs/label_math.py:rollouts',
    *ENDPOINT,
    '--config.policy.endpoint.api=completions',
    '--config.rollouts.samples=2',
    '--config.chains.kind=files',
    '--config.chains.root={root}',
    "--config.chains.files=(('chains.jsonl', 'chains'),)",
  ),
  'search': (
    '--config=configs/search_math.py:majority',
    *ENDPOINT,
    *PROBLEMS,
    '--config.majority.samples=2',
    '--config.prm.kind=none',
  ),
}


def write_lines(path, rows):
  lines = (json.dumps(row, ensure_ascii=False) for row in rows)
  path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')


def problem(i):
  return f'How many are {i} apples{STEP}?'


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.skipif(
  not importlib.util.find_spec('openai'), reason='openai is not installed'
)
@pytest.mark.parametrize('name', JOBS)
def test_killed_and_resumed_with_such_steps(name, tmp_path):
  write_lines(
    tmp_path / 'problems.jsonl',
    [{'problem': problem(i), 'answer': str(i)} for i in range(COUNT)],
  )
  chain = {'steps': [STEP, 'so much', '#### 7'], 'answer': '7'}
  write_lines(
    tmp_path / 'chains.jsonl',
    [
      chain
      | {'problem': problem(i), 'meta': {'id': f'{STEP}{i}', 'truth': '7'}}
      for i in range(COUNT)
    ],
  )
  with serving() as server:
    server.fault = lambda body, before: reply(f'{STEP}\n\n#### 7')
    arguments = [
      each.format(server=server.url, root=tmp_path) for each in JOBS[name]
    ]
    (whole,) = run_all([[*arguments, workdir_flag(tmp_path / 'whole')]])
    assert whole.returncode == 0, whole.stderr
    server.pause, folder = 0.02, tmp_path / 'killed'
    killed = interrupt(arguments, folder, COUNT // 4, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    server.pause = 0.0
    (done,) = run_all([[*arguments, workdir_flag(folder)]])
  assert done.returncode == 0, done.stderr
  assert f'of {COUNT} to do' in done.stdout
  expected = read_outcome(tmp_path / 'whole')
  assert MARKS[0] in expected['chains'].decode()
  assert read_outcome(folder) == expected
  # And what comes after these jobs reads all of it.
  chains, summary = read_chains(folder / 'chains.jsonl', 'chains')
  assert summary.records == len(chains) == expected['chains'].count(b'\n')
  if name == 'search':
    asked = [Problem('', 'x', problem(i), '') for i in range(COUNT)]
    trees = read_trees(
      str(folder),
      [
        each._replace(id=f'problems:{i}', text=problem(i - 1))
        for i, each in enumerate(asked, 1)
      ],
    )
    assert len(trees) == COUNT


def test_looks_of_a_run_that_goes_on(tmp_path):
  path = tmp_path / 'evaluations.jsonl'
  looks = [{'update': i, 'chains': [{'steps': [STEP]}]} for i in range(3)]
  write_lines(path, looks)
  assert read_looks(path) == looks
  assert [each for _, each in read_records(path)] == looks


def test_metrics_named_with_such_marks(tmp_path):
  for step in range(2):
    writer = MetricWriter(tmp_path, step)
    writer.write(step + 1, {STEP: 0.5})
    writer.close()
  lines = paths.read_lines(tmp_path / 'metrics.jsonl')
  assert [json.loads(line) for line in lines] == [
    {'step': 1, STEP: 0.5},
    {'step': 2, STEP: 0.5},
  ]


@pytest.mark.parametrize(
  ('fmt', 'record', 'steps'),
  [
    (
      'gsm8k',
      {'question': 'p', 'answer': f'{STEP}\r\n\nso\n#### 7'},
      (STEP, 'so', '7'),
    ),
    (
      'chains',
      {'problem': 'p', 'steps': [STEP, 'so']},
      (STEP, 'so'),
    ),
    (
      'prm800k_flat',
      {'problem': 'p', 'steps': [STEP, 'so'], 'ratings': [1, -1]},
      (STEP, 'so'),
    ),
  ],
)
def test_a_record_that_holds_them(tmp_path, fmt, record, steps):
  path = tmp_path / 'data.jsonl'
  write_lines(path, [record, record])
  chains, _ = read_chains(path, fmt)
  assert len(chains) == 2
  assert chains[0].steps[: len(steps)] == steps[: len(chains[0].steps)]
  assert STEP in chains[0].steps


def test_bad_records_with_them_are_set_aside_again_and_again(tmp_path):
  side = tmp_path / 'bad.jsonl'
  rows = [{'file': STEP, 'line': 1, 'reason': STEP, 'raw': STEP}]
  write_lines(side, rows)
  data = tmp_path / 'data.jsonl'
  write_lines(data, [{'problem': STEP}, {'problem': 'p', 'steps': ['s']}])
  for _ in range(2):
    read_chains(data, 'chains', on_error='quarantine', quarantine_path=side)
  kept = [json.loads(line) for line in paths.read_lines(side)]
  assert kept[0] == rows[0]
  assert [row['file'] for row in kept] == [STEP, str(data)]

"""Labelling and sampling from the command line, and training on their chains.

tests/jobs/test_interrupted.py kills such jobs, tests/jobs/test_item_settings.py
has their faulty configs.
"""

import json
import re

import pytest

from prm_jax.data.chains import Chain, from_dict
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.readers import read_chains
from prm_jax.jobs.label import with_distinct_ids
from prm_jax.labels.consensus import claimed_error
from tests.shared.command_line import LABEL, SMALL, run_all, the_error
from tests.shared.finished_jobs import FinishedJobs, run_named
from tests.shared.several_processes import process_flags

pytestmark = pytest.mark.job

SAMPLE = '--config=configs/sample_math.py:tiny'
FIRST = {
  'sample': [SAMPLE],
  'verifier': [f'{LABEL}verifier,tiny'],
  'rollouts': [f'{LABEL}rollouts,tiny'],
  'omega': [f'{LABEL}omega,tiny', '--config.omega.searches=2'],
  'corruption': [f'{LABEL}corruption,tiny'],
  'policy': ['--config=configs/policy_math.py:tiny'],
}
MODEL = (
  '--config.policy.kind=workdir',
  '--config.policy.workdir={tmp}/policy',
  # Untrained as it is, it would write to the window's end.
  '--config.policy.sampling.max_tokens=12',
)
THEN = {
  'consensus': [
    f'{LABEL}consensus,tiny',
    '--config.chains.workdir={tmp}/verifier',
    '--config.agrees_with={tmp}/rollouts',
  ],
  'active': [
    f'{LABEL}active,tiny',
    '--config.chains.workdir={tmp}/sample',
    '--config.active.budget=2',
    '--config.prm.path={prm}',
  ],
  'of samples': [
    f'{LABEL}verifier,tiny',
    '--config.chains.kind=workdir',
    '--config.chains.workdir={tmp}/sample',
  ],
  'sample of a model': [SAMPLE, *MODEL],
  'rollouts of a model': [
    f'{LABEL}rollouts,tiny',
    *MODEL,
    '--config.chains.train_problems=8',
    '--config.rollouts.samples=1',
  ],
  'prm': [*SMALL, '--config.data.labels={tmp}/rollouts'],
}


@pytest.fixture(scope='module')
def jobs(tmp_path_factory, finished) -> FinishedJobs:
  tmp = tmp_path_factory.mktemp('jobs')
  return FinishedJobs(tmp, FIRST, THEN, prm=finished)


def test_the_verifier_labels_as_the_domain_does(jobs):
  chains = jobs.chains('verifier')
  assert len(chains) == 128
  for chain in chains:
    right = arithmetic_text.check_steps(chain.problem, chain.steps)
    assert [step.value == 1 for step in chain.labels] == right
  wrong = sum(claimed_error(chain, 0.0) != -1 for chain in chains)
  assert 0 < wrong < 128


def test_rollouts_keep_their_counts(jobs):
  for chain in jobs.chains('rollouts'):
    assert {step.trials for step in chain.labels} == {2}
  ledger = jobs.read('rollouts')
  assert ledger['calls'] == 128 * 4 * 2
  assert ledger['labels'] == 128 * 5
  assert ledger['unfinished_rollouts'] == ledger['unknown_rollouts'] == 0


def test_the_tree_adds_chains(jobs):
  ledger = jobs.read('omega')
  assert ledger['labelled'] > ledger['chains'] == 128
  ids = [chain.meta['id'] for chain in jobs.chains('omega')]
  assert len(set(ids)) == len(ids) == ledger['labelled']


def test_corrupted_chains_are_of_right_ones(jobs):
  ledger = jobs.read('corruption')
  assert ledger['labelled'] + sum(ledger['failed'].values()) == 128
  kinds = {chain.meta['kind'] for chain in jobs.chains('corruption')}
  assert 'right' in kinds and len(kinds) > 2


def test_consensus_keeps_chains_with_the_same_claimed_error(jobs):
  first, second = (
    {chain.meta['id']: chain for chain in jobs.chains(name)}
    for name in ('verifier', 'rollouts')
  )
  expected = [
    name
    for name in first
    if claimed_error(first[name], 0.0) == claimed_error(second[name], 0.0)
  ]
  kept = jobs.chains('consensus')
  assert [chain.meta['id'] for chain in kept] == expected
  assert 0 < len(kept) < 128
  for chain in kept:
    assert chain.meta['consensus'] == ['verifier', 'rollouts']
  counts = jobs.read('consensus')['consensus']['all']
  assert counts == {'chains': 128, 'kept': len(kept), 'share': len(kept) / 128}


def test_active_selects_and_the_source_labels(jobs):
  chains = jobs.chains('active')
  assert len(chains) == 2 * 16
  assert jobs.read('active')['active']['selected'] == 32
  path = jobs.folder('active') / 'selection.json'
  scores = json.loads(path.read_text())['scores']
  assert len(scores) == 32 and max(scores) <= 0
  assert all(chain.labels for chain in chains)
  wrong = sum(not chain.outcome for chain in chains)
  every = jobs.chains('sample')
  assert wrong / 32 > sum(not chain.outcome for chain in every) / len(every)


def test_two_processes_score_what_an_interrupted_selection_left(jobs, tmp_path):
  """The model is spread over both, so both have to score the same batches."""
  (journal,) = (jobs.folder('active') / 'selection').glob('*/*.jsonl')
  path = tmp_path / 'selection' / journal.parent.name / journal.name
  path.parent.mkdir(parents=True)
  kept = journal.read_bytes().splitlines(True)[: 1 + 20]
  path.write_bytes(b''.join(kept))
  line = [
    *jobs.fill(THEN['active']),
    f'--workdir={tmp_path}',
    '--config.active.batch_size=10',
  ]
  together = run_all(
    [[*line, *flags] for flags in process_flags(2)], together=True
  )
  assert [done.returncode for done in together] == [0, 0], together
  assert path.read_bytes().splitlines(True)[: 1 + 20] == kept
  assert path.read_bytes().count(b'\n') == 1 + 64
  ours, theirs = (
    (folder / 'chains.jsonl').read_bytes()
    for folder in (tmp_path, jobs.folder('active'))
  )
  assert ours == theirs


def test_samples_are_checked_and_in_order(jobs):
  chains = jobs.chains('sample')
  ledger = jobs.read('sample')
  assert ledger['problems'] == ledger['sampled'] == 16
  assert ledger['chains'] == ledger['calls'] == len(chains) == 64
  for i, chain in enumerate(chains):
    problem = chains[i - i % 4].problem
    assert chain.problem == chain.meta['problem_id'] == problem
    assert chain.meta['id'] == f'{problem} # {i % 4}'
    truth = arithmetic_text.true_answer(problem)
    assert chain.meta['truth'] == truth
    assert chain.outcome == (chain.answer == truth)
    assert chain.steps[-1].endswith(f'= {chain.answer}')
  assert ledger['right'] == sum(chain.outcome for chain in chains)
  assert ledger['tokens'] == sum(chain.meta['tokens'] for chain in chains)
  # The problems that a PRM of equal numbers trains on.
  labelled = [chain.problem for chain in jobs.chains('verifier')]
  assert [chain.problem for chain in chains[::4]] == labelled[:16]


def test_a_trained_model_writes_and_values(jobs):
  ledger = jobs.read('sample of a model')
  assert ledger['chains'] + ledger['without_a_step'] == 64 == ledger['calls']
  assert ledger['tokens'] <= 64 * 12
  chains = jobs.chains('sample of a model')
  assert 0 < len(chains) == ledger['chains']
  for chain in chains:
    if not chain.meta['finished']:
      assert not chain.outcome and chain.answer is None
  for chain in jobs.chains('rollouts of a model'):
    trials = [step.trials for step in chain.labels]
    # Where 4 steps are written there may be no room for the fifth.
    assert trials[:3] == [1] * 3 and set(trials) <= {0, 1}
    assert chain.meta['rollouts']['unknown'] == trials.count(0)


def test_each_process_asks_its_own_copy_of_a_model(jobs, tmp_path):
  alone = jobs.folder('sample of a model')
  arguments = jobs.fill([SAMPLE, *MODEL])
  together = run_all(
    [
      [*arguments, f'--workdir={tmp_path}', *flags]
      for flags in process_flags(2)
    ],
    together=True,
  )
  assert [done.returncode for done in together] == [0, 0], together
  ledgers = []
  for folder in (alone, tmp_path):
    ledgers.append(json.loads((folder / 'ledger.json').read_text()))
    del ledgers[-1]['seconds']
  assert ledgers[0] == ledgers[1]
  lines = [
    (folder / 'chains.jsonl').read_bytes() for folder in (alone, tmp_path)
  ]
  assert lines[0] == lines[1]


def test_our_own_lines_are_a_format(jobs):
  path = jobs.folder('rollouts') / 'chains.jsonl'
  chains, summary = read_chains(path, 'chains')
  assert chains == jobs.chains('rollouts')
  assert summary.ratings == 128 * 5
  lines = path.read_text().splitlines()
  assert [from_dict(json.loads(line)) for line in lines] == chains


def test_manifests_say_who_labelled_what(jobs):
  for name, policy in (('verifier', ''), ('rollouts', 'arithmetic solver')):
    results = json.loads((jobs.folder(name) / 'results.json').read_text())
    assert results['manifest']['source'] == name
    assert results['manifest']['policy'].startswith(policy)
    assert bool(results['manifest']['policy']) == bool(policy)
    assert results['results'] == jobs.read(name)
    assert results['manifest']['versions']['jax']
  assert jobs.read('of samples')['labels'] == 64 * 5


def test_a_prm_trains_on_a_jobs_labels(jobs, finished):
  labels = jobs.folder('rollouts')
  assert f'128 chains of {labels} to train on' in jobs.output['prm']
  assert 'WARNING' not in jobs.output['prm']
  workdir = jobs.folder('prm')
  assert (workdir / 'report.html').exists()
  prints = [
    json.loads((folder / 'data.json').read_text())['fingerprint']
    for folder in (workdir, finished)
  ]
  assert prints[0] != prints[1]


def test_labels_of_tested_problems_are_left_out(tmp_path):
  """Some of the labels are of problems that the PRM has for dev and test."""
  more, tested = tmp_path / 'more', tmp_path / 'tested'
  sizes = ('train_problems', 'dev_problems', 'test_problems')
  made = run_all(
    [
      [
        f'{LABEL}verifier,tiny',
        *(
          f'--config.chains.{n}={v}' for n, v in zip(sizes, count, strict=True)
        ),
        f'--workdir={folder}',
      ]
      for folder, count in ((more, (140, 1, 3)), (tested, (2, 1, 1)))
    ]
  )
  assert [done.returncode for done in made] == [0, 0], made
  done, too_many, none_left = run_all(
    [
      [
        *SMALL,
        f'--config.data.labels={labels}',
        f'--config.data.first_labels={first}',
        f'--workdir={tmp_path / str(i)}',
      ]
      for i, (labels, first) in enumerate(
        [(more, 100), (more, 137), (tested, 0)]
      )
    ]
  )
  assert done.returncode == 0, done.stderr
  # Four test problems and four of dev there; the first four are left out here.
  assert re.search(
    'WARNING: 4 chains of .*, of 4 problems, are in dev', done.stdout
  )
  assert '\n100 chains of' in done.stdout
  assert 'data.first_labels=137, but' in the_error(too_many)
  assert 'has 136 chains to train on' in the_error(too_many)
  assert 'all 2 chains are of dev or test problems' in the_error(none_left)


# Name -> a command line, and its fault, which is seen when something is read.
REFUSED = {
  'no root': (
    [f'{LABEL}verifier,tiny', '--config.chains.kind=files'],
    'config.chains.root=DIR or .* PRM_JAX_DATA',
  ),
  'no workdir': (
    [f'{LABEL}verifier,tiny', '--config.chains.kind=workdir'],
    "chains.workdir='' holds no results.json",
  ),
  'another modulus': (
    [f'{LABEL}rollouts,tiny', '--config.policy.solver.modulus=7'],
    'modulo 10, the solver calculates modulo 7',
  ),
  'nothing to compare': (
    [f'{LABEL}consensus,tiny', '--config.agrees_with=x'],
    "chains.workdir='' holds no results.json",
  ),
  'nothing to compare with': (
    [f'{LABEL}consensus,tiny', '--config.chains.kind=arithmetic'],
    "agrees_with='' holds no results.json",
  ),
  'no root of problems': (
    [SAMPLE, '--config.problems.kind=file'],
    'config.problems.root=DIR or .* PRM_JAX_DATA',
  ),
  'a problem without an answer': (
    [
      '--config=configs/sample_math.py:gsm8k,tiny',
      '--config.problems.root={tmp}',
      '--config.problems.path=p.jsonl',
    ],
    "p.jsonl:2: .*'answer'",
  ),
  # It is read, and the solver of arithmetic refuses what is not its own.
  'a problem of GSM8K': (
    [
      '--config=configs/sample_math.py:gsm8k,tiny',
      '--config.problems.root={tmp}',
    ],
    'is no problem of the arithmetic domain',
  ),
  'a chat that may begin anew': (
    [
      f'{LABEL}rollouts,tiny',
      '--config.policy.kind=endpoint',
      '--config.policy.endpoint.base_url=http://127.0.0.1:9/v1',
      '--config.policy.endpoint.model=m',
      '--config.policy.endpoint.extra={{"top_k": 20}}',
    ],
    "api='chat' may begin anew",
  ),
}


@pytest.fixture(scope='module')
def refused(tmp_path_factory):
  """The folder of the workdirs, and how each command line ended."""
  tmp = tmp_path_factory.mktemp('refused')
  lines = ['{"problem": "1 + 1?", "answer": "2"}', '{"problem": "1 + 2?"}', '']
  (tmp / 'p.jsonl').write_text('\n'.join(lines))
  (tmp / 'gsm8k').mkdir()
  (tmp / 'gsm8k' / 'train.jsonl').write_text(lines[0])
  lines = {name: line for name, (line, _) in REFUSED.items()}
  return tmp, run_named(tmp, lines)


@pytest.mark.parametrize('name', REFUSED)
def test_a_bad_command_is_one_line(refused, name):
  if 'chat' in name:
    pytest.importorskip('openai', reason='openai is not installed')
  tmp, ended = refused
  assert re.search(REFUSED[name][1], the_error(ended[name]))
  # The solver sees what it is asked when the workdir is the config's own; all
  # else is refused before.
  solver = name in ('another modulus', 'a problem of GSM8K')
  assert (tmp / name / 'config.json').exists() == solver


@pytest.mark.parametrize(
  ('ids', 'expected'),
  [
    (('x', 'x', 'y', 'x'), ['x', 'x (2)', 'y', 'x (3)']),
    (('x', 'x (2)', 'x', 'x (2)'), ['x', 'x (2)', 'x (3)', 'x (2) (2)']),
    (('x', 'x', 'x (2)'), ['x', 'x (3)', 'x (2)']),
  ],
)
def test_no_two_chains_have_one_id(ids, expected):
  chains = [Chain('p', ('a',), meta={'id': name}) for name in ids]
  distinct = with_distinct_ids(chains)
  assert [chain.meta['id'] for chain in distinct] == expected
  # Once distinct, they stay as they are.
  assert with_distinct_ids(distinct) == distinct

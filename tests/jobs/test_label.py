"""Labelling and sampling from the command line, and training on what they left.

What a killed job does is in tests/jobs/test_interrupted.py.
"""

import json
import pathlib
import re

import pytest

from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain, from_dict
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.readers import read_chains
from prm_jax.jobs import selections
from prm_jax.jobs.label import with_distinct_ids
from prm_jax.labels.consensus import claimed_error
from prm_jax.runtime.errors import UserError
from tests.runtime.test_processes import flags_of
from tests.shared.command_line import SMALL, contents, run_all, the_error
from tests.shared.real_data import shared

pytestmark = pytest.mark.job

LABEL = '--config=configs/label_math.py:'
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
    '--config.prm={prm}',
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
def jobs(tmp_path_factory, finished) -> dict[str, tuple[pathlib.Path, str]]:
  """Each job's workdir and what it said."""
  tmp = tmp_path_factory.mktemp('jobs')
  found = {}
  for part in (FIRST, THEN):
    ran = run_all(
      [
        [
          *(argument.format(tmp=tmp, prm=finished) for argument in arguments),
          f'--workdir={tmp / name}',
        ]
        for name, arguments in part.items()
      ]
    )
    for name, done in zip(part, ran, strict=True):
      assert done.returncode == 0, f'{name}: {done.stderr}'
      found[name] = tmp / name, done.stdout
  return found


def chains_of(jobs, name):
  return list(chain_sets.read(str(jobs[name][0]), 'x'))


def ledger_of(jobs, name):
  return json.loads((jobs[name][0] / 'ledger.json').read_text())


def test_the_verifier_says_what_the_domain_says(jobs):
  chains = chains_of(jobs, 'verifier')
  assert len(chains) == 128
  for chain in chains:
    right = arithmetic_text.check_steps(chain.problem, chain.steps)
    assert [step.value == 1 for step in chain.labels] == right
  wrong = sum(claimed_error(chain, 0.0) != -1 for chain in chains)
  assert 0 < wrong < 128


def test_rollouts_keep_their_counts(jobs):
  for chain in chains_of(jobs, 'rollouts'):
    assert {step.trials for step in chain.labels} == {2}
  ledger = ledger_of(jobs, 'rollouts')
  assert ledger['calls'] == 128 * 4 * 2
  assert ledger['labels'] == 128 * 5
  assert ledger['unfinished_rollouts'] == ledger['unknown_rollouts'] == 0


def test_the_tree_adds_chains(jobs):
  ledger = ledger_of(jobs, 'omega')
  assert ledger['labelled'] > ledger['chains'] == 128
  ids = [chain.meta['id'] for chain in chains_of(jobs, 'omega')]
  assert len(set(ids)) == len(ids) == ledger['labelled']


def test_corrupted_chains_are_of_right_ones(jobs):
  ledger = ledger_of(jobs, 'corruption')
  assert ledger['labelled'] + sum(ledger['failed'].values()) == 128
  kinds = {chain.meta['kind'] for chain in chains_of(jobs, 'corruption')}
  assert 'right' in kinds and len(kinds) > 2


def test_consensus_keeps_what_both_claim(jobs):
  first, second = (
    {chain.meta['id']: chain for chain in chains_of(jobs, name)}
    for name in ('verifier', 'rollouts')
  )
  expected = [
    name
    for name in first
    if claimed_error(first[name], 0.0) == claimed_error(second[name], 0.0)
  ]
  kept = chains_of(jobs, 'consensus')
  assert [chain.meta['id'] for chain in kept] == expected
  assert 0 < len(kept) < 128
  for chain in kept:
    assert chain.meta['consensus'] == ['verifier', 'rollouts']
  told = ledger_of(jobs, 'consensus')['consensus']['all']
  assert told == {'chains': 128, 'kept': len(kept), 'share': len(kept) / 128}


def test_active_leaves_out_what_nobody_checked(tmp_path):
  outcomes = [True, False, None, False]
  chains = [
    Chain('p?', ('s',), '1', outcome, meta={'id': f'{i}'})
    for i, outcome in enumerate(outcomes)
  ]
  config = {'active': {'method': 'random'}}
  selected, report = selections.by_active(chains, config, tmp_path)
  assert {chain.meta['id'] for chain in selected} == {'0', '1', '3'}
  assert report['unchecked'] == 1
  with pytest.raises(UserError, match='no outcome'):
    selections.by_active(chains[2:3], config, tmp_path)


def test_active_selects_and_the_source_labels(jobs):
  chains = chains_of(jobs, 'active')
  assert len(chains) == 2 * 16
  assert ledger_of(jobs, 'active')['active']['selected'] == 32
  path = jobs['active'][0] / 'selection.json'
  scores = json.loads(path.read_text())['scores']
  assert len(scores) == 32 and max(scores) <= 0
  assert all(chain.labels for chain in chains)
  wrong = sum(not chain.outcome for chain in chains)
  every = chains_of(jobs, 'sample')
  assert wrong / 32 > sum(not chain.outcome for chain in every) / len(every)


def test_samples_are_checked_and_in_order(jobs):
  chains = chains_of(jobs, 'sample')
  ledger = ledger_of(jobs, 'sample')
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
  labelled = [chain.problem for chain in chains_of(jobs, 'verifier')]
  assert [chain.problem for chain in chains[::4]] == labelled[:16]


def test_a_trained_model_writes_and_values(jobs):
  ledger = ledger_of(jobs, 'sample of a model')
  assert ledger['chains'] + ledger['without_a_step'] == 64 == ledger['calls']
  assert ledger['tokens'] <= 64 * 12
  chains = chains_of(jobs, 'sample of a model')
  assert 0 < len(chains) == ledger['chains']
  for chain in chains:
    if not chain.meta['finished']:
      assert not chain.outcome and chain.answer is None
  for chain in chains_of(jobs, 'rollouts of a model'):
    trials = [step.trials for step in chain.labels]
    # Where 4 steps are written there may be no room for the fifth.
    assert trials[:3] == [1] * 3 and set(trials) <= {0, 1}
    assert chain.meta['rollouts']['unknown'] == trials.count(0)


def test_each_process_asks_its_own_copy_of_a_model(jobs, tmp_path):
  alone = jobs['sample of a model'][0]
  arguments = [
    argument.format(tmp=alone.parent) for argument in (SAMPLE, *MODEL)
  ]
  together = run_all(
    [[*arguments, f'--workdir={tmp_path}', *flags] for flags in flags_of(2)],
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


def test_our_own_lines_are_a_format(jobs, tmp_path):
  path = jobs['rollouts'][0] / 'chains.jsonl'
  chains, summary = read_chains(path, 'chains')
  assert chains == chains_of(jobs, 'rollouts')
  assert summary.ratings == 128 * 5
  lines = path.read_text().splitlines()
  assert [from_dict(json.loads(line)) for line in lines] == chains


def test_manifests_say_who_labelled_what(jobs):
  for name, policy in (('verifier', ''), ('rollouts', 'arithmetic solver')):
    results = json.loads((jobs[name][0] / 'results.json').read_text())
    assert results['manifest']['source'] == name
    assert results['manifest']['policy'].startswith(policy)
    assert bool(results['manifest']['policy']) == bool(policy)
    assert results['results'] == ledger_of(jobs, name)
    assert results['manifest']['versions']['jax']
  assert ledger_of(jobs, 'of samples')['labels'] == 64 * 5


def test_a_prm_trains_on_a_jobs_labels(jobs, finished):
  workdir, said = jobs['prm']
  assert f'128 chains of {jobs["rollouts"][0]} to train on' in said
  assert 'WARNING' not in said
  assert (workdir / 'report.html').exists()
  prints = [
    json.loads((folder / 'data.json').read_text())['fingerprint']
    for folder in (workdir, finished)
  ]
  assert prints[0] != prints[1]


def test_tested_problems_are_taken_out_and_told(jobs, tmp_path):
  """Labels of more problems than a PRM trains on: of its dev and test too."""
  labels = [
    f'{LABEL}verifier,tiny',
    '--config.chains.train_problems=140',
    '--config.chains.dev_problems=1',
    '--config.chains.test_problems=3',
    f'--workdir={tmp_path / "labels"}',
  ]
  train = [
    *SMALL,
    f'--config.data.labels={tmp_path / "labels"}',
    f'--workdir={tmp_path / "run"}',
  ]
  (made,) = run_all([labels])
  assert made.returncode == 0, made.stderr
  some = [*train, '--config.data.first_labels=100']
  more = [*train, '--config.data.first_labels=137']
  done, refused = run_all([some, more])
  assert done.returncode == 0, done.stderr
  # Four test problems and four of dev there; the first four are left out here.
  assert re.search(
    'WARNING: 4 chains of .*, of 4 problems, are in dev', done.stdout
  )
  assert '\n100 chains of' in done.stdout
  assert 'data.first_labels=137, but' in the_error(refused)
  assert 'has 136 chains to train on' in the_error(refused)


def test_so_many_labels_of_nothing(tmp_path):
  wanted = [*SMALL, f'--workdir={tmp_path}', '--config.data.first_labels=9']
  (refused,) = run_all([wanted])
  assert "data.first_labels=9 with data.labels=''" in the_error(refused)


def test_all_labels_of_tested_problems(tmp_path):
  labels = [
    f'{LABEL}verifier,tiny',
    '--config.chains.train_problems=2',
    '--config.chains.dev_problems=1',
    '--config.chains.test_problems=1',
    f'--workdir={tmp_path / "labels"}',
  ]
  train = [*SMALL, f'--config.data.labels={tmp_path / "labels"}']
  (made,) = run_all([labels])
  assert made.returncode == 0, made.stderr
  (refused,) = run_all([[*train, f'--workdir={tmp_path / "run"}']])
  assert 'all 2 chains are of dev or test problems' in the_error(refused)


def test_gsm8k_problems_are_read(tmp_path):
  root = shared('gsm8k/train.jsonl').parent.parent
  (refused,) = run_all(
    [
      [
        '--config=configs/sample_math.py:gsm8k,tiny',
        f'--config.problems.root={root}',
        f'--workdir={tmp_path}',
      ]
    ]
  )
  # Read they are, and the solver of arithmetic says that they are not its own.
  assert 'is no problem of the arithmetic domain' in the_error(refused)


# A job and an override -> what the line has to say.
REFUSED = {
  'verifier': {
    'source=foo': "source='foo': expected one of verifier, rollouts, omega, ",
    'select=foo': "select='foo': expected one of '', active, consensus",
    'chains.kind=foo': "chains.kind='foo': expected one of arithmetic, files, ",
    'chains.kind=files': 'config.chains.root=DIR or .* PRM_JAX_DATA',
    'chains.kind=workdir': "chains.workdir='' holds no results.json",
    'concurrent=0': 'concurrent=0: expected >= 1',
    'price.tokens=-1': 'price.tokens=-1.0: expected >= 0',
    'verifier.unchecked=foo': "verifier.unchecked='foo': expected unknown or ",
    'task=lable': "config.task is 'lable': expected one of prm, .*label",
  },
  'rollouts': {
    'rollouts.samples=0': 'rollouts.samples=0: expected >= 1',
    'policy.kind=foo': "policy.kind='foo': as a policy expected one of ",
    'policy.kind=workdir': 'policy.workdir is empty; name the --workdir',
    'policy.kind=endpoint': "endpoint.base_url='': expected http",
    'policy.solver.modulus=7': 'modulo 10, the solver calculates modulo 7',
  },
  'omega': {'omega.samples=0': 'omega.samples=0: expected >= 1'},
  'judge': {
    'judge.samples=0': 'judge.samples=0: expected >= 1',
    'policy.kind=solver': "policy.kind='solver': as a judge expected one of e",
  },
  'corruption': {'corruption.kinds=foo': 'corruption.kinds=.*foo.*: expected'},
  'consensus': {
    'agrees_with=x': "chains.workdir='' holds no results.json",
    'chains.kind=arithmetic': "agrees_with='' holds no results.json",
  },
  'active': {
    'chains.kind=arithmetic': "select='active' scores chains with a PRM; name",
  },
  'sample': {
    'samples=0': 'samples=0: expected >= 1',
    'problems.kind=foo': "problems.kind='foo': expected one of arithmetic",
    'problems.split=foo': "problems.split='foo': expected one of train, dev, ",
    'problems.kind=file': 'config.problems.root=DIR or .* PRM_JAX_DATA',
    'policy.kind=foo': "policy.kind='foo': as a policy expected one of ",
  },
}


@pytest.fixture(scope='module')
def refused(tmp_path_factory):
  tmp = tmp_path_factory.mktemp('refused')
  cases = [(job, change) for job, each in REFUSED.items() for change in each]
  lines = [
    [
      SAMPLE if job == 'sample' else f'{LABEL}{job},tiny',
      f'--config.{change}',
      f'--workdir={tmp / str(i)}',
    ]
    for i, (job, change) in enumerate(cases)
  ]
  ran = run_all(lines)
  return dict(zip(cases, ran, strict=True)), tmp


@pytest.mark.parametrize(
  ('job', 'change'),
  [(job, change) for job, each in REFUSED.items() for change in each],
)
def test_a_bad_command_is_one_line(refused, job, change):
  assert re.search(REFUSED[job][change], the_error(refused[0][job, change]))


def test_a_chat_that_may_begin_anew_leaves_the_workdir_free(tmp_path):
  pytest.importorskip('openai', reason='openai is not installed')
  asked = [
    FIRST['rollouts'][0],
    '--config.policy.kind=endpoint',
    '--config.policy.endpoint.base_url=http://127.0.0.1:9/v1',
    '--config.policy.endpoint.model=m',
    '--config.policy.endpoint.extra={"top_k": 20}',
    f'--workdir={tmp_path}',
  ]
  (refused,) = run_all([asked])
  assert "api='chat' may begin anew" in the_error(refused)
  assert not (tmp_path / 'config.json').exists()


def test_a_bad_problem_file_is_told_with_its_line(tmp_path):
  (tmp_path / 'p.jsonl').write_text(
    '{"problem": "1 + 1?", "answer": "2"}\n{"problem": "1 + 2?"}\n'
  )
  (refused,) = run_all(
    [
      [
        '--config=configs/sample_math.py:gsm8k,tiny',
        f'--config.problems.root={tmp_path}',
        '--config.problems.path=p.jsonl',
        f'--workdir={tmp_path / "run"}',
      ]
    ]
  )
  assert re.search(r"p.jsonl:2: .*'answer'", the_error(refused))


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


def test_another_config_or_other_chains_are_refused(jobs, tmp_path):
  workdir = jobs['rollouts'][0]
  before = contents(workdir)
  (refused,) = run_all(
    [
      [
        *FIRST['rollouts'],
        '--config.rollouts.samples=4',
        f'--workdir={workdir}',
      ]
    ]
  )
  assert 'belongs to another config (differs in rollouts.samples)' in (
    the_error(refused)
  )
  assert contents(workdir) == before

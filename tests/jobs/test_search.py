"""Searching from the command line: every method, with every kind of model.

tests/jobs/test_interrupted.py kills such jobs, tests/jobs/test_item_settings.py
has their faulty configs, and tests/parity/test_endpoint.py a real server.
"""

import re
import shutil

import numpy as np
import pytest

import prm_jax
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.problems import choose_problems
from prm_jax.inference import grading, loading
from prm_jax.inference.driver import AskedModels, drive
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.score import aggregate
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.jobs import search as search_job
from prm_jax.search.methods import METHODS
from prm_jax.search.tree import Tree
from tests.shared import configs
from tests.shared.command_line import (
  contents,
  copy_run,
  run_all,
  the_error,
)
from tests.shared.finished_jobs import (
  FinishedJobs,
  read_trees_and_scores,
  run_named,
)
from tests.shared.several_processes import process_flags

pytestmark = pytest.mark.job

SEARCH = '--config=configs/search_math.py:'
MODELS = (
  '--config.policy.kind=workdir',
  '--config.policy.workdir={tmp}/policy',
  # Untrained as it is, it would write to the window's end.
  '--config.policy.sampling.max_tokens=12',
  '--config.prm.kind=workdir',
  '--config.prm.path={prm}',
)
RECORDED = (
  '--config.policy.kind=recorded',
  '--config.policy.workdir={tmp}/sample',
)
FIRST = {
  **{name: [f'{SEARCH}{name},tiny'] for name in METHODS},
  'policy': ['--config=configs/policy_math.py:tiny'],
  'sample': [
    '--config=configs/sample_math.py:tiny',
    '--config.problems.split=test',
    '--config.problems.train_problems=128',
    '--config.samples=6',
  ],
}
# Whole chains, with a PRM and without; beams; a tree.
WITH_MODELS = ('best_of_n', 'majority', 'beam', 'mcts')
THEN = {
  **{
    f'{name} of models': [f'{SEARCH}{name},tiny', *MODELS]
    for name in WITH_MODELS
  },
  'recorded': [
    f'{SEARCH}best_of_n,tiny',
    *RECORDED,
    '--config.best_of_n.samples=6',
  ],
  'no PRM': [f'{SEARCH}majority,tiny', '--config.prm.kind=none'],
  'some': [
    f'{SEARCH}beam,tiny',
    '--config.problems.first=2',
    '--config.problems.count=3',
    '--config.trees=1',
    '--config.budget.samples=6',
  ],
}


@pytest.fixture(scope='module')
def jobs(tmp_path_factory, finished) -> FinishedJobs:
  tmp = tmp_path_factory.mktemp('jobs')
  return FinishedJobs(tmp, FIRST, THEN, prm=finished)


@pytest.mark.parametrize(
  'name', [*METHODS, *(f'{name} of models' for name in WITH_MODELS)]
)
def test_the_files_of_a_search_agree(jobs, name):
  chains, ledger = jobs.chains(name), jobs.read(name)
  found = ledger['search']
  assert found['problems'] == 8 == len(chains) + found['failed']
  right = sum(bool(chain.outcome) for chain in chains)
  assert found['accuracy']['mean'] == right / 8
  took = [chain.meta['search']['ledger'] for chain in chains]
  if not found['failed']:
    for ours, theirs in (
      ('calls', 'samples'),
      ('tokens', 'tokens'),
      ('prompt_tokens', 'prompt_tokens'),
      ('scored_tokens', 'scored_tokens'),
    ):
      assert ledger[ours] == sum(each[theirs] for each in took)
  for chain, record in zip(chains, jobs.trees(name), strict=True):
    assert record['id'] == chain.meta['problem_id']
    assert record['truth'] == chain.meta['truth']
    assert record['method'] == name.split()[0]
    tree = Tree.from_dict(record['tree'])
    assert tree.steps(record['chosen']) == chain.steps
    assert tree.scores(record['chosen']) == chain.meta['search']['scores']
  assert jobs.read(name, 'results.json')['results'] == ledger
  assert (jobs.folder(name) / 'report.html').exists()
  method = name.split()[0]
  assert f'{method}: {right / 8:.1%} [' in jobs.output[name]
  assert '] of 8 problems right' in jobs.output[name]


@pytest.mark.parametrize('name', WITH_MODELS)
def test_manifests_say_who_was_asked(jobs, name):
  manifest = jobs.read(f'{name} of models', 'results.json')['manifest']
  assert manifest['method'] == name
  assert re.match('[0-9a-f]{12}@6,', manifest['policy'])
  if METHODS[name].scores:
    assert re.fullmatch('[0-9a-f]{12}@[0-9]+', manifest['prm'])
  else:
    assert 'prm' not in manifest


def test_scores_are_those_of_the_prm(jobs, finished):
  chains = jobs.chains('best_of_n of models')
  expected = prm_jax.load(finished).score_many(
    [(chain.problem, chain.steps) for chain in chains]
  )
  for chain, scores in zip(chains, expected, strict=True):
    found = chain.meta['search']['scores']
    np.testing.assert_allclose(found, scores, atol=1e-5)


def test_recorded_chains_are_chosen_from(jobs):
  prm = ExactScorer(ArithmeticConfig())
  best = {}
  for chain in jobs.chains('sample'):
    ((scored,),) = prm.score([Scoring(chain.problem, chain.steps)])
    scores = np.array(scored.scores, np.float32)
    score = float(aggregate(scores, np.ones(len(scores), bool), 'min'))
    if score > best.get(chain.problem, (-1.0,))[0]:
      best[chain.problem] = score, chain.steps
  chosen = {chain.problem: chain.steps for chain in jobs.chains('recorded')}
  assert chosen == {problem: steps for problem, (_, steps) in best.items()}
  assert jobs.read('recorded')['calls'] == 8 * 6


def test_majority_asks_no_prm(jobs):
  with_one, without = (jobs.chains(n) for n in ('majority', 'no PRM'))
  assert [c.steps for c in with_one] == [c.steps for c in without]
  assert 'prm' not in jobs.read('no PRM', 'results.json')['manifest']


def test_some_of_the_problems_with_a_budget(jobs):
  every = [chain.problem for chain in jobs.chains('beam')]
  some = jobs.chains('some')
  assert [chain.problem for chain in some] == every[2:5]
  assert [tree['problem'] for tree in jobs.trees('some')] == every[2:3]
  for chain in some:
    assert chain.meta['search']['ledger']['samples'] == 6
    # Stopped on the way, and all the same an answer.
    assert not chain.meta['search']['ended']


def test_the_journal_gets_one_chain_of_a_problem():
  """The others that ended stand in its tree, and their answers are not read."""
  settings = configs.settings('search_math', 'best_of_n,tiny')
  domain = settings.policy.solver
  problems = choose_problems(settings.problems, settings.seed)
  models = AskedModels(policy=SolverPolicy(domain), prm=ExactScorer(domain))
  job = search_job.make_job(settings, problems, {}, models, {})
  grading.answer_of.cache_clear()
  items = list(drive(range(8), job.start, job.models, 8))
  assert grading.answer_of.cache_info().misses == 8
  different = set()
  for ended in items:
    (chain,) = ended.chains
    tree = Tree.from_dict(chain.meta['search']['tree'])
    assert len(tree.ended()) == 4
    different |= {(chain.problem, tree.steps(i)) for i in tree.ended()}
  assert len(different) > 8


@pytest.mark.slow
def test_two_processes_find_what_one_does(jobs, tmp_path):
  alone = jobs.folder('beam of models')
  arguments = jobs.fill(THEN['beam of models'])
  together = run_all(
    [
      [*arguments, f'--workdir={tmp_path}', *flags]
      for flags in process_flags(2)
    ],
    together=True,
  )
  assert [done.returncode for done in together] == [0, 0], together
  (ours, scores), (theirs, expected) = (
    read_trees_and_scores(tmp_path),
    read_trees_and_scores(alone),
  )
  assert ours == theirs
  assert scores == pytest.approx(expected, abs=1e-5)


def test_a_finished_job_changes_nothing_and_takes_no_other_config(jobs):
  workdir = jobs.folder('beam')
  before = contents(workdir)
  same = [*FIRST['beam'], f'--workdir={workdir}']
  again, refused = run_all([same, [*same, '--config.beam.samples=8']])
  assert again.returncode == 0, again.stderr
  assert 'all is done; the results are in' in again.stdout
  assert 'belongs to another config (differs in beam.samples)' in (
    the_error(refused)
  )
  assert contents(workdir) == before


def test_another_prm_in_the_same_place_is_refused(jobs, tmp_path, finished):
  prm = copy_run(finished, tmp_path / 'prm')
  arguments = [
    arg.format(tmp=jobs.tmp, prm=prm) for arg in THEN['beam of models']
  ]
  arguments.append(f'--workdir={tmp_path / "run"}')
  (done,) = run_all([arguments])
  assert done.returncode == 0, done.stderr
  assert re.search('[1-9][0-9]* PRM tokens', done.stderr)
  best = loading.best_step(prm, loading.read_description(prm))
  shutil.rmtree(prm / 'checkpoints' / str(best))  # another one is left
  (refused,) = run_all([arguments])
  assert re.search('is of another job: its prm is .* not', the_error(refused))


FROM_FILES = (
  '--config.policy.kind=solver',
  '--config.prm.kind=exact',
  '--config.problems.root={tmp}',
)
# Name -> a command line, and its fault, which is seen when something is read.
REFUSED = {
  'no problem left': (
    [f'{SEARCH}beam,tiny', '--config.problems.first=8'],
    'problems.first=8: there are 8 problems; lower it',
  ),
  'no root': (
    [f'{SEARCH}beam,tiny', '--config.problems.kind=file'],
    'config.problems.root=DIR or .* PRM_JAX_DATA',
  ),
  'another modulus': (
    [f'{SEARCH}beam,tiny', '--config.policy.solver.modulus=7'],
    'modulo 10, the solver calculates modulo 7',
  ),
  'an unknown key': (
    [f'{SEARCH}best_of_n,tiny', '--config.best_of_n.sample=1'],
    'config.best_of_n.sample=.*did you mean samples',
  ),
  # They are read, and the solver of arithmetic refuses what is not its own.
  'problems of GSM8K': (
    [f'{SEARCH}beam,gsm8k,tiny', *FROM_FILES],
    'is no problem of the arithmetic domain',
  ),
  'word problems': (
    [f'{SEARCH}beam,words,tiny', *FROM_FILES],
    'is no problem of the arithmetic domain',
  ),
  'a chat that may begin anew': (
    [
      f'{SEARCH}beam,tiny',
      '--config.policy.kind=endpoint',
      '--config.policy.endpoint.base_url=http://127.0.0.1:9/v1',
      '--config.policy.endpoint.model=m',
    ],
    "api='chat' may begin anew",
  ),
}


@pytest.fixture(scope='module')
def refused(tmp_path_factory):
  """The folder of the workdirs, and how each command line ended."""
  tmp = tmp_path_factory.mktemp('refused')
  for path in ('gsm8k/test.jsonl', 'word_problems/mawps_multiarith.jsonl'):
    (tmp / path).parent.mkdir()
    (tmp / path).write_text('{"question": "1 and 1?", "answer": "2"}\n')
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
  solver = name in ('another modulus', 'problems of GSM8K', 'word problems')
  assert (tmp / name / 'config.json').exists() == solver


def test_models_in_the_wrong_place(jobs, tmp_path, finished):
  """A PRM as a policy, a policy as a PRM, and a recording as either."""
  policy, sample = jobs.folder('policy'), jobs.folder('sample')
  cases = {
    f'prm.path={policy}': 'holds a policy, which scores nothing',
    f'policy.workdir={finished}': 'holds a reward model, which writes nothing',
    f'policy.workdir={sample}': 'holds no model.json of a training run',
    f'prm.path={tmp_path}': 'holds neither the model.json of a training run',
  }
  given = jobs.fill(THEN['beam of models'])
  ran = run_all(
    [
      [*given, f'--config.{case}', f'--workdir={tmp_path / str(i)}']
      for i, case in enumerate(cases)
    ]
  )
  for done, why in zip(ran, cases.values(), strict=True):
    assert why in the_error(done)
  recorded = jobs.fill(RECORDED)
  branches, other, few = run_all(
    [
      [f'{SEARCH}beam,tiny', *recorded, f'--workdir={tmp_path / "branches"}'],
      [
        f'{SEARCH}best_of_n,tiny',
        *recorded,
        f'--config.policy.workdir={jobs.folder("beam")}',
        f'--workdir={tmp_path / "other"}',
      ],
      [
        f'{SEARCH}best_of_n,tiny',
        *recorded,
        '--config.best_of_n.samples=7',
        f'--workdir={tmp_path / "few"}',
      ],
    ]
  )
  assert "method='beam' goes on with a chain in several ways" in (
    the_error(branches)
  )
  assert 'does not say its tokens' in the_error(other)
  assert 'has 6 chains of each problem, and best_of_n.samples=7' in (
    the_error(few)
  )
  # Nothing of the refused stands in the way of the corrected command.
  for name in ('branches', 'few'):
    assert not (tmp_path / name / 'config.json').exists()

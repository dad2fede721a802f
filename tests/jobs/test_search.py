"""Searching from the command line: every method, with every kind of model.

tests/jobs/test_interrupted.py kills such jobs, tests/jobs/test_item_settings.py
has their faulty configs, and tests/parity/test_endpoint.py a real server.
"""

import json
import pathlib
import re

import numpy as np
import pytest

import prm_jax
from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.problems import Problem
from prm_jax.inference.driver import AskedModels, drive
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.score import aggregate
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.jobs import search as search_job
from prm_jax.runtime.errors import UserError
from prm_jax.search.methods import METHODS
from prm_jax.search.tree import Tree
from tests.jobs.test_interrupted import trees_of
from tests.runtime.test_processes import flags_of
from tests.shared import configs
from tests.shared.command_line import (
  ROOT,
  contents,
  copy_run,
  run_all,
  the_error,
)

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
  'mcts at once': [f'{SEARCH}mcts,tiny', '--config.mcts.simulations=16'],
  'mcts gone on with': [
    f'{SEARCH}mcts,tiny',
    '--config.go_on_from={tmp}/mcts',
    '--config.concurrent=3',
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
def jobs(tmp_path_factory, finished) -> dict[str, tuple[pathlib.Path, str]]:
  """The workdir and the standard output of each job."""
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


def chains_of(jobs, name) -> list[Chain]:
  return list(chain_sets.read(str(jobs[name][0]), 'x'))


def read(jobs, name, file='ledger.json'):
  return json.loads((jobs[name][0] / file).read_text())


def trees_in(jobs, name) -> list[dict]:
  lines = (jobs[name][0] / 'trees.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
  'name', [*METHODS, *(f'{name} of models' for name in WITH_MODELS)]
)
def test_the_files_of_a_search_agree(jobs, name):
  chains, ledger = chains_of(jobs, name), read(jobs, name)
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
  for chain, told in zip(chains, trees_in(jobs, name), strict=True):
    assert told['id'] == chain.meta['problem_id']
    assert told['truth'] == chain.meta['truth']
    assert told['method'] == name.split()[0]
    tree = Tree.from_dict(told['tree'])
    assert tree.steps(told['chosen']) == chain.steps
    assert tree.scores(told['chosen']) == chain.meta['search']['scores']
  assert read(jobs, name, 'results.json')['results'] == ledger
  assert (jobs[name][0] / 'report.html').exists()
  method = name.split()[0]
  assert f'{method}: {right / 8:.1%} [' in jobs[name][1]
  assert '] of 8 problems right' in jobs[name][1]


@pytest.mark.parametrize('name', WITH_MODELS)
def test_manifests_say_who_was_asked(jobs, name):
  manifest = read(jobs, f'{name} of models', 'results.json')['manifest']
  assert manifest['method'] == name
  assert re.match('[0-9a-f]{12}@6,', manifest['policy'])
  if METHODS[name].scores:
    assert re.fullmatch('[0-9a-f]{12}@[0-9]+', manifest['prm'])
  else:
    assert 'prm' not in manifest


def test_scores_are_those_of_the_prm(jobs, finished):
  chains = chains_of(jobs, 'best_of_n of models')
  expected = prm_jax.load(finished).score_many(
    [(chain.problem, chain.steps) for chain in chains]
  )
  for chain, scores in zip(chains, expected, strict=True):
    found = chain.meta['search']['scores']
    np.testing.assert_allclose(found, scores, atol=1e-5)


def test_recorded_chains_are_chosen_from(jobs):
  prm = ExactScorer(ArithmeticConfig())
  best = {}
  for chain in chains_of(jobs, 'sample'):
    ((scored,),) = prm.score([Scoring(chain.problem, chain.steps)])
    scores = np.array(scored.scores, np.float32)
    score = float(aggregate(scores, np.ones(len(scores), bool), 'min'))
    if score > best.get(chain.problem, (-1.0,))[0]:
      best[chain.problem] = score, chain.steps
  chosen = {chain.problem: chain.steps for chain in chains_of(jobs, 'recorded')}
  assert chosen == {problem: steps for problem, (_, steps) in best.items()}
  assert read(jobs, 'recorded')['calls'] == 8 * 6


def test_majority_asks_no_prm(jobs):
  with_one, without = (chains_of(jobs, n) for n in ('majority', 'no PRM'))
  assert [c.steps for c in with_one] == [c.steps for c in without]
  assert 'prm' not in read(jobs, 'no PRM', 'results.json')['manifest']


def test_some_of_the_problems_with_a_budget(jobs):
  every = [chain.problem for chain in chains_of(jobs, 'beam')]
  some = chains_of(jobs, 'some')
  assert [chain.problem for chain in some] == every[2:5]
  assert [tree['problem'] for tree in trees_in(jobs, 'some')] == every[2:3]
  for chain in some:
    assert chain.meta['search']['ledger']['samples'] == 6
    # Stopped on the way, and all the same an answer.
    assert not chain.meta['search']['ended']


def visits_of(jobs, name) -> list[dict]:
  """Of each problem: how often the search went to which steps."""
  trees = [Tree.from_dict(told['tree']) for told in trees_in(jobs, name)]
  return [
    {
      (tree.steps(i), node.stream): node.visits
      for i, node in enumerate(tree.nodes)
      if not node.scratch
    }
    for tree in trees
  ]


def test_a_kept_tree_grows_further(jobs):
  """Eight simulations and eight more are sixteen."""
  assert visits_of(jobs, 'mcts gone on with') == visits_of(jobs, 'mcts at once')
  assert visits_of(jobs, 'mcts') != visits_of(jobs, 'mcts at once')
  assert '8 of 8 problems were searched before' in jobs['mcts gone on with'][1]
  # The ledger is of the new part.
  took = [
    read(jobs, name)['search']['cost']['samples']['mean']
    for name in ('mcts gone on with', 'mcts at once')
  ]
  assert took[0] < took[1]


def test_the_journal_gets_one_chain_of_a_problem():
  """The other chains that ended stand in its tree."""
  settings = configs.settings('search_math', 'best_of_n,tiny')
  domain = settings.policy.solver
  problems = search_job.choose_problems(settings.problems, settings.seed)[:2]
  models = AskedModels(policy=SolverPolicy(domain), prm=ExactScorer(domain))
  job = search_job.make_job(settings, problems, {}, models)
  for ended in drive(range(2), job.start, job.models, 2):
    (chain,) = ended.chains
    tree = Tree.from_dict(chain.meta['search']['tree'])
    assert len(tree.ended()) == 4


def test_a_tree_without_a_text_for_an_id_is_refused(tmp_path):
  tree = Tree('1 + 1').to_dict()
  line = json.dumps({'id': [1], 'tree': tree})
  (tmp_path / 'trees.jsonl').write_text(line + '\n')
  with pytest.raises(UserError, match=r'trees\.jsonl:1: is no line of a sea'):
    search_job.read_trees(str(tmp_path), [Problem('1', '', '1 + 1', '2')])


def test_searches_whose_trees_cannot_grow_further(jobs, tmp_path):
  half, treeless = (
    copy_run(jobs['mcts'][0], tmp_path / name) for name in ('half', 'treeless')
  )
  (half / 'trees.jsonl').write_text('{"id": "mod 10 : 1')
  (treeless / 'trees.jsonl').unlink()
  cases = {
    'nothing': (tmp_path, 'do not say how it was searched; name the --workdir'),
    'treeless': (treeless, 'trees.jsonl: No such file or directory; name the'),
    'half': (half, 'trees.jsonl:1: is no line of a search; run'),
    'others': (jobs['some'][0], 'has trees of none of the 2 problems; name a'),
  }
  ran = run_all(
    [
      [
        f'{SEARCH}mcts,tiny',
        f'--config.go_on_from={workdir}',
        '--config.problems.count=2',
        f'--workdir={tmp_path / name}-run',
      ]
      for name, (workdir, _) in cases.items()
    ]
  )
  for done, (_, why) in zip(ran, cases.values(), strict=True):
    assert why in the_error(done)


def test_trees_grow_further_only_with_the_same_models_and_seed(jobs, tmp_path):
  earlier = jobs['mcts'][0]
  nameless = copy_run(earlier, tmp_path / 'nameless')
  (nameless / 'results.json').unlink()
  cases = {
    'seed': (earlier, '--config.seed=1', 'its seed is 0, not 1, and'),
    'policy': (
      earlier,
      '--config.policy.solver.slip=0.2',
      'its policy is arithmetic solver .*, not arithmetic solver ',
    ),
    'prm': (
      earlier,
      '--config.prm.exact=steps',
      'its prm is exact value modulus 10, not exact steps modulus 10, and',
    ),
    'aggregate': (
      earlier,
      '--config.search.aggregate=mean',
      'its search.aggregate is min, not mean, and the scores of both cannot',
    ),
    'nameless': (nameless, '--config.seed=0', 'do not say how it was'),
  }
  ran = run_all(
    [
      [
        f'{SEARCH}mcts,tiny',
        f'--config.go_on_from={workdir}',
        flag,
        f'--workdir={tmp_path / name}-run',
      ]
      for name, (workdir, flag, _) in cases.items()
    ]
  )
  for name, done in zip(cases, ran, strict=True):
    assert re.search(cases[name][2], the_error(done)), name
    assert not (tmp_path / f'{name}-run' / 'config.json').exists()


def test_a_finished_job_changes_nothing(jobs):
  workdir = jobs['beam'][0]
  before = contents(workdir)
  (again,) = run_all([[*FIRST['beam'], f'--workdir={workdir}']])
  assert again.returncode == 0, again.stderr
  assert 'all is done; the results are in' in again.stdout
  assert contents(workdir) == before


@pytest.mark.slow
def test_two_processes_find_what_one_does(jobs, tmp_path, finished):
  alone = jobs['beam of models'][0]
  arguments = [
    argument.format(tmp=alone.parent, prm=finished)
    for argument in THEN['beam of models']
  ]
  together = run_all(
    [[*arguments, f'--workdir={tmp_path}', *flags] for flags in flags_of(2)],
    together=True,
  )
  assert [done.returncode for done in together] == [0, 0], together
  (ours, scores), (theirs, expected) = trees_of(tmp_path), trees_of(alone)
  assert ours == theirs
  assert scores == pytest.approx(expected, abs=1e-5)


def test_another_config_is_refused(jobs):
  workdir = jobs['beam'][0]
  before = contents(workdir)
  (refused,) = run_all(
    [[*FIRST['beam'], '--config.beam.samples=8', f'--workdir={workdir}']]
  )
  assert 'belongs to another config (differs in beam.samples)' in (
    the_error(refused)
  )
  assert contents(workdir) == before


def test_another_prm_in_the_same_place_is_refused(jobs, tmp_path, finished):
  prm = copy_run(finished, tmp_path / 'prm')
  arguments = [
    argument.format(tmp=jobs['policy'][0].parent, prm=prm)
    for argument in THEN['beam of models']
  ]
  arguments.append(f'--workdir={tmp_path / "run"}')
  (done,) = run_all([arguments])
  assert done.returncode == 0, done.stderr
  assert re.search('[1-9][0-9]* PRM tokens', done.stderr)
  config = prm / 'config.json'
  config.write_text(config.read_text().replace('"seed": 0', '"seed": 1'))
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
    'sample.*Did you mean "samples"',
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
  """The workdir of each command line and what became of it."""
  tmp = tmp_path_factory.mktemp('refused')
  for path in ('gsm8k/test.jsonl', 'word_problems/mawps_multiarith.jsonl'):
    (tmp / path).parent.mkdir()
    (tmp / path).write_text('{"question": "1 and 1?", "answer": "2"}\n')
  ran = run_all(
    [
      [*(arg.format(tmp=tmp) for arg in args), f'--workdir={tmp / name}']
      for name, (args, _) in REFUSED.items()
    ]
  )
  return {
    name: (tmp / name, done) for name, done in zip(REFUSED, ran, strict=True)
  }


@pytest.mark.parametrize('name', REFUSED)
def test_a_bad_command_is_one_line(refused, name):
  if 'chat' in name:
    pytest.importorskip('openai', reason='openai is not installed')
  workdir, done = refused[name]
  assert re.search(REFUSED[name][1], the_error(done))
  # Whoever cannot answer is found before the workdir belongs to the config.
  solver = name in ('another modulus', 'problems of GSM8K', 'word problems')
  assert (workdir / 'config.json').exists() == solver


def test_models_in_the_wrong_place(jobs, tmp_path, finished):
  """The PRM is a policy, the policy a PRM, the recording neither; each told."""
  policy, sample = jobs['policy'][0], jobs['sample'][0]
  cases = {
    f'prm.path={policy}': 'holds a policy, which scores nothing',
    f'policy.workdir={finished}': 'holds a reward model, which writes nothing',
    f'policy.workdir={sample}': 'holds no model.json of a training run',
    f'prm.path={tmp_path}': 'holds neither the model.json of a training run',
  }
  given = [
    argument.format(tmp=policy.parent, prm=finished)
    for argument in THEN['beam of models']
  ]
  ran = run_all(
    [
      [*given, f'--config.{case}', f'--workdir={tmp_path / str(i)}']
      for i, case in enumerate(cases)
    ]
  )
  for done, why in zip(ran, cases.values(), strict=True):
    assert why in the_error(done)
  recorded = [argument.format(tmp=policy.parent) for argument in RECORDED]
  branches, other, few = run_all(
    [
      [f'{SEARCH}beam,tiny', *recorded, f'--workdir={tmp_path / "branches"}'],
      [
        f'{SEARCH}best_of_n,tiny',
        *recorded,
        f'--config.policy.workdir={jobs["beam"][0]}',
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
  # What is recorded is chosen from, and it is said that some is not.
  assert few.returncode == 0, few.stderr
  assert '8 done without some of the answers they wanted' in few.stdout
  # Nothing of the refused stands in the way of the corrected command.
  assert not (tmp_path / 'branches' / 'config.json').exists()


def test_the_readmes_example(jobs, finished, capsys):
  """In the README's own words, but for where its models are."""
  text = (ROOT / 'README.md').read_text()
  (code,) = re.findall('In Python:\n\n```python\n(.*?)```', text, re.DOTALL)
  code = code.replace('/tmp/policy', str(jobs['policy'][0]))
  exec(code.replace('/tmp/prm_math', str(finished)), {})
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 2
  for line in lines:
    assert 0 < float(line.split()[-1]) < 1

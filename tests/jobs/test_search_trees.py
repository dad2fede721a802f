"""A search whose trees an earlier search began: `config.go_on_from`."""

import json
import re

import pytest

from prm_jax.data.problems import Problem
from prm_jax.jobs.search import read_trees
from prm_jax.runtime.errors import UserError
from prm_jax.search.tree import Tree
from tests.shared.command_line import copy_run, run_all, the_error
from tests.shared.finished_jobs import FinishedJobs, run_named

MCTS = '--config=configs/search_math.py:mcts,tiny'
BEST = '--config=configs/search_math.py:best_of_n,tiny'
RECORDED = (
  BEST,
  '--config.policy.kind=recorded',
  '--config.policy.workdir={tmp}/sample',
)
FIRST = {
  'begun': [MCTS],
  'at once': [MCTS, '--config.mcts.simulations=16'],
  'others': [MCTS, '--config.problems.first=2', '--config.problems.count=3'],
  'best': [BEST],
  'sample': [
    '--config=configs/sample_math.py:tiny',
    '--config.problems.split=test',
    '--config.problems.train_problems=128',
    '--config.samples=6',
  ],
}
THEN = {
  'grown': [
    MCTS,
    '--config.go_on_from={tmp}/begun',
    '--config.concurrent=3',
  ],
  # Asks no PRM, and keeps the scores of the first.
  'voted': [
    '--config=configs/search_math.py:majority,tiny',
    '--config.go_on_from={tmp}/begun',
  ],
  'recorded': [*RECORDED, '--config.best_of_n.samples=4'],
}
LAST = {
  'recorded further': [
    *RECORDED,
    '--config.best_of_n.samples=2',
    '--config.go_on_from={tmp}/recorded',
  ],
}


@pytest.fixture(scope='module')
def jobs(tmp_path_factory) -> FinishedJobs:
  return FinishedJobs(tmp_path_factory.mktemp('jobs'), FIRST, THEN, LAST)


def visits_of(jobs, name) -> list[dict]:
  """Of each problem: how often the search went to which steps."""
  trees = [Tree.from_dict(record['tree']) for record in jobs.trees(name)]
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
  assert visits_of(jobs, 'grown') == visits_of(jobs, 'at once')
  assert visits_of(jobs, 'begun') != visits_of(jobs, 'at once')
  assert '8 of 8 problems were searched before' in jobs.output['grown']
  # The ledger is of the new part.
  took = [
    jobs.read(name)['search']['cost']['samples']['mean']
    for name in ('grown', 'at once')
  ]
  assert took[0] < took[1]


def test_the_chains_that_an_earlier_search_left_are_taken(jobs):
  assert jobs.read('recorded further')['calls'] == 8 * 2
  for record in jobs.trees('recorded further'):
    drawn = Tree.from_dict(record['tree'])
    assert [node.stream.number for node in drawn.nodes if node.ended] == [
      *range(6)
    ]


def test_more_than_the_chains_that_an_earlier_search_left_are_refused(
  jobs, tmp_path
):
  line = [
    *jobs.fill(LAST['recorded further']),
    '--config.best_of_n.samples=3',
    f'--workdir={tmp_path / "run"}',
  ]
  (done,) = run_all([line])
  assert re.search(
    'has 6 chains of each problem, of which go_on_from=.* took 4, and '
    'best_of_n.samples=3 asks for more; set it lower',
    the_error(done),
  )
  assert not (tmp_path / 'run' / 'config.json').exists()


def test_a_tree_without_a_text_for_an_id_is_refused(tmp_path):
  tree = Tree('1 + 1').to_dict()
  line = json.dumps({'id': [1], 'tree': tree})
  (tmp_path / 'trees.jsonl').write_text(line + '\n')
  with pytest.raises(UserError, match=r'trees\.jsonl:1: is not a search tree'):
    read_trees(str(tmp_path), [Problem('1', '', '1 + 1', '2')])


# Name -> a flag, and why the trees of the search cannot grow further with it.
OTHERWISE = {
  'seed': ('--config.seed=1', 'its seed is 0, not 1, and'),
  'policy': (
    '--config.policy.solver.slip=0.2',
    'its policy is arithmetic solver .*, not arithmetic solver ',
  ),
  'prm': (
    '--config.prm.exact=steps',
    'its prm is exact value modulus 10 of .*, not exact steps modulus 10, and',
  ),
  'aggregate': (
    '--config.search.aggregate=mean',
    'its search.aggregate is min, not mean, and the scores of both cannot',
  ),
}
# The same of trees that a search without a PRM left behind.
OTHERWISE |= {
  f'{name} through a vote': OTHERWISE[name] for name in ('prm', 'aggregate')
}


@pytest.fixture(scope='module')
def ended(jobs, tmp_path_factory):
  """How searches ended that cannot go on from the first, in their folder."""
  tmp = tmp_path_factory.mktemp('ended')
  nameless, treeless, half = (
    copy_run(jobs.folder('begun'), tmp / 'copies' / name)
    for name in ('nameless', 'treeless', 'half')
  )
  (nameless / 'results.json').unlink()
  (treeless / 'trees.jsonl').unlink()
  (half / 'trees.jsonl').write_text('{"id": "mod 10 : 1')
  two = '--config.problems.count=2'
  lines = {
    name: [MCTS, f'--config.go_on_from={jobs.folder(before)}', flag]
    for name, (flag, _) in OTHERWISE.items()
    for before in ('voted' if 'vote' in name else 'begun',)
  } | {
    name: [MCTS, f'--config.go_on_from={folder}', two]
    for name, folder in {
      'nothing': tmp,
      'nameless': nameless,
      'treeless': treeless,
      'half': half,
      'others': jobs.folder('others'),
      'best': jobs.folder('best'),
    }.items()
  }
  return tmp, run_named(tmp, lines)


@pytest.mark.parametrize('name', OTHERWISE)
def test_trees_grow_further_only_with_the_same_models_and_seed(ended, name):
  tmp, searches = ended
  assert re.search(OTHERWISE[name][1], the_error(searches[name]))
  assert not (tmp / name / 'config.json').exists()


@pytest.mark.parametrize(
  ('name', 'why'),
  [
    ('nothing', 'do not say how it was searched; name the --workdir'),
    ('nameless', 'do not say how it was searched; name the --workdir'),
    ('treeless', 'trees.jsonl: No such file or directory; name the'),
    ('half', 'trees.jsonl:1: is not a search tree; run'),
    ('others', 'has trees of none of the 2 problems; name a'),
    ('best', 'no mcts has searched its trees, and mcts grows no others'),
  ],
)
def test_a_folder_without_trees_of_these_problems_is_refused(ended, name, why):
  assert why in the_error(ended[1][name])

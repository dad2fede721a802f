"""Runs the search job: problems in, the best chain found for each out.

    problems -> policy and PRM, by a method of search/ -> WORKDIR: the chosen
      chains in data and chains.jsonl, the trees in trees.jsonl, results, report

`main.py` runs it for `config.task = 'search'`, in every process of the job.
`engine.py` runs and resumes its items: an item is a problem.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prm_jax.data import problems as problems_lib
from prm_jax.data.chains import Chain
from prm_jax.data.problems import Problem
from prm_jax.evals.search import search_section
from prm_jax.inference.driver import AskedModels, Ended, Work
from prm_jax.inference.recorded_policy import RecordedPolicy
from prm_jax.jobs import engine, policies
from prm_jax.jobs.learned import says_seen
from prm_jax.jobs.prms import open_prm
from prm_jax.jobs.settings.search import SearchSettings
from prm_jax.report import write_report
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir, read_results, write_lines
from prm_jax.search.method import Task
from prm_jax.search.methods import check_models
from prm_jax.search.searching import search_problem
from prm_jax.search.tree import Tree

Log = Callable[[str], None]
TREES = 'trees.jsonl'


def run(settings: SearchSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  workdir.check_local('a search job')
  models = open_models(settings, workdir)
  problems = problems_lib.choose_problems(settings.problems, settings.seed)
  warn_of_seen(settings, problems, log)
  names = names_of(models)
  if settings.go_on_from:
    names = check_earlier(settings, names) | names
  trees = read_trees(settings.go_on_from, problems)
  check_grown(settings, trees)
  if isinstance(models.policy, RecordedPolicy):
    check_recorded(settings, models.policy, trees)
  if trees:
    log(f'{len(trees):,} of {len(problems):,} problems were searched before')
  job = make_job(settings, problems, trees, models, names)
  engine.run(job, settings, workdir, log)
  processes.first_alone('report', show, workdir, log)


def open_models(settings: SearchSettings, workdir: Workdir) -> AskedModels:
  """Opens the policy and, if the method needs one, the PRM.

  Raises:
    UserError: one cannot be opened, or the method cannot work with them.
  """
  solver = settings.policy.solver
  prm = open_prm(settings, solver, workdir) if settings.scores else None
  policy = policies.open_policy(settings, workdir)
  check_models(settings.method, policy, prm, settings.budget.to_budget())
  return AskedModels(policy=policy, prm=prm)


def warn_of_seen(
  settings: SearchSettings, problems: Sequence[Problem], log: Log
) -> None:
  """Says which models were trained on problems of a test or dev split."""
  if settings.problems.split == 'train':
    return
  models: tuple[str, ...] = ()
  if settings.policy.kind == 'workdir':
    models = (settings.policy.workdir,)
  if settings.policy.kind == 'recorded':
    path = paths.open_path(settings.policy.workdir) / 'config.json'
    sampled = paths.read_json(path, 'sample again').get('policy', {})
    models = (sampled.get('workdir', ''),)
  if settings.scores:
    models += settings.prm.trained
  texts = [problem.text for problem in problems]
  for model in models:
    if seen := says_seen(texts, model, settings.problems.kind):
      log(f'WARNING: {seen}')


def check_recorded(
  settings: SearchSettings,
  policy: RecordedPolicy,
  trees: Mapping[str, dict[str, Any]],
) -> None:
  """Raises UserError if a search asks for more chains than were recorded.

  Args:
    trees: trees of an earlier search, which has taken some of the chains.
  """
  wanted = settings.method_config.samples
  taken = [tree['nodes'][0].get('drawn', 0) for tree in trees.values()]
  before = max(taken, default=0)
  if 0 < policy.samples < before + wanted:
    has, cure = '', 'sample more, or set it lower'
    if before:
      has = f', of which go_on_from={settings.go_on_from!r} took {before}'
      cure = 'set it lower, or search more samples anew'
    raise UserError(
      f'policy.workdir={settings.policy.workdir!r} has {policy.samples} chains '
      f'of each problem{has}, and {settings.method}.samples={wanted} asks for '
      f'more; {cure}'
    )


def names_of(models: AskedModels) -> dict[str, str]:
  """Returns the names of the models, by 'policy' and 'prm'."""
  asked = {'policy': models.policy, 'prm': models.prm}
  return {side: model.name for side, model in asked.items() if model}


def make_job(
  settings: SearchSettings,
  problems: Sequence[Problem],
  trees: Mapping[str, dict[str, Any]],
  models: AskedModels,
  names: Mapping[str, str],
) -> engine.ItemJob:
  """Describes the job for the engine.

  Args:
    trees: trees of an earlier search to continue, by problem id.
    names: names of the models, including a PRM that only the earlier search
      asked.
  """
  asked = names_of(models).values()
  plan = settings.plan(', '.join([settings.method, *asked]))

  def start(index: int) -> Work:
    problem = problems[index]
    task = Task(problem.id, problem.text, problem.truth, problem.dataset)
    kept = trees.get(problem.id)
    tree = Tree.from_dict(kept) if kept else None
    # The tree of the chosen chain has the others.
    return search_problem(task, plan, tree, others=False)

  def counts(items: Mapping[int, Ended]) -> dict[str, Any]:
    found = [ended.chains[0] for ended in items.values() if not ended.failed]
    failed = [ended.failed for ended in items.values() if ended.failed]
    return {'search': search_section(found, failed, seed=settings.seed)}

  def write_trees(workdir: Workdir, items: Mapping[int, Ended]) -> None:
    written = list(items.values())[: settings.trees or None]
    write_lines(
      workdir / TREES,
      (
        tree_record(ended.chains[0], settings.method)
        for ended in written
        if not ended.failed
      ),
    )

  return engine.ItemJob(
    name=f'search by {settings.method}',
    kind='search',
    about={
      'data_fingerprint': fingerprint(problems, trees),
      'method': settings.method,
      **names,
    },
    count=len(problems),
    start=start,
    counts=counts,
    models=models,
    chains=lambda ended: [without_tree(chain) for chain in ended.chains],
    write_more=write_trees,
  )


def without_tree(chain: Chain) -> Chain:
  """Returns a chosen chain as it is written; its tree is in trees.jsonl.

  Seconds are dropped, as no two runs agree on them.
  """
  about = dict(chain.meta['search'])
  del about['tree']
  about['ledger'] = {k: v for k, v in about['ledger'].items() if k != 'seconds'}
  return dataclasses.replace(chain, meta={**chain.meta, 'search': about})


def tree_record(chain: Chain, method: str) -> dict[str, Any]:
  """Returns the line of trees.jsonl for a chosen chain."""
  about = chain.meta['search']
  return {
    'id': chain.meta['problem_id'],
    'problem': chain.problem,
    'truth': chain.meta['truth'],
    'tree': about['tree'],
    'chosen': about['node'],
    'method': method,
  }


def read_trees(
  workdir: str, problems: Sequence[Problem]
) -> dict[str, dict[str, Any]]:
  """Reads the trees of an earlier search, by problem id.

  Args:
    workdir: workdir of that search; '' if there is none.

  Returns:
    The trees of these problems, in the form of `Tree.to_dict`.

  Raises:
    UserError: the search is not done, or has no trees of these problems.
  """
  if not workdir:
    return {}
  path = paths.open_path(workdir) / TREES
  texts = {problem.id: problem.text for problem in problems}
  found = {}
  try:
    lines = paths.read_lines(path)
  except OSError as error:
    raise UserError(
      f'go_on_from={workdir!r}: {path}: {error.strerror}; name the --workdir '
      'of a search that is done'
    ) from None
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      name, tree = record['id'], record['tree']
      if not isinstance(name, str):
        raise TypeError(name)
      Tree.from_dict(tree)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
      raise UserError(
        f'{path}:{number}: is not a search tree; run that search again in an '
        'empty --workdir'
      ) from None
    if texts.get(name) == tree['problem']:
      found[name] = tree
  if not found:
    raise UserError(
      f'go_on_from={workdir!r} has trees of none of the {len(problems)} '
      'problems; name a search of the same ones'
    )
  return found


def check_earlier(
  settings: SearchSettings, names: Mapping[str, str]
) -> dict[str, str]:
  """Checks that the search to continue had the same models and settings.

  Its scores, and the statistics of MCTS, are kept and must not be mixed with
  others.

  Returns:
    {'prm': name of the PRM that scored its trees}; {} if none did.

  Raises:
    UserError: it had another seed, policy, PRM or aggregate, or is not done.
  """
  workdir = settings.go_on_from
  folder = paths.open_path(workdir)
  try:
    about = read_results(folder)['manifest']
    theirs = paths.read_json(folder / 'config.json', 'search anew')
    pairs = [
      ('seed', theirs['seed'], settings.seed),
      ('policy', about['policy'], names['policy']),
    ]
    if 'prm' in about:  # else there are no scores
      aggregate = theirs['search']['aggregate']
      pairs += [
        ('search.aggregate', aggregate, settings.search.aggregate),
        ('prm', about['prm'], names.get('prm', about['prm'])),
      ]
  except (LookupError, TypeError):
    raise UserError(
      f'go_on_from={workdir!r}: its config.json and results.json do not say '
      'how it was searched; name the --workdir of a search that is done'
    ) from None
  for name, there, here in pairs:
    if there != here:
      raise UserError(
        f'go_on_from={workdir!r}: its {name} is {there}, not {here}, and the '
        'scores of both cannot be compared; search with the same, or anew'
      )
  return {side: about[side] for side in ('prm',) if side in about}


def check_grown(
  settings: SearchSettings, trees: Mapping[str, dict[str, Any]]
) -> None:
  """Raises UserError if MCTS is to grow trees that it never walked."""
  if settings.method != 'mcts' or not trees:
    return
  if not any(tree['nodes'][0].get('visits') for tree in trees.values()):
    raise UserError(
      f'go_on_from={settings.go_on_from!r}: no mcts has searched its trees, '
      'and mcts grows no others; name one of its searches, or search anew'
    )


def fingerprint(
  problems: Sequence[Problem], trees: Mapping[str, dict[str, Any]]
) -> str:
  """Returns 16 hex digits over the problems and the trees found before."""
  alone = problems_lib.fingerprint(problems)
  if not trees:
    return alone
  text = json.dumps([alone, trees], ensure_ascii=False, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def show(workdir: Workdir, log: Log) -> None:
  """Prints the main numbers of a run, and writes the report."""
  document = workdir.read_json('results.json')
  found = document['results']['search']
  method = document['manifest']['method']
  if found['accuracy'] is not None:
    low, high = found['accuracy']['ci95']
    log(
      f'{method}: {found["accuracy"]["mean"]:.1%} [{low:.1%}, {high:.1%}] of '
      f'{found["answers_known"]:,} problems right'
    )
  if found['cost']:
    cost = {name: each['mean'] for name, each in found['cost'].items()}
    flops = f', {cost["flops"]:.3g} FLOPs' if 'flops' in cost else ''
    log(
      f'{method}: a problem took {cost["tokens"]:,.0f} tokens, '
      f'{cost["scored_tokens"]:,.0f} PRM tokens{flops}'
    )
  if found['dead']:
    given_up = ', '.join(f'{n:,} {why}' for why, n in found['dead'].items())
    log(f'{method}: chains given up: {given_up}')
  log(f'report: {write_report(workdir.path)}')

"""The search job: problems in, for each the chain that a search chose out.

    problems -> policy and PRM, by a method of search/ -> WORKDIR: the chosen
      chains in data and chains.jsonl, the trees in trees.jsonl, results, report

What `main.py` runs for `config.task = 'search'`, in every process of the job.
`jobs/engine.py` runs and resumes it: an item is a problem.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.data import problems as problems_lib
from prm_jax.data.chains import Chain
from prm_jax.data.problems import Problem
from prm_jax.evals.search import search_section
from prm_jax.inference.driver import Ended, Models, Work
from prm_jax.inference.protocols import Policy, StepScorer
from prm_jax.jobs import engine, policies, step_scorers
from prm_jax.report import write_report
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import read_results
from prm_jax.search.budget import Budget
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.methods import METHODS, check_models
from prm_jax.search.searching import search
from prm_jax.search.tree import Tree

Log = Callable[[str], None]
TREES = 'trees.jsonl'


class Wanted(NamedTuple):
  """How every problem is searched.

  Attributes:
    method: its name.
    own: of its config.
  """

  method: str
  own: Any
  common: SearchConfig
  budget: Budget


def read_wanted(config: Mapping[str, Any]) -> Wanted:
  """What a config says of the search; raises UserError where it is wrong."""
  name = config['method']
  if name not in METHODS:
    raise UserError(f'method={name!r}: expected one of {", ".join(METHODS)}')
  # JSON has no inf: what is not said has no limit.
  limits = {k: v for k, v in config['budget'].items() if v is not None}
  own = METHODS[name].config(**config[name])
  common = SearchConfig(**config['search'])
  # A method says what it cannot do before it asks for anything.
  next(METHODS[name].grow(Tree(''), own, common))
  return Wanted(name, own, common, Budget(**limits))


def check(config: Mapping[str, Any]) -> Wanted:
  """Raises UserError for all that can be seen before anything is read."""
  engine.check(config)
  policies.check(config['policy'], 'policy to search with')
  problems_lib.check(config['problems'])
  step_scorers.check(config['prm'])
  for name in ('first', 'count'):
    if config['problems'][name] < 0:
      raise UserError(
        f'problems.{name}={config["problems"][name]}: expected >= 0'
      )
  if config['trees'] < 0:
    raise UserError(f'trees={config["trees"]}: expected >= 0 (0: all)')
  wanted = read_wanted(config)
  asked = ('policy', 'prm') if METHODS[wanted.method].scores else ('policy',)
  for side in asked:
    kind = config[side]['kind']
    if math.isfinite(wanted.budget.flops) and kind != 'workdir':
      raise UserError(
        f'budget.flops={wanted.budget.flops:g}: {side}.kind={kind!r} does not '
        'say its FLOPs; set budget.tokens or budget.samples instead'
      )
  return wanted


def read_problems(config: Mapping[str, Any], seed: int) -> list[Problem]:
  """Those of the problems section that are to be searched."""
  problems = problems_lib.read_problems(config, seed)
  first, count = config['first'], config['count']
  chosen = problems[first : first + count if count else None]
  if not chosen:
    raise UserError(
      f'problems.first={first}, but there are {len(problems)} problems; '
      'lower it'
    )
  return chosen


def told(chain: Chain) -> Chain:
  """A chosen chain as it is written: its tree stands in trees.jsonl.

  Without seconds, which no two runs agree on.
  """
  about = dict(chain.meta['search'])
  del about['tree']
  about['ledger'] = {k: v for k, v in about['ledger'].items() if k != 'seconds'}
  return dataclasses.replace(chain, meta={**chain.meta, 'search': about})


def tree_line(chain: Chain, method: str) -> str:
  """The line of trees.jsonl for a chosen chain."""
  about = chain.meta['search']
  record = {
    'id': chain.meta['problem_id'],
    'problem': chain.problem,
    'truth': chain.meta['truth'],
    'tree': about['tree'],
    'chosen': about['node'],
    'method': method,
  }
  return json.dumps(record, ensure_ascii=False, allow_nan=False) + '\n'


def read_trees(
  workdir: str, problems: Sequence[Problem]
) -> dict[str, dict[str, Any]]:
  """Trees of an earlier search, by the ids of their problems, as dicts.

  Args:
    workdir: of that search; '': there was none.

  Raises:
    UserError: no search with trees of these problems ended there.
  """
  if not workdir:
    return {}
  path = paths.open_path(workdir).expanduser() / TREES
  texts = {each.id: each.text for each in problems}
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
    except (ValueError, LookupError, TypeError, AttributeError):
      raise UserError(
        f'{path}:{number}: is no line of a search; run that one again in an '
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


def check_earlier(config: Mapping[str, Any], asked: Mapping[str, str]) -> None:
  """Finds that the search that is gone on with was as this one.

  Its scores, and what MCTS made of them, are kept: no others may be mixed in.

  Args:
    asked: the names of policy and PRM, by 'policy' and 'prm'.

  Raises:
    UserError: it had another seed, policy, PRM or aggregate, or is not done.
  """
  workdir = config['go_on_from']
  folder = paths.open_path(workdir).expanduser()
  try:
    about = read_results(folder)['manifest']
    theirs = paths.read_json(folder / 'config.json', 'search anew')
    pairs = [
      ('seed', theirs['seed'], config['seed']),
      ('policy', about['policy'], asked['policy']),
    ]
    if 'prm' in about:  # else there are no scores
      ours = config['search']['aggregate']
      pairs.append(('search.aggregate', theirs['search']['aggregate'], ours))
      pairs.append(('prm', about['prm'], asked.get('prm', about['prm'])))
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


def fingerprint(
  problems: Sequence[Problem], trees: Mapping[str, dict[str, Any]]
) -> str:
  """16 hex digits over what is searched, and what was found of it before."""
  alone = problems_lib.fingerprint(problems)
  if not trees:
    return alone
  text = json.dumps([alone, trees], ensure_ascii=False, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def named(policy: Policy, prm: StepScorer | None) -> dict[str, str]:
  """The names of who is asked."""
  return {'policy': policy.name} | ({'prm': prm.name} if prm else {})


def job_of(
  config: Mapping[str, Any],
  wanted: Wanted,
  problems: Sequence[Problem],
  trees: Mapping[str, dict[str, Any]],
  policy: Policy,
  prm: StepScorer | None,
) -> engine.Job:
  """What the engine is to do."""
  method = METHODS[wanted.method]
  asked = named(policy, prm)
  name = ', '.join([wanted.method, *asked.values()])

  def start(index: int) -> Work:
    each = problems[index]
    task = Task(each.id, each.text, each.truth, each.dataset)
    kept = Tree.from_dict(trees[each.id]) if each.id in trees else None
    found = yield from search(
      task, method, *wanted[1:], key='search', name=name, tree=kept
    )
    return found[:1]  # the others stand in its tree

  def counts(items: Mapping[int, Ended]) -> dict[str, Any]:
    found = [ended.chains[0] for ended in items.values() if not ended.failed]
    failed = [ended.failed for ended in items.values() if ended.failed]
    return {'search': search_section(found, failed, seed=config['seed'])}

  def write_trees(workdir: pathlib.Path, items: Mapping[int, Ended]) -> None:
    shown = list(items.values())[: config['trees'] or None]
    lines = (
      tree_line(ended.chains[0], wanted.method)
      for ended in shown
      if not ended.failed
    )
    paths.write_text(workdir / TREES, ''.join(lines))

  return engine.Job(
    name=f'search by {wanted.method}',
    kind='search',
    about={
      'data_fingerprint': fingerprint(problems, trees),
      'method': wanted.method,
      **asked,
    },
    count=len(problems),
    start=start,
    counts=counts,
    models=Models(policy=policy, prm=prm),
    at_once=policies.at_once(config['policy']),
    chains=lambda ended: [told(chain) for chain in ended.chains],
    also=write_trees,
  )


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  wanted = check(config)
  paths.check_local(workdir, 'the workdir of a search job')
  seed, prm = config['seed'], None
  if METHODS[wanted.method].scores:
    prm = step_scorers.open_scorer(config['prm'], config['policy']['solver'])
  policy = policies.open_policy(config['policy'], seed, workdir)
  # Before the workdir is this config's own.
  check_models(wanted.method, policy, prm, wanted.budget)
  problems = read_problems(config['problems'], seed)
  if config['go_on_from']:
    check_earlier(config, named(policy, prm))
  trees = read_trees(config['go_on_from'], problems)
  if trees:
    log(f'{len(trees):,} of {len(problems):,} problems were searched before')
  job = job_of(config, wanted, problems, trees, policy, prm)
  engine.run(job, config, workdir, log)
  processes.first_alone('report', lambda: _report(workdir, log))


def _report(workdir: pathlib.Path, log: Log) -> None:
  """The numbers that a run is judged by, for the console; and the page."""
  document = json.loads((workdir / 'results.json').read_text())
  found = document['results']['search']
  method = document['manifest']['method']
  if found['accuracy'] is not None:
    low, high = found['accuracy']['ci95']
    log(
      f'{method}: {found["accuracy"]["mean"]:.1%} [{low:.1%}, {high:.1%}] of '
      f'{found["problems"]:,} problems right'
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
  log(f'report: {write_report(workdir)}')

"""What are labels without humans worth, on a domain that knows the truth?

    python -m experiments.label_sources.run --workdir /tmp/label_sources

Every source labels chains of the arithmetic domain. A PRM is trained on each
kind of label, with equal chains and with equal tokens sampled, and on chains
that active selection chose; three seeds. Writes results.json and the tables of
README.md beside this file.
"""

import json
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

from experiments import command_line
from experiments.label_sources import tables
from experiments.label_sources.counting import (
  accuracy,
  read_labels,
  written_tokens,
)
from experiments.runner import Runner, slug
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import read_results, write_json

POOL = 16_384  # chains that every source labels, one of each problem
CHAINS = 4_096  # chains that a PRM is trained on, with equal chains
# With equal tokens, every source may sample what rollouts need for this many.
ROLLOUT_CHAINS = 768
# The completer: the solver that wrote the chains, which uses its wrong beliefs
# less often. The second source of the consensus has other wrong beliefs.
COMPLETER = {'use_wrong': 0.3, 'slip': 0.01}
OTHER_SOLVER = 100  # added to the seed
ACTIVE = {'problems': 256, 'samples': 64, 'budgets': (5, 10, 20)}
# Labels -> (the job that makes them; the value above which a step is right, or
# None, as soft labels are no verdicts; the flags of the PRM). Soft labels say
# what the prefix is worth, which has a meaning after an error, too.
VALUES = ('--config.targets.after_first_error=keep',)
ANY = ('--config.targets.hard_above=0.0',)
LABELS = {
  'verifier': ('verifier', 0.0, ()),
  'rollouts, soft': ('rollouts', None, VALUES),
  'rollouts, hard': ('rollouts', 0.5, ('--config.targets.hard_above=0.5',)),
  'rollouts, threshold 0': ('rollouts', 0.0, ANY),
  'rollouts, Beta-Binomial': (
    'rollouts',
    None,
    (
      *VALUES,
      '--config.loss.name=beta_binomial',
      '--config.head.kind=two_class',
    ),
  ),
  'OmegaPRM': ('omega', 0.0, ANY),
  'corruption': ('corruption', 0.0, ()),
  'consensus': ('consensus', 0.0, ANY),
}
# Labels that no PRM is trained on: they show what the completer is worth.
ONLY_COUNTED = {
  'rollouts by another completer, threshold 0': ('other', 0.0, ()),
  'rollouts by the solver itself, threshold 0': ('rollouts_own', 0.0, ()),
  'OmegaPRM by the solver itself': ('omega_own', 0.0, ()),
}


def domain_flags(seed: int, section: str) -> list[str]:
  """Returns the flags of problems and of a solver with a seed."""
  return [
    f'--config.seed={seed}',
    f'--config.{section}.arithmetic.solver_seed={seed}',
  ]


def label_all(
  runner: Runner, seed: int, jobs: Sequence[str]
) -> dict[str, pathlib.Path]:
  """Lets every wanted source label the same chains; returns their workdirs."""
  pool = [
    *domain_flags(seed, 'chains'),
    f'--config.chains.train_problems={POOL}',
  ]

  def completer(solver_seed: int, **changes: float) -> list[str]:
    values = {'solver_seed': solver_seed, **changes}
    return [f'--config.policy.solver.{k}={v}' for k, v in values.items()]

  # At threshold 0 a single rollout that ends right decides.
  one_by_one = '--config.omega.round_size=1'
  better = completer(seed, **COMPLETER)
  sources = {
    'verifier': ('verifier',),
    'corruption': ('corruption', f'--config.corruption.seed={seed}'),
    'rollouts': ('rollouts', *better),
    'omega': ('omega', *better, one_by_one),
    'other': ('rollouts', *completer(seed + OTHER_SOLVER, **COMPLETER)),
    'rollouts_own': ('rollouts', *completer(seed)),
    'omega_own': ('omega', *completer(seed), one_by_one),
  }
  sources = {name: flags for name, flags in sources.items() if name in jobs}
  paths = runner.all(
    runner.main,
    [
      (f'label_math.py:{variant}', f'seed_{seed}/labels_{name}', *pool, *flags)
      for name, (variant, *flags) in sources.items()
    ],
  )
  found = dict(zip(sources, paths, strict=True))
  if 'consensus' not in jobs:
    return found
  found['consensus'] = runner.main(
    'label_math.py:consensus',
    f'seed_{seed}/labels_consensus',
    f'--config.seed={seed}',
    f'--config.chains.workdir={found["rollouts"]}',
    f'--config.agrees_with={found["other"]}',
  )
  return found


def describe_labels(folders: dict[str, pathlib.Path]) -> dict[str, dict]:
  """Returns what each source cost and how often it is right."""
  ledgers = {
    name: json.loads((folder / 'ledger.json').read_text())
    for name, folder in folders.items()
  }
  pool = written_tokens(read_labels(folders['verifier']))
  found = {}
  for name, (job, above, _) in (LABELS | ONLY_COUNTED).items():
    if job not in folders:
      continue
    chains = read_labels(folders[job])
    tokens = pool + ledgers[job]['tokens']
    if job == 'consensus':  # both of its sources labelled all chains
      tokens += ledgers['rollouts']['tokens'] + ledgers['other']['tokens']
    found[name] = {
      'labelled': len(chains),
      'tokens_per_chain': tokens / len(chains),
      'accuracy': None if above is None else accuracy(chains, above),
      'ledger': ledgers[job],
    }
  return found


def train_flags(seed: int, labels: pathlib.Path, chains: int) -> list[str]:
  """Returns the flags of a PRM on the first labelled chains; 0: on all."""
  return [
    *domain_flags(seed, 'data'),
    '--config.orm_baseline=False',
    f'--config.data.labels={labels}',
    f'--config.data.first_labels={chains}',
    '--config.data.test_problems=100',
    '--config.train.steps=600',
    '--config.train.checkpoint_every=600',
  ]


def train_calls(
  seed: int,
  folders: dict[str, pathlib.Path],
  labels: dict[str, dict],
  names: Collection[str],
) -> dict[tuple[str, str], tuple]:
  """Returns the jobs of a PRM for every kind of label and every budget.

  Writes the number of chains of each into `labels`.
  """
  calls = {}
  for name, (job, _, flags) in LABELS.items():
    if name not in names:
      continue
    source, wanted = labels[name], {'equal chains': CHAINS}
    if (rollouts := labels.get('rollouts, hard')) is not None:
      budget = ROLLOUT_CHAINS * rollouts['tokens_per_chain']
      wanted['equal tokens'] = int(budget / source['tokens_per_chain'])
    for kind, count in wanted.items():
      source[kind] = chains = min(count, source['labelled'])
      calls[kind, name] = (
        'prm_math.py',
        f'seed_{seed}/prm_{slug(f"{name}_{kind}")}',
        *train_flags(seed, folders[job], chains),
        *flags,
      )
  return calls


def active_calls(runner: Runner, seed: int) -> dict[tuple[str, int], tuple]:
  """Labels chains by active and by random selection; returns the PRMs' jobs."""
  sampled = runner.main(
    'sample_math.py',
    f'seed_{seed}/samples',
    *domain_flags(seed, 'problems'),
    f'--config.policy.solver.solver_seed={seed}',
    f'--config.problems.train_problems={ACTIVE["problems"]}',
    f'--config.samples={ACTIVE["samples"]}',
  )
  one_each = runner.main(
    'label_math.py:active',
    f'seed_{seed}/active_one_each',
    f'--config.seed={seed}',
    f'--config.chains.workdir={sampled}',
    '--config.active.method=random',
    '--config.active.budget=1',
    f'--config.active.seed={seed}',
  )
  selector = runner.main(
    'prm_math.py',
    f'seed_{seed}/selector',
    *train_flags(seed, one_each, 0),
  )
  pairs = [(m, b) for b in ACTIVE['budgets'] for m in ('active', 'random')]
  labelled = runner.all(
    runner.main,
    [
      (
        'label_math.py:active',
        f'seed_{seed}/active_{method}_{budget}',
        f'--config.seed={seed}',
        f'--config.chains.workdir={sampled}',
        f'--config.prm.path={selector}',
        f'--config.active.method={method}',
        f'--config.active.budget={budget}',
        f'--config.active.seed={seed}',
      )
      for method, budget in pairs
    ],
  )
  return {
    (method, budget): (
      'prm_math.py',
      f'seed_{seed}/prm_active_{method}_{budget}',
      *train_flags(seed, labels, 0),
    )
    for (method, budget), labels in zip(pairs, labelled, strict=True)
  }


def read_run(folder: pathlib.Path) -> dict:
  """Reads what a PRM is judged by from its results.json."""
  document = read_results(folder)
  results = document['results']
  about = {k: v for k, v in document['manifest'].items() if k != 'command'}
  curves = results['best_of_n']
  last = curves['n'].index(max(curves['n']))
  return {
    'best_of_64': {
      name: {'mean': curve['mean'][last], 'ci95': curve['ci95'][last]}
      for name, curve in curves.items()
      if name != 'n'
    },
    'localisation': results['localisation']['arithmetic'],
    'manifest': about,
  }


def render(found: dict[str, Any]) -> str:
  """Makes all tables."""
  return tables.render(found, LABELS, ACTIVE['budgets'])


def run_seed(
  runner: Runner, seed: int, names: Collection[str], active: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Labels and trains with one seed.

  Args:
    names: the kinds of label.
    active: whether to run active selection, too.

  Returns:
    What the labels cost, by their name; what the PRMs measure, by `kind: name`.
  """
  # The cost of the chains themselves is read from the verifier's labels.
  jobs = {'verifier', *((LABELS | ONLY_COUNTED)[name][0] for name in names)}
  if 'consensus' in jobs:
    jobs |= {'rollouts', 'other'}
  folders = label_all(runner, seed, sorted(jobs))
  labels = describe_labels(folders)
  calls = train_calls(seed, folders, labels, names)
  if active:
    calls |= active_calls(runner, seed)
  trained = runner.all(runner.main, list(calls.values()))
  runs = {
    f'{kind}: {name}': read_run(folder)
    for (kind, name), folder in zip(calls, trained, strict=True)
  }
  return labels, runs


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds'
  )
  parser.add_argument(
    '--labels', nargs='+', choices=LABELS, help='only these, without tables'
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  names = args.labels or [*LABELS, *ONLY_COUNTED]
  labels, runs = {}, {}
  for seed in args.seeds:
    labels[str(seed)], runs[str(seed)] = run_seed(
      runner, seed, names, active=not args.labels
    )
  found = command_line.about(args) | {'labels': labels, 'runs': runs}
  if args.labels:  # the tables need all of them
    write_json(args.output / 'results.json', found)
  else:
    command_line.write(args.output, found, render(found))


if __name__ == '__main__':
  main()

"""What labels without humans are worth, on a domain that knows the truth.

    python -m experiments.label_sources.run --workdir /tmp/label_sources

Every source labels chains of the arithmetic domain; a PRM is trained on each
kind of label, with equal chains and with equal tokens sampled, three seeds; and
on chains that active selection chose. What is there already is not made again.
Writes results.json and the tables of README.md beside this file.
"""

import argparse
import json
import pathlib
from collections.abc import Collection, Sequence

from experiments.label_sources import tables
from experiments.label_sources.counting import (
  accuracy,
  read_labels,
  written_tokens,
)
from experiments.runner import Runner
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'python -m experiments.label_sources.run --workdir DIR'
SEEDS = (0, 1, 2)
POOL = 16_384  # chains that every source is given, one a problem
CHAINS = 4_096  # that a PRM is trained on, with equal chains
# With equal tokens: what rollouts need for so many.
ROLLOUT_CHAINS = 768
# Who completes chains for the labels: the solver that wrote them, believing its
# wrong facts less often; for the consensus another one, with other facts.
COMPLETER = {'use_wrong': 0.3, 'slip': 0.01}
OTHER_SOLVER = 100  # added to the seed
ACTIVE = {'problems': 256, 'samples': 64, 'budgets': (5, 10, 20)}
# Labels -> (the job they come from, the value above which a step is right, the
# PRM's flags); None: soft labels are no verdicts. Of a chain's worth labels say
# something after an error, too; of a step they do not.
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
# Labels that no PRM is trained on: to see what the completer is worth.
ONLY_COUNTED = {
  'rollouts by another completer, threshold 0': ('other', 0.0, ()),
  'rollouts by the solver itself, threshold 0': ('rollouts_own', 0.0, ()),
  'OmegaPRM by the solver itself': ('omega_own', 0.0, ()),
}


def domain_flags(seed: int, section: str) -> list[str]:
  return [
    f'--config.seed={seed}',
    f'--config.{section}.arithmetic.solver_seed={seed}',
  ]


def label_all(
  runner: Runner, seed: int, jobs: Sequence[str]
) -> dict[str, pathlib.Path]:
  """The labels of the same chains by every source that is asked for."""
  pool = [
    *domain_flags(seed, 'chains'),
    f'--config.chains.train_problems={POOL}',
  ]

  def completer(solver_seed: int, **changes: float) -> list[str]:
    values = {'solver_seed': solver_seed, **changes}
    return [f'--config.policy.solver.{k}={v}' for k, v in values.items()]

  # A rollout that ends right decides at threshold 0: no more are needed.
  one_by_one = '--config.omega.round_size=1'
  better = completer(seed, **COMPLETER)
  asks = {
    'verifier': ('verifier',),
    'corruption': ('corruption', f'--config.corruption.seed={seed}'),
    'rollouts': ('rollouts', *better),
    'omega': ('omega', *better, one_by_one),
    'other': ('rollouts', *completer(seed + OTHER_SOLVER, **COMPLETER)),
    'rollouts_own': ('rollouts', *completer(seed)),
    'omega_own': ('omega', *completer(seed), one_by_one),
  }
  asks = {name: ask for name, ask in asks.items() if name in jobs}
  paths = runner.all(
    runner.main,
    [
      (f'label_math.py:{variant}', f'seed_{seed}/labels_{name}', *pool, *flags)
      for name, (variant, *flags) in asks.items()
    ],
  )
  found = dict(zip(asks, paths, strict=True))
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
  """What each source took and how often it is right."""
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
    if job == 'consensus':  # both of its sources were asked about all chains
      tokens += ledgers['rollouts']['tokens'] + ledgers['other']['tokens']
    found[name] = {
      'labelled': len(chains),
      'tokens_per_chain': tokens / len(chains),
      'accuracy': None if above is None else accuracy(chains, above),
      'ledger': ledgers[job],
    }
  return found


def train_flags(seed: int, labels: pathlib.Path, chains: int) -> list[str]:
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
  """A PRM for every kind of label and every budget."""
  calls = {}
  for name, (job, _, flags) in LABELS.items():
    if name not in names:
      continue
    has, wanted = labels[name], {'equal chains': CHAINS}
    if (by := labels.get('rollouts, hard')) is not None:
      budget = ROLLOUT_CHAINS * by['tokens_per_chain']
      wanted['equal tokens'] = int(budget / has['tokens_per_chain'])
    for kind, many in wanted.items():
      has[kind] = chains = min(many, has['labelled'])
      slug = f'{name}_{kind}'.replace(', ', '_').replace(' ', '_')
      calls[kind, name] = (
        'prm_math.py',
        f'seed_{seed}/prm_{slug}',
        *train_flags(seed, folders[job], chains),
        *flags,
      )
  return calls


def active_calls(runner: Runner, seed: int) -> dict[tuple[str, int], tuple]:
  """PRMs on the most convincing wrong answers, and on as many others."""
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
  asked = [(m, b) for b in ACTIVE['budgets'] for m in ('active', 'random')]
  labelled = runner.all(
    runner.main,
    [
      (
        'label_math.py:active',
        f'seed_{seed}/active_{method}_{budget}',
        f'--config.seed={seed}',
        f'--config.chains.workdir={sampled}',
        f'--config.prm={selector}',
        f'--config.active.method={method}',
        f'--config.active.budget={budget}',
        f'--config.active.seed={seed}',
      )
      for method, budget in asked
    ],
  )
  return {
    (method, budget): (
      'prm_math.py',
      f'seed_{seed}/prm_active_{method}_{budget}',
      *train_flags(seed, labels, 0),
    )
    for (method, budget), labels in zip(asked, labelled, strict=True)
  }


def read_run(folder: pathlib.Path) -> dict:
  """What a trained PRM is judged by."""
  document = json.loads((folder / 'results.json').read_text())
  results = document['results']
  about = {k: v for k, v in document['manifest'].items() if k != 'command'}
  curves = results['best_of_n']
  at = curves['n'].index(max(curves['n']))
  return {
    'best_of_64': {
      name: {'mean': curve['mean'][at], 'ci95': curve['ci95'][at]}
      for name, curve in curves.items()
      if name != 'n'
    },
    'localisation': results['localisation']['arithmetic'],
    'manifest': about,
  }


def render(found: dict) -> str:
  """All tables, Markdown."""
  return tables.render(found, LABELS, ACTIVE['budgets'])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=2, help='side by side')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument(
    '--labels', nargs='+', choices=LABELS, help='only these, without tables'
  )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  runner = Runner(args.workdir, args.jobs)
  every = LABELS | ONLY_COUNTED
  # What the pool's chains took is read from the verifier's labels.
  jobs = {'verifier', *(every[name][0] for name in args.labels or every)}
  if 'consensus' in jobs:
    jobs |= {'rollouts', 'other'}

  labels, runs = {}, {}
  for seed in args.seeds:
    folders = label_all(runner, seed, sorted(jobs))
    labels[seed] = describe_labels(folders)
    calls = train_calls(seed, folders, labels[seed], args.labels or LABELS)
    if not args.labels:
      calls |= active_calls(runner, seed)
    trained = runner.all(runner.main, list(calls.values()))
    runs[seed] = {
      f'{kind}: {name}': read_run(folder)
      for (kind, name), folder in zip(calls, trained, strict=True)
    }
  found = {
    'command': COMMAND,
    'git_commit': manifest.git_commit(),
    'seeds': list(args.seeds),
    'labels': {str(seed): value for seed, value in labels.items()},
    'runs': {str(seed): value for seed, value in runs.items()},
  }
  manifest.write_json(args.output / 'results.json', found)
  if args.labels:  # no tables without the others
    return
  text = render(found)
  readme = args.output / 'README.md'
  if readme.exists():
    readme_table.fill(readme, text)
  print(text)


if __name__ == '__main__':
  main()

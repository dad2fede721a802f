"""Traps of choosing among the samples of a problem.

Each function measures one trap and returns what results.json keeps.
"""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.out_of_distribution import run as out_of_distribution
from experiments.runner import ROOT
from prm_jax.data import domain_splits
from prm_jax.data.chains import Chain
from prm_jax.data.config import DrawConfig
from prm_jax.data.domains import arithmetic
from prm_jax.data.readers import read_chains
from prm_jax.data.segments import split_chain
from prm_jax.evals import best_of_n, nulls, suite
from prm_jax.evals.prm import some_problems
from prm_jax.evals.ranking import Ranked, ranking

RESAMPLES = 2000
OPERATIONS = 5


class Pool(NamedTuple):
  """Holds Q problems with N samples each.

  Attributes:
    chains: the samples in groups, [Q][N].
    texts: [Q, N] ids of equal texts.
    right: [Q, N] bool.
  """

  chains: Sequence[Sequence[Chain]]
  texts: np.ndarray
  right: np.ndarray


def make_pool(chains: Sequence[Chain]) -> Pool:
  """Groups chains with outcomes by their problem."""
  groups = np.array(suite.groups_of_equal_size(chains))
  ids: dict[tuple, int] = {}
  texts = np.array(
    [ids.setdefault((c.problem, c.steps, c.answer), len(ids)) for c in chains]
  )
  right = np.array([bool(chain.outcome) for chain in chains])
  grouped = [[chains[i] for i in group] for group in groups]
  return Pool(grouped, texts[groups], right[groups])


def arithmetic_pool(
  problems: int, samples: int, seed: int, operations: int = OPERATIONS
) -> Pool:
  """Draws the test chains that a PRM of this seed is evaluated on."""
  domain = arithmetic.ArithmeticConfig(operations=operations, solver_seed=seed)
  # The test problems are the same for any number of others.
  draw = DrawConfig(
    train_problems=1, dev_problems=0, test_problems=problems, arithmetic=domain
  )
  splits = domain_splits.drawn_splits('arithmetic', draw, (1, 1, samples), seed)
  return make_pool(splits.evaluations['arithmetic'])


def pool_of_gsm8k(root: pathlib.Path) -> Pool:
  """Reads six models' solutions of each problem."""
  path = root / 'best_of_n/gsm8k_test_pool.jsonl'
  return make_pool(read_chains(path, 'solution_pool')[0])


def read_committed(folder: str) -> Mapping[str, Any]:
  """Reads the committed results of another experiment."""
  path = ROOT / 'experiments' / folder / 'results.json'
  return json.loads(path.read_text())


def check_same(ours: float, theirs: float, what: str) -> None:
  """Stops where a pool is not the one that committed numbers are of."""
  if not np.isclose(ours, theirs, atol=1e-6):
    raise SystemExit(
      f'error: {what}: {100 * ours:.2f}% of the chains drawn here are right, '
      f'of the committed ones {100 * theirs:.2f}%; run that experiment again'
    )


def measure_null() -> dict[str, Any]:
  """Puts the null of best of N beside committed best-of-N curves."""
  runs = read_committed('prm_vs_orm')['results']
  seeds = {}
  for seed, run in runs.items():
    curves = run['best_of_n']
    n, samples = curves['n'], curves['n'][-1]
    pool = arithmetic_pool(400, samples, int(seed))
    random = float(pool.right.mean())
    check_same(random, curves['random']['mean'][0], f'prm_vs_orm, seed {seed}')
    found = nulls.random_per_text_curve(pool.texts, pool.right, n)
    own = best_of_n.curves({'null': found}, n, int(seed), RESAMPLES)
    seeds[seed] = {
      'distinct_texts': float(np.mean([len(set(row)) for row in pool.texts])),
      'random': random,
      'random_per_text': own['null'],
      'orm': {'mean': curves['orm']['mean']},
      'prm': {'mean': curves['prm_min']['mean']},
    }
  return {
    'n': n,
    'seeds': seeds,
    'modulo_9': _modulo_9(),
    'chain_length': _chain_length(),
  }


def _modulo_9() -> dict[str, Any]:
  """Puts the null beside a PRM's best of 16 where it knows other facts."""
  arm = 'modulo 9'
  runs = read_committed('out_of_distribution')['runs'][arm]
  found = {}
  for seed, measured in runs.items():
    chains = out_of_distribution.sample(
      out_of_distribution.ARMS[arm], int(seed)
    )
    pool = make_pool(chains)
    random = float(pool.right.mean())
    theirs = measured[out_of_distribution.RIGHT]['value']
    check_same(random, theirs, f'out_of_distribution, seed {seed}')
    found[seed] = _against_null(
      pool, measured[out_of_distribution.BY_PRM]['value']
    )
  return found


def _chain_length() -> dict[str, Any]:
  """Puts the null beside best of 16 for chains of each length."""
  found: dict[str, Any] = {}
  for arm, seeds in read_committed('chain_length')['runs'].items():
    operations = int(arm.split()[0])
    found[arm] = {}
    for seed, measured in seeds.items():
      pool = arithmetic_pool(200, 16, int(seed), operations)
      prm, orm = (
        measured[name]['value']
        for name in ('best of 16, PRM', 'best of 16, ORM')
      )
      found[arm][seed] = _against_null(pool, prm) | {'orm': orm}
  return found


def _against_null(pool: Pool, prm: float) -> dict[str, float]:
  """Returns a committed accuracy beside the null at all samples."""
  samples = pool.right.shape[1]
  curve = nulls.random_per_text_curve(pool.texts, pool.right, [samples])
  return {
    'random': float(pool.right.mean()),
    'random_per_text': float(curve.mean()),
    'prm': prm,
  }


# Choices by form alone: scores of a solution, from the lengths of its steps.
FORMS: dict[str, Callable[[Sequence[int]], float]] = {
  'fewest steps': lambda lengths: -len(lengths),
  'most steps': len,
  'shortest longest step': lambda lengths: -max(lengths),
  'longest longest step': max,
}


def measure_segmentation(root: pathlib.Path) -> dict[str, Any]:
  """Chooses among the solutions of a real pool by their form alone."""
  pool = pool_of_gsm8k(root)
  few = some_problems([c for group in pool.chains for c in group], 250)
  flat = [
    (chain, right)
    for group, row in zip(pool.chains, pool.right, strict=True)
    for chain, right in zip(group, row, strict=True)
  ]
  one_line = np.array([len(chain.steps) == 1 for chain, _ in flat])
  right = np.array([right for _, right in flat])
  models = {}
  for model in dict.fromkeys(chain.meta['generator'] for chain, _ in flat):
    own = np.array([chain.meta['generator'] == model for chain, _ in flat])
    models[model] = {
      'right': float(right[own].mean()),
      'one_line': float(one_line[own].mean()),
    }
  # Only models that write several lines: form no longer tells the model.
  several = [m for m, found in models.items() if found['one_line'] < 0.5]
  rest = make_pool(
    [chain for chain, _ in flat if chain.meta['generator'] in several]
  )
  return {
    'one_line': float(one_line.mean()),
    'right_of_one_line': float(right[one_line].mean()),
    'right_of_others': float(right[~one_line].mean()),
    'right_of_250_problems': float(np.mean([c.outcome for c in few])),
    'models': models,
    'cut': {
      'at lines': _by_form(pool, 'given'),
      'at sentences': _by_form(pool, 'sentences'),
      'at lines, models of several lines': _by_form(rest, 'given'),
    },
  }


def _by_form(pool: Pool, how: str) -> dict[str, Any]:
  """Returns the accuracy of each choice by form, and its lead over the null."""
  lengths = [
    [list(map(len, split_chain(chain, how).steps)) for chain in group]
    for group in pool.chains
  ]
  n = [pool.right.shape[1]]
  methods = {
    name: best_of_n.best_of_n_curve(
      np.array([[float(form(row)) for row in group] for group in lengths]),
      pool.right,
      n,
    )
    for name, form in FORMS.items()
  }
  methods['random pick'] = best_of_n.random_curve(pool.right, n)
  methods['random score for each text'] = nulls.random_per_text_curve(
    pool.texts, pool.right, n
  )
  null = 'random score for each text'
  found = best_of_n.curves(methods, n, 0, RESAMPLES, null)
  return {name: _last(found[name]) for name in methods}


def _last(curve: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the last point of a curve, and of its lead over the null."""
  found = {'mean': curve['mean'][-1], 'ci95': curve['ci95'][-1]}
  if 'over_null' in curve:
    found['over_null'] = _last(curve['over_null'])
  return found


def measure_ranking(
  root: pathlib.Path, runs: Mapping[str, Any]
) -> dict[str, Any]:
  """Compares the AUC over all problems with that within problems.

  Args:
    runs: results of trained PRMs and ORMs, by seed.
  """
  pools = {
    'arithmetic': arithmetic_pool(400, 64, 1),
    'gsm8k': pool_of_gsm8k(root),
  }
  difficulty = {}
  for name, pool in pools.items():
    solved = np.repeat(
      pool.right.mean(1, keepdims=True), pool.right.shape[1], 1
    )
    problems = np.repeat(np.arange(len(solved))[:, None], solved.shape[1], 1)
    items = Ranked(solved.ravel(), pool.right.ravel(), problems.ravel())
    difficulty[name] = ranking(items, 0, RESAMPLES)
  return {
    'difficulty': difficulty,
    'trained': {
      seed: {
        name: run['ranking'][key]
        for name, key in (('prm', 'prm_min'), ('orm', 'orm'))
      }
      for seed, run in runs.items()
    },
  }


PROBLEMS, SAMPLES, SETS = 50, 16, 1000
Z95 = 1.959964


def measure_intervals() -> dict[str, Any]:
  """Counts how often intervals over chains, and over problems, hold the truth.

  Test sets are drawn again and again; the accuracy of a random sample is known
  exactly for each problem. Then the seeds of a committed run are put beside the
  interval that it was given.
  """
  domain = arithmetic.ArithmeticConfig(operations=OPERATIONS)
  problems = arithmetic.sample_problems(domain, PROBLEMS * SETS, 7)
  transitions = arithmetic.make_solver(domain)
  values = arithmetic.prefix_values(transitions, problems, domain.modulus)
  of_problem = values[np.arange(len(values)), 0, problems.start]
  truth = float(of_problem.mean())
  rng = np.random.default_rng(7)
  right = rng.random((SETS, PROBLEMS, SAMPLES)) < of_problem.reshape(
    SETS, PROBLEMS, 1
  )
  means = right.mean((1, 2))
  halves = {
    'chains': Z95 * np.sqrt(means * (1 - means) / (PROBLEMS * SAMPLES - 1)),
    'problems': Z95 * right.mean(2).std(1, ddof=1) / np.sqrt(PROBLEMS),
  }
  return {
    'truth': truth,
    'problems': PROBLEMS,
    'samples': SAMPLES,
    'sets': SETS,
    'over': {
      name: {
        'half_width': float(half.mean()),
        'covered': float((np.abs(means - truth) <= half).mean()),
        'shown': [
          [float(m), float(h)]
          for m, h in zip(means[:25], half[:25], strict=True)
        ],
      }
      for name, half in halves.items()
    },
    'seeds': _seeds_of_rl(),
  }


def _seeds_of_rl() -> dict[str, Any]:
  """Puts the seeds of hacked RL runs beside their interval over problems.

  The runs are of the commit that rl_seeds.json names; rl_process_vs_outcome has
  other arms now.
  """
  path = pathlib.Path(__file__).with_name('rl_seeds.json')
  arms = json.loads(path.read_text())['arms']
  found = {}
  for name in ('PRM, sum', 'PRM, min form'):
    seeds, accuracy = arms[name]['seeds_end'], arms[name]['accuracy']
    found[name] = {
      'seeds': seeds,
      'mean': accuracy['mean'][-1],
      'over_problems': [accuracy['low'][-1], accuracy['high'][-1]],
    }
  return found

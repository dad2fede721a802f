"""Scores steps by a backbone that stays as it is: rules, and linear heads.

    features of every step (`states`) -> rules without training
    features of training steps -> `heads.fit` for each seed -> step scores

A head is fitted in a second, once the chains were read. Each seed draws the
training problems.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.smollm2_prm import heads, states
from experiments.smollm2_prm.judging import REFERENCE, Part, Scores
from prm_jax.data.chains import Chain
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.evals import trivial

Features = Sequence[np.ndarray]  # [R, D + 3] of each chain, of its read steps
DIGITS = list(trivial.FEATURES).index('digits')  # column of `of_text`
SHARE = 0.8  # of the training problems, drawn by a seed
HEADS = {
  'likelihood_head': 'likelihood, length, digits and place of the step',
  'state_head': 'the hidden state at the end of the step',
  'both_head': 'both',
}


def untrained_scores(
  parts: Mapping[str, Part], features: Mapping[str, Features]
) -> dict[str, list[Scores]]:
  """Returns the rows that need no training, each with one run."""
  columns = {
    REFERENCE: 'digits',
    'mean_likelihood': 'mean',
    'minimum_likelihood': 'minimum',
  }
  scores: dict[str, list[Scores]] = {
    row: [
      {name: [by_rule(x, rule) for x in own] for name, own in features.items()}
    ]
    for row, rule in columns.items()
  }
  scores['digit_count'] = [
    {
      name: [
        -of_text(*pair)[:, DIGITS]
        for pair in zip(part.chains, features[name], strict=True)
      ]
      for name, part in parts.items()
    }
  ]
  return scores


def by_rule(own: np.ndarray, rule: str) -> np.ndarray:  # [R, D + 3] -> [R]
  """Returns a step score of `states.RULES`."""
  return own[:, states.RULES.index(rule) - len(states.RULES)]


def of_text(chain: Chain, own: np.ndarray) -> np.ndarray:  # [R, 3]
  """Returns length, digits and place of the steps that were read."""
  found = [
    [feature(step, i) for feature in trivial.FEATURES.values()]
    for i, step in enumerate(chain.steps[: len(own)])
  ]
  return np.array(found).reshape(len(own), len(trivial.FEATURES))


def inputs_of(head: str, chain: Chain, own: np.ndarray) -> np.ndarray:
  """Returns what a head reads of a chain's read steps: [R, F]."""
  rules = len(states.RULES)
  shallow = np.hstack([own[:, -rules:], of_text(chain, own)])
  return {
    'likelihood_head': shallow,
    'state_head': own[:, :-rules],
    'both_head': np.hstack([own[:, :-rules], shallow]),
  }[head]


def head_scores(
  train: tuple[Sequence[Chain], Features],
  parts: Mapping[str, Part],
  features: Mapping[str, Features],
  targets: TargetConfig,
  seed: int,
) -> dict[str, Scores]:
  """Fits the heads of a seed and scores all sets: row -> `Scores`."""
  kept = drawn_problems(train[0], seed)
  pairs = [
    (chain, own)
    for chain, own in zip(*train, strict=True)
    if chain.problem in kept and len(own)
  ]
  known = [step_targets(chain, len(own), targets) for chain, own in pairs]
  learned = np.concatenate([it.weights > 0 for it in known])
  values = np.concatenate([it.values for it in known])[learned]
  scores: dict[str, Scores] = {}
  for row in HEADS:
    inputs = np.concatenate([inputs_of(row, *pair) for pair in pairs])
    head = heads.fit(inputs[learned], values, heads.DECAY)
    scores[row] = {
      name: [
        head.score(inputs_of(row, *pair))
        for pair in zip(part.chains, features[name], strict=True)
      ]
      for name, part in parts.items()
    }
  return scores


def drawn_problems(chains: Sequence[Chain], seed: int) -> set[str]:
  """Draws the training problems of a seed."""
  problems = sorted({chain.problem for chain in chains})
  order = np.random.default_rng(seed).permutation(len(problems))
  return {problems[i] for i in order[: round(SHARE * len(problems))]}

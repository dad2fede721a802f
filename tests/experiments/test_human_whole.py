"""The PRM of human labels on chains that it reads whole."""

import numpy as np

from experiments.human_labels import whole
from prm_jax.data.chains import Chain, StepLabel


def labelled(problem: str, values: tuple[int, ...]) -> Chain:
  steps = tuple(f'step {i}' + ' long' * (1 - v) for i, v in enumerate(values))
  return Chain(
    problem, steps, labels=tuple(StepLabel(float(v)) for v in values)
  )


def test_what_was_cut_counts_only_among_all():
  chains = [
    labelled(f'{i}?', values)
    for i, values in enumerate([(1, 1), (1, 0), (1, 1), (1, 0)])
  ]
  scores = [np.array([0.9, 0.9 if i % 2 == 0 else 0.1]) for i in range(4)]
  dev = whole.Scored(chains, scores)
  cut = whole.Scored(chains, [*scores[:3], scores[3][:1]])
  found = whole.judge({'dev': dev, 'math': cut}, 0)
  every, read = found['math, all'], found['math, whole']
  # One of two errors is not read.
  assert every[whole.PRM][whole.F1]['value'] == 2 * 0.5 / 1.5
  assert read[whole.PRM][whole.F1]['value'] == 1
  assert every[whole.UNREAD] == {'chains': 4, 'of_chains': 4, 'steps': 1}
  assert read[whole.UNREAD] == {'chains': 3, 'of_chains': 4, 'steps': 0}
  # The wrong step is the longest one: length alone finds it.
  assert read['length of the step'][whole.F1]['value'] == 1
  assert read['length of the step'][whole.AUC]['value'] == 1
  text = whole.render({'runs': {'0': found}})
  assert '- math, solutions read whole: 3 of 4 solutions, 0 steps' in text

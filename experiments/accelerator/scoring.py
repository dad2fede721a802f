"""Our side of scoring: best-of-N of one problem, and chains that grow.

    text -> Scorer.best_of_n, or TreeScorer after each step -> step scores

Every repetition scores new texts, so that nothing is known from before.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.accelerator import cases, shapes
from experiments.accelerator.shapes import Candidates, Scoring, Shape
from prm_jax import Scorer, TreeScorer
from prm_jax.data.encoding import make_format
from prm_jax.inference import protocols
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.training.train_state import make_params

HEAD = HeadConfig('two_class')


def make_scorer(case: Scoring) -> Scorer:
  """Makes a PRM with random bfloat16 weights."""
  model = TransformerConfig(**case.shape, dtype='bfloat16')
  fmt = make_format('bytes', case.prompt + case.most * case.step)
  mesh = flat_mesh(jax.devices()[:1])
  return Scorer(make_weights(case.shape), model, HEAD, fmt, mesh)


def make_weights(shape: Shape) -> Any:
  """Makes random weights, the backbone's in bfloat16."""
  model = TransformerConfig(**shape)

  def make(key: jax.Array) -> Any:
    params = make_params(key, model, HEAD)
    backbone = jax.tree.map(
      lambda x: x.astype(jnp.bfloat16), params['backbone']
    )
    return params | {'backbone': backbone}

  return jax.jit(make)(jax.random.key(0))


def make_call(
  case: Scoring, scorer: Scorer
) -> Callable[[Candidates], list[np.ndarray]]:
  """Returns a function that scores all candidates, with an empty cache."""
  if not case.growing:
    return lambda drawn: scorer.best_of_n(drawn.problem, drawn.chains)[2]
  trees = TreeScorer(scorer, rows=2 * case.candidates)

  def grow(drawn: Candidates) -> list[np.ndarray]:
    trees.forget()
    for chains in case.rounds(drawn):
      answers = trees.score(
        [protocols.Scoring(drawn.problem, chain) for chain in chains]
      )
    return [np.array(answer[0].scores) for answer in answers]

  return grow


def measure(case: Scoring) -> dict[str, Any]:
  """Measures candidates per second; a growing chain counts after each step."""
  call = make_call(case, make_scorer(case))
  times = []
  for seed in range(case.repeats + 1):
    drawn = case.draw(seed)
    began = time.perf_counter()
    scores = call(drawn)
    times.append(time.perf_counter() - began)
    # A model that overflows would be fast, and wrong.
    assert all(np.isfinite(each).all() for each in scores)
  first, *seconds = times
  count = sum(map(len, case.rounds(drawn)))
  typical = statistics.median(seconds)
  return {
    'candidates_per_second': count / typical,
    'seconds': seconds,
    'compile_seconds': max(0.0, first - typical),
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.scoring)

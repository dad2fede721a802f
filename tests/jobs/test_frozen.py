"""Heads on a frozen backbone: the sets on which they are judged."""

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.datasets import Dataset
from prm_jax.evals.prm import PrmEvaluation
from prm_jax.inference.features import Features
from prm_jax.inference.loading import ModelDescription
from prm_jax.jobs import frozen
from prm_jax.jobs.settings.shared import ModelConfig
from prm_jax.jobs.settings.training import FrozenConfig, PrmSettings
from prm_jax.jobs.training import Model, TrainingJob
from prm_jax.models import HeadConfig, LoraConfig
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.objective import LossConfig
from tests.shared.tiny_scorer import FORMAT, MESH, MODEL, the_scorer

SETTINGS = PrmSettings(
  model=ModelConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=16),
  orm_baseline=False,
  frozen=FrozenConfig(heads=('likelihood',), seeds=1),
  loss=LossConfig(lm_weight=0.0),
  evaluation=PrmEvaluation(best_of_n='', resamples=20),
)


def made(name, *errors, problem=''):
  """Chains of two steps; an error of None makes one without labels."""
  return [
    Chain(
      f'{name} {i}{problem}',
      ('one', 'two'),
      labels=()
      if error is None
      else tuple(StepLabel(float(step != error)) for step in range(2)),
    )
    for i, error in enumerate(errors)
  ]


def judged_heads(tmp_path, evaluations):
  """Fits a head on a random backbone; returns set -> its numbers."""
  both = 1, -1, 0, -1
  dataset = Dataset(
    made('train', *both), made('dev', *both), evaluations, '', tmp_path, False
  )
  head = HeadConfig('logit')
  described = ModelDescription(MODEL, head, LoraConfig(), FORMAT)
  model = Model(described, None)
  job = TrainingJob(SETTINGS, model, MESH, None, dataset)
  found = frozen.fit(job, Workdir(tmp_path, {}), print).results['heads']
  return {name: by_head['likelihood'] for name, by_head in found.items()}


def test_sets_without_first_errors_to_find_are_left_out(tmp_path):
  found = judged_heads(
    tmp_path,
    {
      'errors alone': made('a', 1, 0, 1),
      'no errors': made('b', -1, -1),
      'without labels': made('c', None),
      'beyond the window': made('d', 1, -1, problem='?' * 200),
      'both': made('e', 1, -1),
    },
  )
  assert found.keys() == {'dev', 'both'}


def test_chains_without_labels_are_no_chains_without_an_error(tmp_path):
  chains = made('a', 1, -1, 0)
  found = judged_heads(
    tmp_path, {'some': [*chains, *made('b', *[None] * 9)], 'all': chains}
  )
  assert found['some'] == found['all']


def test_problems_are_numbered_in_the_order_of_their_texts(tmp_path):
  """Each seed draws some; a text per step would have the longest one's size."""
  scorer = the_scorer()
  chains = [
    *made('b', 1, -1, 0),
    *made('c', -1, problem='?' * 9000),  # beyond the window
    *made('a', 0, 1),
    *made('b', 0),
  ]
  features = Features(FORMAT, MODEL.d_model, tmp_path)
  features.read(chains, lambda: scorer, print)
  data, problems = frozen.step_data(chains, features, SETTINGS)
  assert problems.dtype == np.int64
  texts = [c.problem for c in chains if len(c.problem) < 9000 for _ in c.steps]
  assert len(problems) == len(data.weights) == len(texts)
  _, numbers = np.unique(texts, return_inverse=True)
  np.testing.assert_array_equal(problems, numbers)

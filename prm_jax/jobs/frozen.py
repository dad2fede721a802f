"""Fits heads on a backbone that stays as it is: part of the PRM job.

    chains -> features, once (inference/features.py) -> heads, in minutes

The backbone reads training, dev and evaluation chains once; the features stay
in the workdir, or in a folder that several runs share. Then every head is
fitted for each seed, and judged on dev and on all evaluations. The first head,
fitted on all chains that were read, becomes the model of the run, which
`prm_jax.load` opens like any other.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.data.census import take_census
from prm_jax.data.chains import Chain, evenly_spaced
from prm_jax.data.segments import score_pieces, split_chain
from prm_jax.data.targets import step_targets
from prm_jax.evals import scorers
from prm_jax.evals.dev_metrics import dev_metrics
from prm_jax.evals.prm import PrmEvaluation, Scoring, some_problems
from prm_jax.evals.scorers import DEV
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.loading import write_description
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs.settings.training import FROZEN_HEADS, PrmSettings
from prm_jax.jobs.training import TrainingJob, batch_config, check_counts
from prm_jax.models import HeadConfig, init_head, init_params
from prm_jax.runtime import paths
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.seals import go_back_to_whole
from prm_jax.runtime.sharding import shardings
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.head_fit import StepData, fit_head
from prm_jax.training.train_state import TrainState, to_param_dtype

Log = Callable[[str], None]

UNTRAINED = 'untrained'  # the rule that a head with likelihood starts as


class Fitted(NamedTuple):
  """Holds the model of the run, and what all heads are worth.

  Attributes:
    score: scores chains that were read, by the model of the run.
    results: sections of results.json.
  """

  score: Scoring
  results: dict[str, Any]


def train_chains(opened: TrainingJob) -> Sequence[Chain]:
  """Returns the training chains that are read."""
  return evenly_spaced(opened.dataset.train, opened.settings.frozen.chains)


def features_folder(settings: PrmSettings, workdir: paths.Path) -> paths.Path:
  """Returns the folder that keeps what the backbone reads."""
  kept = settings.frozen.features
  return paths.open_path(kept) if kept else workdir / 'features'


def check(opened: TrainingJob, workdir: Workdir, log: Log) -> None:
  """Checks before the backbone reads that heads can be fitted.

  Raises:
    UserError: there are several processes, or no labelled step fits.
  """
  if jax.process_count() > 1:
    raise UserError(
      'config.frozen.heads: works in one process, which may have many devices; '
      'start a single one, or train the whole model with frozen.heads=()'
    )
  workdir.check_local('a job with frozen.heads')
  paths.check_local(
    features_folder(opened.settings, workdir.path), 'a folder of features'
  )
  if opened.model.base is None:
    log(
      "WARNING: config.base='': the backbone is random, so these numbers mean "
      'nothing; set config.base'
    )
  settings, train = opened.settings, train_chains(opened)
  check_counts(settings.loss, train)
  fmt = opened.model.described.format
  # Chains are read one by one, so a row is as long as the window.
  rows = dataclasses.replace(
    batch_config(settings),
    row_length=fmt.max_length,
    max_steps_per_row=fmt.max_length,
    trees=False,
  )
  counted = take_census(train, fmt, settings.targets, rows).summary()
  total = len(opened.dataset.train)
  log(f'train: {len(train):,} of {total:,} chains are read: {counted}')


def fit(opened: TrainingJob, workdir: Workdir, log: Log) -> Fitted:
  """Reads what is not read yet, fits all heads, and saves the first."""
  settings, described = opened.settings, opened.model.described
  dataset, evaluation = opened.dataset, settings.evaluation
  train = train_chains(opened)
  sets = {DEV: dataset.dev} | {
    name: some_problems(chains, evaluation.max_problems)
    for name, chains in dataset.evaluations.items()
  }
  features = Features(
    described.format,
    described.model.d_model,
    features_folder(settings, workdir.path),
  )

  @functools.cache
  def open_backbone() -> Scorer:
    params = {'backbone': _load_backbone(opened)}
    model, head, fmt = described.model, described.head, described.format
    return Scorer(params, model, head, fmt, opened.mesh)

  for name, chains in (('train', train), *sets.items()):
    how = 'given' if name == 'train' else settings.data.segments
    features.read(
      [split_chain(chain, how) for chain in chains],
      open_backbone,
      lambda text, name=name: log(f'{name}: {text}'),
    )
  data, problems = step_data(train, features, settings)
  log(f'fitting heads on {int((data.weights > 0).sum()):,} labelled steps')
  name, *_ = settings.frozen.heads
  params, head = fit_named(name, data, settings, 0)
  # Another run may have filled a shared folder.
  if settings.frozen.features or not (workdir / 'checkpoints').exists():
    features.claim(open_backbone())
  _save(opened, workdir, open_backbone, params, head, log)
  score = score_pieces(
    make_scoring(features, params, head),
    settings.data.segments,
    last=settings.targets.supervision == 'outcome',
  )
  metrics = dev_metrics(dataset.dev, score(dataset.dev), settings.targets)
  log(f'{name}: ' + '  '.join(f'{k} {v:.4f}' for k, v in metrics.items()))
  if settings.targets.supervision == 'outcome':
    return Fitted(score, {})  # it names no first error
  judged = _judge_heads(data, problems, features, sets, settings)
  return Fitted(score, {'heads': judged})


def step_data(
  chains: Sequence[Chain], features: Features, settings: PrmSettings
) -> tuple[StepData, np.ndarray]:
  """Joins the steps of chains.

  Returns:
    The steps, and the number of each one's problem: [S] int64. Problems are
    numbered in the order of their texts.
  """
  columns: list[tuple] = []
  for chain in chains:
    own = features.of(chain.problem, chain.steps)
    known = step_targets(chain, len(own.states), settings.targets)
    columns.append((*own, known.values, known.weights, known.trials))
  joined = (
    np.concatenate(x).astype(np.float32) for x in zip(*columns, strict=True)
  )
  data = StepData(*joined)
  texts = sorted({chain.problem for chain in chains})
  numbers = {text: number for number, text in enumerate(texts)}
  of_chains = np.array([numbers[chain.problem] for chain in chains], np.int64)
  steps = [len(states) for states, *_ in columns]
  return data, np.repeat(of_chains, steps)


def fit_named(
  name: str, data: StepData, settings: PrmSettings, seed: int
) -> tuple[Any, HeadConfig]:
  """Fits a head of FROZEN_HEADS; returns its parameters and its kind."""
  state, likelihood, hidden = FROZEN_HEADS[name]
  head = HeadConfig(settings.head.kind, hidden, likelihood)
  key = jax.random.fold_in(jax.random.key(settings.seed), seed)
  decay = settings.frozen.decay
  return fit_head(key, data, head, state, settings.loss.name, decay), head


def fit_seeds(
  name: str, data: StepData, problems: np.ndarray, settings: PrmSettings
) -> list[tuple[Any, HeadConfig]]:
  """Fits a head for each seed, on the problems that the seed draws.

  Args:
    problems: [S], as `step_data` returns it.
  """
  frozen = settings.frozen
  share = frozen.share if frozen.seeds > 1 else 1.0
  different, ids = np.unique(problems, return_inverse=True)
  count = max(1, round(share * len(different)))
  fits = []
  for seed in range(frozen.seeds):
    order = np.random.default_rng(seed).permutation(len(different))
    weights = data.weights * np.isin(ids, order[:count])
    drawn = data._replace(weights=weights.astype(np.float32))
    fits.append(fit_named(name, drawn, settings, seed))
  return fits


def _judge_heads(
  data: StepData,
  problems: np.ndarray,
  features: Features,
  sets: dict[str, Sequence[Chain]],
  settings: PrmSettings,
) -> dict[str, Any]:
  """Measures every head on every set with labels, beside the untrained rule."""
  evaluation: PrmEvaluation = settings.evaluation

  def scoring(params: Any, head: HeadConfig) -> Scoring:
    segments = settings.data.segments
    return score_pieces(make_scoring(features, params, head), segments)

  width = data.states.shape[1]
  rule = HeadConfig(settings.head.kind, likelihood=True)
  untrained = init_head(jax.random.key(0), width, rule)
  parts = _parts_to_judge(sets, scoring(untrained, rule))

  def judge(params: Any, head: HeadConfig) -> dict[str, scorers.Judged]:
    score = scoring(params, head)
    found = {name: score(part.chains) for name, part in parts.items()}
    return scorers.judge(found, parts, evaluation.wrong_share)

  judged = {UNTRAINED: [judge(untrained, rule)]}
  for name in settings.frozen.heads:
    fits = fit_seeds(name, data, problems, settings)
    judged[name] = [judge(*each) for each in fits]
  return scorers.compare(
    judged, parts, UNTRAINED, settings.seed, evaluation.resamples
  )


def _parts_to_judge(
  sets: Mapping[str, Sequence[Chain]], score: Scoring
) -> dict[str, scorers.Part]:
  """Returns the labelled chains of the sets in which first errors are judged.

  Of these sets some chains have an error and some have none, and a step was
  read. Dev is always one of them: it was checked before.
  """
  parts = {}
  for name, chains in sets.items():
    part = scorers.make_part([chain for chain in chains if chain.labels])
    both = 0 < (part.first >= 0).sum() < len(part.first)
    if both and any(map(len, score(part.chains))):
      parts[name] = part
  return parts


def _load_backbone(opened: TrainingJob) -> Any:
  """Loads the base; without one, makes a random backbone."""
  model = opened.model.described.model
  if opened.model.base is not None:
    return opened.model.base.load(opened.mesh, dtype=model.param_dtype)
  backbone = init_params(jax.random.key(opened.settings.seed), model)
  return jax.device_put(backbone, shardings(backbone, opened.mesh))


def _save(
  opened: TrainingJob,
  workdir: Workdir,
  open_backbone: Callable[[], Scorer],
  params: Any,
  head: HeadConfig,
  log: Log,
) -> None:
  """Writes model.json and a checkpoint of the backbone with a head."""
  described = dataclasses.replace(opened.model.described, head=head)
  paths.make_folder(workdir.path)
  write_description(workdir.path, described)
  go_back_to_whole(workdir / 'checkpoints', log)
  checkpoints = Checkpoints(workdir / 'checkpoints', 1, '')
  if checkpoints.latest is None:
    params = open_backbone().params | {'head': params}
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(
      zero + 1,
      to_param_dtype(params, described.model),
      (),
      jax.random.key(opened.settings.seed),
      zero,
      zero,
    )
    checkpoints.save(1, state, None, {})
  checkpoints.close()

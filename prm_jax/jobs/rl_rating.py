"""Opens the models that rate the chains of an RL job: PRM and reference.

    settings -> open_prm -> a PRM, or the first policy of an implicit one
      -> make_rater -> rl/rating.py

`open_prm` runs before anything is written; `make_rater` loads the parameters of
policies.
"""

import dataclasses
from collections.abc import Callable

from jax.sharding import Mesh

from prm_jax.data.critiques.styles import STYLES
from prm_jax.inference import loading
from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.ensemble import LowestOf
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import StepScorer
from prm_jax.jobs.critics import open_generative
from prm_jax.jobs.policies import open_remote_prm
from prm_jax.jobs.rl_start import Start, open_start
from prm_jax.jobs.settings.critics import GenerativeConfig
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.models import TransformerConfig
from prm_jax.rl.implicit import ImplicitPrm, OnlinePrm, make_objective
from prm_jax.rl.rating import ChainPrm, Rater, TextPrm
from prm_jax.rl.views import Reference, View
from prm_jax.runtime import checks, processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.loop import compile_train_step, make_step
from prm_jax.training.optim import make_optimizer, make_schedule
from prm_jax.training.train_state import (
  TrainState,
  abstract_state,
  init_state,
  make_init,
  split_params,
)


def open_prm(
  settings: RlSettings, start: Start, mesh: Mesh, workdir: Workdir
) -> StepScorer | Start | None:
  """Opens the PRM; if it is implicit, the policy from which it starts.

  Args:
    workdir: where the calls of a server are counted.

  Raises:
    UserError: there is none, or it has another tokenizer than the policy.
  """
  prm = settings.prm
  if prm.kind == 'none':
    return None
  if prm.kind == 'exact':
    return ExactScorer(settings.problems.arithmetic, prm.exact)
  if prm.kind == 'endpoint':
    if processes.count() > 1:
      raise UserError(
        'config.prm.kind=endpoint: every process asks for itself, and a server '
        'may answer each differently; run one process, or name the PRM by '
        'prm.path'
      )
    return open_remote_prm(prm.endpoint, workdir)
  if prm.kind == 'generative':
    _check_one_process(prm.generative)
    return open_generative(prm.generative, settings.seed, mesh, workdir)
  if prm.kind == 'implicit':
    return _open_implicit(settings, start)
  with checks.below('config.prm'):
    prm.check_use()
  scorers = [
    ChainScorer(loading.load(path, style=prm.style, mesh=mesh, dtype=prm.dtype))
    for path in (prm.path, *prm.also)
  ]
  return LowestOf(scorers) if prm.also else scorers[0]


def _check_one_process(critic: GenerativeConfig) -> None:
  """Raises UserError where processes could get different scores."""
  runs_code = STYLES[critic.style].runs_code
  if processes.count() > 1 and (critic.critic == 'endpoint' or runs_code):
    raise UserError(
      'config.prm.kind=generative: every process asks for itself, and a server '
      'or the time limits of Python may answer each differently; run one '
      'process, or take a critic that was trained here in another style'
    )


def _open_implicit(settings: RlSettings, start: Start) -> Start:
  """Opens the policy from which an implicit PRM starts."""
  prm, first = settings.prm, start
  if prm.path:
    first = open_start(prm.path, settings)
    ours, theirs = (x.described.format for x in (start, first))
    if (ours.fingerprint(), ours.end) != (theirs.fingerprint(), theirs.end):
      raise UserError(
        f'config.prm.path={prm.path!r}: has another tokenizer, separator or '
        f'end than {start.folder}, whose tokens it is to read; expected a '
        'policy with the same'
      )
  if prm.dtype:
    described = first.described.with_model(
      dtype=prm.dtype, param_dtype=prm.dtype
    )
    first = first._replace(described=described)
  return first


def make_rater(
  settings: RlSettings,
  start: Start,
  prm: StepScorer | Start | None,
  checkpoints: Checkpoints,
  mesh: Mesh,
) -> Rater:
  """Loads parameters; a PRM that learns resumes from its checkpoint."""
  reference, chain_prm = None, None
  if settings.reads_reference:
    kept = settings.reference
    view = View('logprobs', start.described.model, mesh, settings.train.rows)
    backbone = start.load(mesh, kept.param_dtype)
    reference = Reference(backbone, view, kept.offload)
  if isinstance(prm, Start):
    chain_prm = _make_implicit(settings, prm, checkpoints, mesh)
  elif prm is not None:
    chain_prm = TextPrm(prm)
  return Rater(start.described.format, chain_prm, reference)


def make_init_and_step(
  settings: RlSettings, model: TransformerConfig
) -> tuple[Callable[..., TrainState], Callable]:
  """Returns two functions: to build the PRM's first state, and to train it.

  Neither is jitted.
  """
  loop, lora = settings.train, settings.lora
  optim = dataclasses.replace(settings.optim, lr=settings.prm.online.lr)
  optimizer = make_optimizer(optim, loop.updates)
  step = make_step(
    make_objective(model, settings.prm.beta, lora),
    lambda params: split_params(params, None, lora, lm_loss=True),
    model,
    optimizer,
    make_schedule(optim, loop.updates),
    loop.chains // loop.rows,
  )
  return make_init(model, None, optimizer, lora), step


def _make_implicit(
  settings: RlSettings, first: Start, checkpoints: Checkpoints, mesh: Mesh
) -> ChainPrm:
  rows, beta = settings.train.rows, settings.prm.beta
  model, lora = first.described.model, first.described.lora
  if not settings.prm.online.on:
    view = View('logprobs', model, mesh, rows)
    params = {'backbone': first.load(mesh, model.param_dtype)}
    return ImplicitPrm(first.name, params, view, beta)
  init, step = make_init_and_step(settings, model)
  if checkpoints.latest is None:
    state = init_state(init, mesh, settings.seed, first.load_to_train(mesh))
  else:
    state = checkpoints.restore_prm(abstract_state(init, mesh))
  return OnlinePrm(
    first.name,
    state,
    compile_train_step(step, state, mesh),
    View('logprobs', model, mesh, rows, lora),
    beta,
    mesh,
    settings.train.chains // rows,
  )

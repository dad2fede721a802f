"""From an RL job's config to who rates its chains.

A PRM that was trained, exact labels, or an implicit PRM, which starts as a
policy and learns while the job's own does; and the first policy, to compare
with. What is read here is opened before anything is written, its parameters
come later.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import Mesh

from prm_jax.inference.protocols import StepScorer
from prm_jax.jobs import step_scorers
from prm_jax.jobs.settings.rl import Settings, Start, open_start
from prm_jax.models import TransformerConfig
from prm_jax.rl.implicit import ImplicitPrm, OnlinePrm, make_objective
from prm_jax.rl.rating import ChainPrm, Rater, TextPrm
from prm_jax.rl.views import Reference, View
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
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
  config: Mapping[str, Any], settings: Settings, start: Start, mesh: Mesh
) -> StepScorer | Start | None:
  """The PRM that a config describes; of an implicit one, what it is at first.

  Raises:
    UserError: there is none, or it reads other tokens than the policy writes.
  """
  prm = config['prm']
  if settings.implicit is None:
    solver = config['problems']['arithmetic']
    return step_scorers.open_scorer(prm, solver, mesh)
  first = start
  if prm['path']:
    first = open_start(prm['path'], config, settings)
    ours, theirs = (x.described.format for x in (start, first))
    if (ours.fingerprint(), ours.end) != (theirs.fingerprint(), theirs.end):
      raise UserError(
        f'prm.path={prm["path"]} has another tokenizer, separator or end than '
        f'{start.folder}, whose tokens it is to read; name a policy that has '
        'the same'
      )
  if dtype := prm['dtype']:
    described = first.described.with_model(dtype=dtype, param_dtype=dtype)
    first = first._replace(described=described)
  return first


def make_rater(
  settings: Settings,
  start: Start,
  prm: StepScorer | Start | None,
  checkpoints: Checkpoints,
  mesh: Mesh,
  seed: int,
) -> Rater:
  """Reads the parameters; those of a PRM that learns from the checkpoint.

  Args:
    prm: from `open_prm`.
  """
  reference, asked = None, None
  if settings.reads_reference:
    kept = settings.reference
    view = View('logprobs', start.described.model, mesh, settings.loop.rows)
    backbone = start.load(mesh, kept.param_dtype)
    reference = Reference(backbone, view, kept.offload)
  if isinstance(prm, Start):
    asked = _implicit(settings, prm, checkpoints, mesh, seed)
  elif prm is not None:
    asked = TextPrm(prm)
  return Rater(start.described.format, asked, reference)


def make_learning(
  settings: Settings, model: TransformerConfig
) -> tuple[Callable[..., TrainState], Callable]:
  """How the first state of an implicit PRM is made, and its train step."""
  loop, lora = settings.loop, settings.lora
  optim = dataclasses.replace(settings.optim, lr=settings.implicit.lr)
  optimizer = make_optimizer(optim, loop.updates)
  step = make_step(
    make_objective(model, settings.implicit.beta, lora),
    lambda params: split_params(params, None, lora, lm_loss=True),
    model,
    optimizer,
    make_schedule(optim, loop.updates),
    loop.chains // loop.rows,
  )
  return make_init(model, None, optimizer, lora), step


def _implicit(
  settings: Settings,
  first: Start,
  checkpoints: Checkpoints,
  mesh: Mesh,
  seed: int,
) -> ChainPrm:
  loop, beta = settings.loop, settings.implicit.beta
  model, lora = first.described.model, first.described.lora
  if not settings.implicit.online:
    view = View('logprobs', model, mesh, loop.rows)
    params = {'backbone': first.load(mesh, model.param_dtype)}
    return ImplicitPrm(first.name, params, view, beta)
  init, step = make_learning(settings, model)
  if checkpoints.latest is None:
    state = init_state(init, mesh, seed, first.load(mesh))
  else:
    state = checkpoints.restore_prm(abstract_state(init, mesh))
  return OnlinePrm(
    first.name,
    state,
    compile_train_step(step, state, mesh),
    View('logprobs', model, mesh, loop.rows, lora),
    beta,
    mesh,
  )

"""Lowers the programs of an RL job on shapes alone; see programs.py.

A chip holds more than any one program reads: the trained parameters, the copy
that the policy samples with, the PRM and the reference. All of it counts.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.aot.programs import HEAD, read_prm
from prm_jax.aot.sampling import Sampling
from prm_jax.aot.shapes import (
  Plan,
  Program,
  abstract_params,
  bytes_of,
  full_call,
)
from prm_jax.aot.useful_flops import learning, reading
from prm_jax.inference.packing import bucket
from prm_jax.inference.scorer import jit_row_scores
from prm_jax.inference.writer import cache_bucket
from prm_jax.jobs import rl, rl_rating
from prm_jax.jobs.rl_meshes import check_meshes, make_meshes
from prm_jax.jobs.rl_start import open_start
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.models.decoding_params import jit_unstack
from prm_jax.models.dtypes import FAST
from prm_jax.rl.episodes import SMALLEST_STEPS
from prm_jax.rl.findings import Findings
from prm_jax.rl.implicit import Outcomes
from prm_jax.rl.loop import jit_advantages
from prm_jax.rl.objective import Experience, Minibatch
from prm_jax.rl.trees import Trees
from prm_jax.rl.views import jit_view
from prm_jax.runtime import checks
from prm_jax.runtime.sharding import batch_sharding
from prm_jax.training.loop import compile_train_step
from prm_jax.training.train_state import (
  NO_LORA,
  abstract_state,
)


class RlModels(NamedTuple):
  """Describes the models of a job.

  Attributes:
    longest: tokens of the policy's longest chain.
    prm: the PRM's model; None if the PRM is not a model.
    head: the PRM's head; None if the PRM is implicit.
  """

  policy: TransformerConfig
  longest: int
  prm: TransformerConfig | None
  head: HeadConfig | None


def read_models(settings: RlSettings) -> RlModels:
  """Describes the models of the workdirs that the settings name.

  Without workdirs it takes the policy of the `aot` section, and a PRM of the
  same size.

  Raises:
    UserError: neither workdir nor `aot` section describes the policy.
  """
  known, prm = settings.aot.model.given(), settings.prm
  if known and not settings.policy.workdir:
    policy = TransformerConfig(**known | settings.model.given())
    longest = settings.aot.max_length
  else:
    start = open_start(settings.policy.workdir, settings)
    policy = start.described.model
    longest = start.described.format.max_length
  if prm.kind == 'generative':
    checks.fail(
      'config.prm.kind',
      prm.kind,
      'a critic and what it writes are not compiled; expected workdir, '
      'endpoint, exact, implicit or none',
    )
  if prm.kind not in ('workdir', 'implicit'):
    return RlModels(policy, longest, None, None)
  if prm.also:
    checks.fail(
      'config.prm.also', prm.also, 'only one PRM is compiled; expected ()'
    )
  model, head = policy, None if settings.has_implicit_prm else HEAD
  if prm.path:
    described = read_prm(prm.path, settings.has_implicit_prm)
    model, head = described.model, described.head
  # One that learns keeps its own; see `loading.load`.
  dtype = prm.dtype or (FAST if prm.kind == 'workdir' else '')
  if dtype:
    model = dataclasses.replace(model, dtype=dtype, param_dtype=dtype)
  return RlModels(policy, longest, model, head)


class Held(NamedTuple):
  """Holds placed shapes of what stays on the devices; None for what is absent.

  Fields from `written_with` on are on the sampling mesh.
  """

  params: Any  # the parameters that are trained
  rest: Any  # the rest of their train state
  written_with: Any  # the form of the parameters that the policy writes with
  given: Any  # new parameters, held until the policy has finished sampling
  reference: Any
  prm: Any
  prm_rest: Any  # the rest of the train state of a PRM that learns


class AbstractRlJob:
  """Holds an RL job's shapes without values.

  Raises:
    UserError: the settings do not fit the devices.
  """

  def __init__(
    self, settings: RlSettings, devices: Sequence[jax.Device]
  ) -> None:
    self.settings, self.models = settings, read_models(settings)
    self.meshes = make_meshes(settings, devices)
    check_meshes(settings, self.models.policy, self.meshes)
    self.sampling = Sampling(
      self.models.policy,
      settings.sampling.sampler,
      self.models.longest,
      self.meshes.sampling,
    )
    init, self._step = rl.make_init_and_step(settings, self.models.policy)
    self.state = abstract_state(init, self.meshes.training)
    self.prm_state = None
    if settings.has_implicit_prm and settings.prm.online.on:
      init, self._prm_step = rl_rating.make_init_and_step(
        settings, self.models.prm
      )
      self.prm_state = abstract_state(init, self.meshes.sampling)
    self.held = self._hold()

  @property
  def length(self) -> int:
    """Returns the length in tokens of the longest training rows."""
    longest = self.models.longest
    return min(cache_bucket(longest), longest)

  @property
  def rows(self) -> int:
    """Returns the number of chains in a minibatch."""
    return self.settings.train.chains // self.settings.train.minibatches

  def _hold(self) -> Held:
    settings, models = self.settings, self.models
    reference, prm, rest = None, None, None
    if settings.reads_reference and not settings.reference.offload:
      reference = self._reference()
    if self.prm_state:
      prm, rest = self.prm_state.params, self.prm_state._replace(params=None)
    elif models.prm:
      prm = abstract_params(models.prm, models.head, self.meshes.sampling)
    stale = settings.train.staleness
    return Held(
      self.state.params,
      self.state._replace(params=None),
      self.sampling.params(),
      self._backbone(models.policy.param_dtype) if stale else None,
      reference,
      prm,
      rest,
    )

  def _backbone(self, dtype: str) -> Any:
    """Returns the backbone as it is trained, placed on the sampling mesh."""
    model = dataclasses.replace(self.models.policy, param_dtype=dtype)
    return abstract_params(model, None, self.meshes.sampling)['backbone']

  def _reference(self) -> Any:
    kept = self.settings.reference.param_dtype
    return self._backbone(kept or self.models.policy.param_dtype)

  def _beside(self, mesh: Mesh, *read: str) -> int:
    """Counts the bytes on a device that a program does not read."""
    return sum(
      bytes_of(tree)
      for name, tree in self.held._asdict().items()
      if tree is not None and name not in read and _mesh_of(tree) == mesh
    )

  def _program(
    self,
    mesh: Mesh,
    function: Any,
    *arguments: Any,
    read: Sequence[str] = (),
    **flops: Any,
  ) -> Program:
    """Describes a jitted function that reads some of the shapes held."""

    def lower() -> jax.stages.Lowered:
      with jax.set_mesh(mesh):
        return function.lower(*arguments)

    return Program(lower, mesh.size, beside=self._beside(mesh, *read), **flops)

  def programs(self) -> dict[str, Program]:
    """Returns the programs in the order in which an update runs them."""
    mesh, settings = self.meshes.sampling, self.settings
    programs = {'take': self._take()}
    for name, program in self.sampling.programs().items():
      # The parameters that it writes with are read, or counted there.
      beside = program.beside + self._beside(mesh, 'written_with')
      programs[name] = program._replace(beside=beside)
    if settings.reads_reference:
      params = {'backbone': self._reference()}
      programs['reference'] = self._view('logprobs', mesh, params, 'reference')
    if self.prm_state:
      programs['learn_prm'] = self._learn_prm()
    if settings.has_implicit_prm:
      programs['score'] = self._view('logprobs', mesh, self.held.prm, 'prm')
    elif self.models.prm:
      programs['score'] = self._score()
    mesh, params = self.meshes.training, self.state.params
    if 'head' in params:
      programs['values'] = self._view('values', mesh, params, 'params')
    programs['advantages'] = self._advantages()
    programs['train'] = self._program(
      mesh,
      compile_train_step(self._step, self.state, mesh),
      self.state,
      self._minibatch(),
      read=('params', 'rest'),
      **learning(
        self.models.policy,
        self.rows,
        self.length,
        logits=True,
        frozen=self.settings.lora.rank > 0,
      ),
    )
    return programs

  def _take(self) -> Program:
    """Describes how the policy takes parameters, after the old are freed."""
    mesh, policy = self.meshes.sampling, self.models.policy
    backbone = self._backbone(policy.param_dtype)
    read = ['written_with']
    # Adapters are merged into a copy, beside the parameters that are trained.
    if not self.settings.lora.rank:
      read.append('given' if self.held.given else 'params')
    spread = self.settings.sampling.spread
    function = jit_unstack(backbone, policy, mesh, spread)
    return self._program(mesh, function, backbone, read=read)

  def _view(self, part: str, mesh: Mesh, params: Any, read: str) -> Program:
    """Describes the call that reads log-probabilities or values of rows."""
    model = self.models.prm if read == 'prm' else self.models.policy
    lora = self.settings.lora if 'lora' in params else NO_LORA
    B, T = self.settings.train.rows, self.length
    return self._program(
      mesh,
      jit_view(part, model, mesh, lora),
      params,
      _trees(mesh, B, T),
      read=[read],
      **reading(model, B, T, logits=part == 'logprobs'),
    )

  def _minibatch(self) -> Minibatch:
    mesh, shape = self.meshes.training, (self.rows, self.length)
    written = _rows(mesh, jnp.bool_, *shape)
    floats = [_rows(mesh, jnp.float32, *shape)] * 5
    return Minibatch(_trees(mesh, *shape), Experience(written, *floats))

  def _learn_prm(self) -> Program:
    """Describes a step of an implicit PRM on all chains of an update."""
    mesh, B = self.meshes.sampling, self.settings.train.chains
    batch = Outcomes(
      _trees(mesh, B, self.length),
      _rows(mesh, jnp.bool_, B, self.length),
      _rows(mesh, jnp.float32, B, self.length),
      _rows(mesh, jnp.float32, B),
    )
    return self._program(
      mesh,
      compile_train_step(self._prm_step, self.prm_state, mesh),
      self.prm_state,
      batch,
      read=('prm', 'prm_rest'),
      **learning(self.models.prm, B, self.length, logits=True),
    )

  def _advantages(self) -> Program:
    """Describes the advantages of an update's chains with the most steps."""
    mesh, settings = self.meshes.training, self.settings
    whole = NamedSharding(mesh, P())

    def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    B, T = settings.train.chains, self.length
    # The shortest step is one token and its separator.
    steps = B, bucket(settings.sampling.max_tokens // 2, SMALLEST_STEPS)
    numbers = of(jnp.float32, B, T)
    findings = Findings(
      of(jnp.float32, *steps),
      of(jnp.bool_, *steps),
      of(jnp.int32, *steps),
      of(jnp.float32, B),
      of(jnp.bool_, B, T),
      numbers,
    )
    size, config = settings.train.samples, settings.advantage
    function = jit_advantages(size, settings.reward, config, mesh)
    share = of(jnp.float32)
    return self._program(mesh, function, findings, numbers, share)

  def _score(self) -> Program:
    """Describes the scoring of as many chains as one call takes."""
    mesh, model = self.meshes.sampling, self.models.prm
    head = self.models.head
    rows = full_call(self.settings.train.chains, self.models.longest, mesh)
    ends = None if head.likelihood else rows.step_ends.shape[1]
    return self._program(
      mesh,
      jit_row_scores(model, head, mesh),
      self.held.prm,
      rows,
      read=['prm'],
      **reading(model, *rows.tokens.shape, head.likelihood, ends),
    )


def _rows(mesh: Mesh, dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
  placed = batch_sharding(mesh)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)


def _trees(mesh: Mesh, B: int, T: int) -> Trees:
  """Describes chains that share nothing: a row each, the most there can be."""
  return Trees(*[_rows(mesh, jnp.int32, B, T)] * 5)


def _mesh_of(tree: Any) -> Mesh:
  return jax.tree.leaves(tree)[0].sharding.mesh


def plan(settings: RlSettings, devices: Sequence[jax.Device]) -> Plan:
  """Returns the programs of an RL job on these devices.

  Raises:
    UserError: the settings do not fit the devices.
  """
  job = AbstractRlJob(settings, devices)
  meshes = tuple(dict.fromkeys(job.meshes))
  remat = job.models.policy.remat
  slots = settings.sampling.slots
  return Plan(job.programs(), meshes, remat, job.rows, job.length, slots)

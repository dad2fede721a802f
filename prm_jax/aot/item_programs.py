"""Lowers the programs of sampling, labelling and searching, on shapes alone.

The devices are those of one process, which asks models of its own. A chip holds
the policy, the PRM, and the keys and values that both keep between calls.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.aot.programs import HEAD, read_prm
from prm_jax.aot.sampling import Sampling
from prm_jax.aot.shapes import Plan, Program, abstract_params, bytes_of, placed
from prm_jax.aot.useful_flops import GPU_KERNEL, TPU_KERNEL, reading, wide
from prm_jax.inference import loading
from prm_jax.inference.call_sizes import fine_grid, most_rows
from prm_jax.inference.tree_scorer import jit_read_rows
from prm_jax.jobs.settings.items import ItemSettings, LabelSettings
from prm_jax.jobs.settings.search import SearchSettings
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  attention_flops,
  prefix_store,
)
from prm_jax.models.cache_shardings import pool_sharding
from prm_jax.models.dtypes import FAST
from prm_jax.runtime import checks, paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import check_heads, make_mesh


class ItemModels(NamedTuple):
  """Describes the models of a job.

  Attributes:
    policy: the policy's model; None if it is not a model that is opened here.
    prm: the PRM's model; None if there is none, or it is not a model.
    longest, prm_longest: tokens of the longest chain of each.
  """

  policy: TransformerConfig | None
  prm: TransformerConfig | None
  head: HeadConfig
  longest: int
  prm_longest: int


def read_models(settings: ItemSettings) -> ItemModels:
  """Describes the models of the workdirs that the settings name.

  Raises:
    UserError: none of them is a model, or a workdir has none.
  """
  _check_counted(settings)
  asked, known = settings.policy, settings.aot.model.given()
  policy = prm = TransformerConfig(**known) if known else None
  head, longest = HEAD, settings.aot.max_length
  if asked.kind != 'workdir':
    policy = None
  elif asked.workdir:
    described = loading.read_description(paths.open_path(asked.workdir))
    policy, longest = described.model, described.format.max_length
  prm_longest = longest
  if not isinstance(settings, SearchSettings) or settings.prm.kind != 'workdir':
    prm = None
  elif settings.prm.path:
    described = read_prm(settings.prm.path)
    prm, head = described.model, described.head
    prm_longest = described.format.max_length
  if policy:
    policy = _computed_in(policy, asked.dtype)
  if prm and isinstance(settings, SearchSettings):
    prm = _computed_in(prm, settings.prm.dtype)
  if not (policy or prm):
    raise UserError(
      'config.policy and config.prm: no model that is opened here, so there is '
      'nothing to compile; set config.policy.kind=workdir'
    )
  return ItemModels(policy, prm, head, longest, prm_longest)


def _check_counted(settings: ItemSettings) -> None:
  """Raises Faults for a model whose memory and programs are not counted."""
  if isinstance(settings, SearchSettings) and settings.scores:
    if settings.prm.kind == 'generative':
      checks.fail(
        'config.prm.kind',
        'generative',
        'a critic and what it writes are not compiled; expected workdir, '
        'endpoint or exact',
      )
  elif isinstance(settings, LabelSettings) and settings.needs_prm:
    checks.fail(
      'config.select',
      settings.select,
      "the PRM that selects chains is not compiled; expected ''",
    )


def _computed_in(model: TransformerConfig, dtype: str) -> TransformerConfig:
  dtype = dtype or FAST  # as `loading.load` has it on TPUs and GPUs
  return dataclasses.replace(model, dtype=dtype, param_dtype=dtype)


class PrmReading(NamedTuple):
  """Describes the program with which a search reads steps.

  Attributes:
    kept: chains whose keys and values stay on the devices.
    longest: tokens of the longest chain.
  """

  model: TransformerConfig
  head: HeadConfig
  kept: int
  longest: int
  mesh: Mesh

  def params(self) -> object:
    """Returns the parameters' shapes."""
    return abstract_params(self.model, self.head, self.mesh)

  def pool(self) -> prefix_store.Pool:
    """Returns the shapes of the keys and values that it keeps."""
    slots = self.kept * self.longest
    shapes = jax.eval_shape(lambda: prefix_store.init_pool(self.model, slots))
    split = pool_sharding(self.model, self.mesh)
    return placed(shapes, jax.tree.map(lambda _: split, shapes))

  def sizes(self) -> tuple[int, int, int]:
    """Returns B rows, T tokens of each and S of the prefix, of a full call."""
    split = self.mesh.shape['replica'] * self.mesh.shape['fsdp']
    T, S = fine_grid(self.longest, split).packed, self.longest
    return most_rows(S + T, split), T, S

  def lower(self) -> jax.stages.Lowered:
    """Lowers a call with the most rows, and prefixes of the greatest length."""
    B, T, S = self.sizes()
    whole = NamedSharding(self.mesh, P())

    def of(dtype: object, *shape: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    tokens, ends = of(jnp.int32, B, T), of(jnp.int32, B, T // 2)
    rows = Rows(*[tokens] * 4, of(jnp.int8, B, T), ends, ends)
    read = jit_read_rows(self.model, self.head, self.mesh)
    params, pool = self.params(), self.pool()
    with jax.set_mesh(self.mesh):
      return read.lower(params, pool, of(jnp.int32, B, S), rows)

  def program(self) -> Program:
    """Returns the program."""
    B, T, S = self.sizes()
    likelihood = self.head.likelihood
    ends = None if likelihood else T // 2
    needed = reading(self.model, B, T, likelihood, ends)
    prefix = attention_flops(self.model, B * T * S)
    return Program(
      self.lower,
      self.mesh.size,
      needed['products'],
      needed['attention'] + prefix,
      # Kernels read the prefix, too. A GPU's is not causal then, so that the
      # row itself costs twice as much.
      {
        TPU_KERNEL: (needed['attention'] + prefix) * wide(self.model),
        GPU_KERNEL: 2 * needed['attention'] + prefix,
      },
      cache=bytes_of(self.pool()),
    )


def plan(settings: ItemSettings, devices: Sequence[jax.Device]) -> Plan:
  """Returns the programs of a job that works on items.

  Raises:
    UserError: the settings do not fit the devices.
  """
  mesh = make_mesh(settings.mesh.shape, devices)
  models, sampler = read_models(settings), settings.policy.sampling
  programs: dict[str, Program] = {}
  # Bytes of what a program reads, or counts beside it already.
  reads: dict[str, int] = {}
  held = 0  # bytes of all that stays on a device
  if models.policy:
    check_heads(models.policy.n_heads, mesh)
    sampler.check_devices(mesh.shape['replica'] * mesh.shape['fsdp'])
    sampling = Sampling(models.policy, sampler, models.longest, mesh)
    opening = sampling.opening()
    programs |= sampling.programs()
    params = bytes_of(sampling.params())
    reads |= dict.fromkeys(programs, params)
    held += params
    if sampler.kept:
      slots = sampler.kept * models.longest
      held += prefix_store.pool_bytes(models.policy, mesh, slots)
  if models.prm and isinstance(settings, SearchSettings):
    check_heads(models.prm.n_heads, mesh)
    rows = settings.prm.rows
    prm = PrmReading(models.prm, models.head, rows, models.prm_longest, mesh)
    programs['score'] = prm.program()
    reads['score'] = bytes_of(prm.params()) + bytes_of(prm.pool())
    held += reads['score']
  counted = {
    name: program._replace(beside=program.beside + held - reads[name])
    for name, program in programs.items()
  }
  if models.policy:  # it is opened last, and keeps no chains yet
    first = opening.beside + reads.get('score', 0)
    counted = {'open': opening._replace(beside=first), **counted}
  return Plan(
    counted,
    (mesh,),
    slots=sampler.slots if models.policy else 0,
  )

"""Decides which devices of an RL job train, and which sample and score."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.models import TransformerConfig
from prm_jax.runtime import checks, processes
from prm_jax.runtime.checks import Fault
from prm_jax.runtime.sharding import check_heads, make_mesh


class Meshes(NamedTuple):
  """Holds one mesh for everything, or two without a device in common.

  Attributes:
    training: mesh of the policy that is trained.
    sampling: mesh of the sampling policy, the PRM and the reference.
  """

  training: Mesh
  sampling: Mesh


def make_meshes(
  settings: RlSettings, devices: Sequence[jax.Device] | None = None
) -> Meshes:
  """Returns the meshes of an RL job.

  Args:
    devices: all devices; by default those that JAX finds.

  Raises:
    UserError: they do not fit, or two threads would run programs on several
      shared devices. Each device might then run them in another order, a
      deadlock.
  """
  devices = jax.devices() if devices is None else devices
  apart, staleness = settings.sampling.devices, settings.train.staleness
  shape = settings.mesh.shape
  if processes.count() > 1:
    _check_one_process(settings)
  if not apart:
    mesh = make_mesh(shape, devices)
    if staleness and mesh.size > 1:
      checks.fail(
        'config.train.staleness',
        staleness,
        f'samples while it trains, which {mesh.size} devices cannot share: '
        'give sampling some of its own with sampling.devices',
      )
    return Meshes(mesh, mesh)
  if apart >= len(devices):
    checks.fail(
      'config.sampling.devices',
      apart,
      f'leaves none of {len(devices)} devices to train; lower it, or set it '
      'to 0',
    )
  training = make_mesh(shape, devices[:-apart])
  model = training.shape['model']
  if apart % model:
    checks.fail(
      'config.sampling.devices',
      apart,
      f'expected a multiple of mesh.model={model}',
    )
  rows = {'replica': 1, 'fsdp': -1, 'model': model}
  return Meshes(training, make_mesh(rows, devices[-apart:]))


def _check_one_process(settings: RlSettings) -> None:
  """Raises Faults for settings that need a single process."""
  why = 'sampling beside training works in one process; set it to 0'
  faults = [
    Fault(f'config.{name}', value, why)
    for name, value in (
      ('sampling.devices', settings.sampling.devices),
      ('train.staleness', settings.train.staleness),
    )
    if value
  ]
  if faults:
    raise checks.Faults(faults)


def check_meshes(
  settings: RlSettings, model: TransformerConfig, meshes: Meshes
) -> None:
  """Raises UserError unless chains and heads divide over the meshes."""
  for mesh in meshes:
    check_heads(model.n_heads, mesh)
  rows = [mesh.shape['replica'] * mesh.shape['fsdp'] for mesh in meshes]
  settings.train.check_devices(rows[0])
  settings.sampling.sampler.check_devices(rows[1])
  read = settings.train.rows
  if settings.reads_reference and read % rows[1]:
    checks.fail(
      'config.sampling.devices',
      settings.sampling.devices,
      f'the first policy reads {read} chains a call, which do not divide over '
      f'replica x fsdp = {rows[1]} of them; expected mesh.model='
      f'{meshes.sampling.shape["model"]} times a divisor of {read}',
    )

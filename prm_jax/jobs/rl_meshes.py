"""Which devices of an RL job train, and which sample and score."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from prm_jax.jobs.settings.rl import Settings
from prm_jax.jobs.training import check_heads
from prm_jax.models import TransformerConfig
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh


class Meshes(NamedTuple):
  """Where things are: one mesh for all, or two without a device in common."""

  training: Mesh  # the policy that learns
  sampling: Mesh  # the policy that writes, the PRM, and the reference


def make_meshes(
  config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None
) -> Meshes:
  """The meshes of a config.

  Args:
    devices: all of them; by default what JAX finds.

  Raises:
    UserError: they do not fit, or two threads would run programs on several
      devices that they share: each device may come to another order, and all
      wait for each other.
  """
  devices = jax.devices() if devices is None else devices
  apart, staleness = config['sampling']['devices'], config['train']['staleness']
  if (apart or staleness) and processes.count() > 1:
    raise UserError(
      f'sampling.devices={apart}, train.staleness={staleness}: sampling beside '
      'training works in one process; set both to 0'
    )
  if not apart:
    mesh = make_mesh(config['mesh'], devices)
    if staleness and mesh.size > 1:
      raise UserError(
        f'train.staleness={staleness} samples while it trains, which '
        f'{mesh.size} devices cannot share: give sampling some of its own with '
        'sampling.devices'
      )
    return Meshes(mesh, mesh)
  if apart >= len(devices):
    raise UserError(
      f'sampling.devices={apart} of {len(devices)} devices leaves none to '
      'train; lower it, or set it to 0'
    )
  rows = {'replica': 1, 'fsdp': -1, 'model': config['mesh']['model']}
  return Meshes(
    make_mesh(config['mesh'], devices[:-apart]),
    make_mesh(rows, devices[-apart:]),
  )


def check_meshes(
  settings: Settings, model: TransformerConfig, meshes: Meshes
) -> None:
  """Raises UserError unless chains and heads divide over the meshes."""
  for mesh in meshes:
    check_heads(model, mesh)
  rows = [mesh.shape['replica'] * mesh.shape['fsdp'] for mesh in meshes]
  settings.loop.check_devices(rows[0])
  settings.sampling.check_devices(rows[1])

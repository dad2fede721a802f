"""From a config's `prm` section to a StepScorer, for jobs that search.

As `policies.py` for policies: the section has `kind` and what each kind needs.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference import loading
from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.exact_scorer import KINDS as EXACT
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import StepScorer
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import flat_mesh


def open_trained(
  config: Mapping[str, Any], solver: Mapping[str, Any]
) -> TreeScorer:
  """A PRM that was trained here, or a published one."""
  del solver
  _check_path(config)
  # Each process has a copy, as each asks what its own problems want.
  mesh = flat_mesh(jax.local_devices())
  scorer = loading.load(config['path'], style=config['style'], mesh=mesh)
  return TreeScorer(scorer, config['rows'], scorer.name)


def open_whole(config: Mapping[str, Any], mesh: Mesh) -> ChainScorer:
  """The same for whole chains, which all processes of the mesh ask for."""
  _check_path(config)
  return ChainScorer(
    loading.load(
      config['path'], style=config['style'], mesh=mesh, dtype=config['dtype']
    )
  )


def _check_path(config: Mapping[str, Any]) -> None:
  if not config['path']:
    raise UserError(
      'prm.path is empty; name the --workdir of a trained PRM '
      '(configs/prm_math.py), or a published one'
    )


def open_exact(
  config: Mapping[str, Any], solver: Mapping[str, Any]
) -> ExactScorer:
  """What a perfect PRM would say, in the arithmetic domain."""
  return ExactScorer(ArithmeticConfig(**solver), config['exact'])


KINDS = {'workdir': open_trained, 'exact': open_exact}
NONE = 'none'


def check(config: Mapping[str, Any], *others: str) -> None:
  """Raises UserError for what can be seen without opening anything.

  Args:
    others: kinds that the job opens itself.
  """
  kinds = (*KINDS, *others, NONE)
  for name, choices in (('kind', kinds), ('exact', EXACT)):
    if config[name] not in choices:
      raise UserError(
        f'prm.{name}={config[name]!r}: expected one of {", ".join(choices)}'
      )
  if config.get('rows', 1) < 1:  # what scores whole chains keeps none
    raise UserError(f'prm.rows={config["rows"]}: expected >= 1')


def open_scorer(
  config: Mapping[str, Any],
  solver: Mapping[str, Any],
  mesh: Mesh | None = None,
) -> StepScorer | None:
  """The PRM that a config describes; None where it is to be none.

  Args:
    config: the prm section.
    solver: of the arithmetic domain, whose values are exact.
    mesh: on which whole chains are scored; None: chains that grow, by each
      process its own.
  """
  if config['kind'] == NONE:
    return None
  if config['kind'] == 'workdir' and mesh is not None:
    return open_whole(config, mesh)
  return KINDS[config['kind']](config, solver)

"""From a config's `prm` section to a StepScorer, for jobs that search.

As `policies.py` for policies: the section has `kind` and what each kind needs.
"""

from collections.abc import Mapping
from typing import Any

import jax

from prm_jax import loading
from prm_jax.chain_scorer import ChainScorer
from prm_jax.domains.arithmetic import ArithmeticConfig
from prm_jax.domains.exact_scorer import KINDS as EXACT
from prm_jax.domains.exact_scorer import ExactScorer
from prm_jax.errors import UserError
from prm_jax.policy import StepScorer
from prm_jax.tree_scorer import TreeScorer


def open_trained(
  config: Mapping[str, Any], solver: Mapping[str, Any]
) -> TreeScorer:
  """A PRM that was trained here, or a published one."""
  del solver
  _check_path(config)
  # Each process has a copy, as each asks what its own problems want.
  devices = jax.local_devices()
  scorer = loading.load(config['path'], style=config['style'], devices=devices)
  return TreeScorer(scorer, config['rows'], scorer.name)


def open_whole(
  config: Mapping[str, Any], solver: Mapping[str, Any]
) -> ChainScorer:
  """The same for whole chains, on all devices: all processes ask the same."""
  del solver
  _check_path(config)
  return ChainScorer(loading.load(config['path'], style=config['style']))


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
WHOLE_KINDS = {'workdir': open_whole, 'exact': open_exact}
NONE = 'none'


def check(config: Mapping[str, Any]) -> None:
  """Raises UserError for what can be seen without opening anything."""
  for name, choices in (('kind', (*KINDS, NONE)), ('exact', EXACT)):
    if config[name] not in choices:
      raise UserError(
        f'prm.{name}={config[name]!r}: expected one of {", ".join(choices)}'
      )
  if config.get('rows', 1) < 1:  # what scores whole chains keeps none
    raise UserError(f'prm.rows={config["rows"]}: expected >= 1')


def open_scorer(
  config: Mapping[str, Any], solver: Mapping[str, Any], whole: bool = False
) -> StepScorer | None:
  """The PRM that a config describes; None where it is to be none.

  Args:
    config: the prm section.
    solver: of the arithmetic domain, whose values are exact.
    whole: it will be asked for whole chains, not for chains that grow.
  """
  if config['kind'] == NONE:
    return None
  return (WHOLE_KINDS if whole else KINDS)[config['kind']](config, solver)

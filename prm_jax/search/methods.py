"""The methods of search by name: what `config.method` can be."""

from prm_jax.endpoint import Endpoint
from prm_jax.errors import UserError
from prm_jax.policy import Policy, StepScorer
from prm_jax.recorded_policy import RecordedPolicy
from prm_jax.search.beam import BeamConfig, beam
from prm_jax.search.best_of_n import BestOfNConfig, best_of_n
from prm_jax.search.searching import Method, best

METHODS = {
  'best_of_n': Method(best_of_n, best, True, BestOfNConfig, 'chains'),
  'beam': Method(beam, best, True, BeamConfig),
}


def check_models(name: str, policy: Policy, prm: StepScorer | None) -> None:
  """Raises UserError where a method cannot work with these; asks nothing.

  Args:
    name: of the method, one of METHODS.
    prm: None: there is none.
  """
  method = METHODS[name]
  if method.scores and prm is None:
    raise UserError(
      f'method={name!r} asks a PRM and there is none; name one (prm.kind), or '
      'take majority'
    )
  if isinstance(policy, Endpoint) and method.needs != 'chains':
    policy.check_goes_on()
  if isinstance(policy, RecordedPolicy) and method.needs == 'branches':
    able = [each for each in METHODS if METHODS[each].needs != 'branches']
    raise UserError(
      f'method={name!r} goes on with a chain in several ways, recorded chains '
      f'in one; take {", ".join(able)}, or a policy that writes'
    )

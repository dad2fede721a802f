"""Lists the search methods by name, as `config.method` gives it."""

import math

from prm_jax.inference.protocols import Policy, StepScorer
from prm_jax.inference.recorded_policy import RecordedPolicy
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.runtime.errors import UserError
from prm_jax.search.beam import (
  BeamConfig,
  LookaheadConfig,
  beam,
  dvts,
  lookahead,
)
from prm_jax.search.best_of_n import BestOfNConfig, best_of_n
from prm_jax.search.budget import Budget
from prm_jax.search.early_rejection import EarlyRejectionConfig, early_rejection
from prm_jax.search.mcts import MctsConfig, best_end, mcts
from prm_jax.search.method import Method, best
from prm_jax.search.rebase import RebaseConfig, rebase
from prm_jax.search.refine import RefineConfig, refine
from prm_jax.search.vote import majority, weighted_vote

METHODS = {
  'best_of_n': Method(best_of_n, best, True, BestOfNConfig, 'chains'),
  'majority': Method(best_of_n, majority, False, BestOfNConfig, 'chains'),
  'weighted_vote': Method(
    best_of_n, weighted_vote, True, BestOfNConfig, 'chains'
  ),
  'beam': Method(beam, best, True, BeamConfig),
  'dvts': Method(dvts, best, True, BeamConfig),
  'lookahead': Method(lookahead, best, True, LookaheadConfig),
  'rebase': Method(rebase, best, True, RebaseConfig),
  'mcts': Method(mcts, best_end, True, MctsConfig),
  'refine': Method(refine, best, True, RefineConfig),
  'early_rejection': Method(
    early_rejection, best, True, EarlyRejectionConfig, 'steps'
  ),
}


def check_models(
  name: str,
  policy: Policy,
  prm: StepScorer | None,
  budget: Budget | None = None,
) -> None:
  """Checks that a method can work with a policy, PRM and budget.

  Nothing is asked of policy or PRM.

  Args:
    name: name of the method, one of METHODS.
    prm: None if there is none.
    budget: limits for one problem; None for no limits.

  Raises:
    UserError: The method needs a PRM and there is none, a model does not count
      the FLOPs that the budget limits, or the policy cannot continue chains in
      the way that the method needs.
  """
  method = METHODS[name]
  if method.scores and prm is None:
    raise UserError(
      f'method={name!r} asks a PRM and there is none; name one (prm.kind), or '
      "take the method 'majority'"
    )
  if budget and math.isfinite(budget.flops):
    for each in (policy, prm) if method.scores else (policy,):
      if not getattr(each, 'counts_flops', False):
        raise UserError(
          f'budget.flops={budget.flops:g}: {each.name} does not say its FLOPs; '
          'limit budget.tokens or budget.samples instead'
        )
  if isinstance(policy, Endpoint) and method.needs != 'chains':
    policy.check_continues()
  if isinstance(policy, RecordedPolicy) and method.needs == 'branches':
    able = [each for each in METHODS if METHODS[each].needs != 'branches']
    raise UserError(
      f'method={name!r} goes on with a chain in several ways, but a recorded '
      f'chain goes on in one; take {", ".join(able)}, or a policy that samples'
    )

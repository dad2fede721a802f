"""Defines the settings of the search job."""

import dataclasses
import math
from typing import Annotated, Any

from prm_jax.data.config import SplitConfig
from prm_jax.inference.exact_scorer import KINDS as EXACT_KINDS
from prm_jax.jobs.settings.items import ItemSettings
from prm_jax.jobs.settings.prms import AskedPrmConfig
from prm_jax.jobs.settings.shared import check_arithmetic
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least, one_of
from prm_jax.search.beam import BeamConfig, LookaheadConfig
from prm_jax.search.best_of_n import BestOfNConfig
from prm_jax.search.budget import Budget
from prm_jax.search.early_rejection import EarlyRejectionConfig
from prm_jax.search.mcts import MctsConfig
from prm_jax.search.method import SearchConfig
from prm_jax.search.methods import METHODS
from prm_jax.search.rebase import RebaseConfig
from prm_jax.search.refine import RefineConfig
from prm_jax.search.searching import SearchPlan
from prm_jax.search.tree import Tree

PRM_KINDS = ('workdir', 'endpoint', 'generative', 'exact', 'none')
COUNT_FLOPS = ('workdir', 'generative')


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
  """Limits each problem's `Budget`; None, which JSON has, is no limit.

  Attributes:
    samples, tokens, flops, seconds: the limits of `Budget`.
  """

  samples: Annotated[int | None, at_least(1)] = None
  tokens: Annotated[int | None, above(0)] = None
  flops: Annotated[float | None, above(0)] = None
  seconds: Annotated[float | None, above(0)] = None

  def __post_init__(self) -> None:
    checks.check(self)

  def to_budget(self) -> Budget:
    limits = dataclasses.asdict(self)
    return Budget(**{k: v for k, v in limits.items() if v is not None})


@dataclasses.dataclass(frozen=True)
class PrmConfig(AskedPrmConfig):
  """Says which PRM scores the chains.

  Attributes:
    kind: also 'exact', the true values of the arithmetic domain; or 'none'.
    rows: number of chains whose keys and values stay on the device.
    exact: what the exact PRM scores: 'value', the probability that the solver
      ends right; or 'steps', whether the steps are right.
  """

  kind: Annotated[str, one_of(*PRM_KINDS)] = 'exact'
  rows: Annotated[int, at_least(1)] = 1024
  exact: Annotated[str, one_of(*EXACT_KINDS)] = 'value'


@dataclasses.dataclass(frozen=True)
class SearchSettings(ItemSettings):
  """Holds the settings of configs/search_math.py.

  Attributes:
    method: search method, one of `search.methods.METHODS`.
    search: settings that all methods share.
    budget: limits for each problem; the first to be reached ends its search.
    best_of_n, majority, weighted_vote, beam, dvts, lookahead, rebase, mcts,
      refine, early_rejection: settings of each method.
    go_on_from: workdir of a search job whose trees are continued; '' is none.
    trees: number of problems, from the first, whose trees are written; 0 is
      all.
  """

  method: Annotated[str, one_of(*METHODS)] = 'best_of_n'
  search: SearchConfig = SearchConfig()
  budget: BudgetConfig = BudgetConfig()
  best_of_n: BestOfNConfig = BestOfNConfig()
  majority: BestOfNConfig = BestOfNConfig()
  weighted_vote: BestOfNConfig = BestOfNConfig()
  beam: BeamConfig = BeamConfig()
  dvts: BeamConfig = BeamConfig()
  lookahead: LookaheadConfig = LookaheadConfig()
  rebase: RebaseConfig = RebaseConfig()
  mcts: MctsConfig = MctsConfig()
  refine: RefineConfig = RefineConfig()
  early_rejection: EarlyRejectionConfig = EarlyRejectionConfig()
  problems: SplitConfig = SplitConfig()
  prm: PrmConfig = PrmConfig()
  go_on_from: str = ''
  trees: Annotated[int, at_least(0)] = 0

  @property
  def method_config(self) -> Any:
    """Returns the settings of the chosen method."""
    return getattr(self, self.method)

  @property
  def scores(self) -> bool:
    """Says whether the method uses a PRM."""
    return METHODS[self.method].scores

  def plan(self, name: str) -> SearchPlan:
    """Returns how every problem is searched.

    Args:
      name: names of method, policy and PRM.
    """
    return SearchPlan(
      METHODS[self.method],
      self.method_config,
      self.search,
      self.budget.to_budget(),
      key='search',
      name=name,
    )

  def check_together(self) -> None:
    method = self.method_config
    # Proposals of a step, whole chains, or a chain and its rewrites.
    names = ('samples', 'width', 'rollouts')
    rewritten = 1 + getattr(method, 'rounds', 0)
    several = max(rewritten, *(getattr(method, name, 1) for name in names))
    self.check_policy('is searched with', self.problems, several)
    if self.scores:
      self._check_prm()
    self._check_flops()
    # A method refuses what it cannot work with before it asks for anything.
    next(METHODS[self.method].grow(Tree(''), self.method_config, self.search))

  def _check_prm(self) -> None:
    """Raises Faults if the method needs a PRM and there is none."""
    if self.prm.kind == 'none':
      checks.fail(
        'prm.kind',
        'none',
        f'method={self.method!r} asks a PRM: expected workdir or exact, or '
        "method='majority'",
      )
    if self.prm.kind == 'exact':
      check_arithmetic('prm.kind', 'exact', self.problems)
    with checks.below('prm'):
      self.prm.check_use(described=bool(self.aot.model.given()))
    if self.prm.kind == 'generative' and self.prm.generative.ask == 'chain':
      checks.fail(
        'prm.generative.ask',
        'chain',
        'a search scores chains that are not whole: expected steps',
      )

  def _check_flops(self) -> None:
    """Raises Faults if FLOPs are limited but a model does not count them."""
    limit = self.budget.flops
    if limit is None or math.isinf(limit):
      return
    for side in ('policy', 'prm') if self.scores else ('policy',):
      kind = getattr(self, side).kind
      if kind not in COUNT_FLOPS:
        checks.fail(
          'budget.flops',
          limit,
          f'{side}.kind={kind!r} does not count its FLOPs: expected None; set '
          'budget.tokens or budget.samples instead',
        )

"""How much a search may spend on a problem, and what it has spent."""

import dataclasses
import math
import operator
import time

from prm_jax.inference.protocols import Completion, Scored
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class Budget:
  """Limits for one problem; inf is none. It ends with the round that meets one.

  One round there always is. Where tokens, FLOPs or seconds are limited, whole
  chains are written few to a round (`Expand.round_size`).

  Attributes:
    samples: completions asked of the policy. The last round is cut to fit.
    tokens: written by the policy.
    flops: of policy and PRM together, as they were computed: what a cache still
      held costs nothing. So a search with warm caches, or in other company, may
      go further, as with `seconds`; `samples` and `tokens` are the same always.
    seconds: since the problem was begun, the others in flight included.
  """

  samples: float = math.inf
  tokens: float = math.inf
  flops: float = math.inf
  seconds: float = math.inf

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not value > 0:
        raise UserError(
          f'budget.{field.name}={value}: nothing can be spent; expected a '
          'number above 0, or inf for no limit'
        )
    if self.samples < 1:
      raise UserError(f'budget.samples={self.samples}: expected >= 1')

  @property
  def counts_samples_only(self) -> bool:
    """Whether it is known what a round spends of it before it is asked for."""
    return min(self.tokens, self.flops, self.seconds) == math.inf


@dataclasses.dataclass
class Ledger:
  """What one problem took.

  Attributes:
    samples: completions asked for.
    tokens, prompt_tokens: written, read by the policy.
    scored_tokens: read by the PRM.
    policy_flops, prm_flops: floating point operations of each; 0: not known.
    rounds: of proposing and scoring.
    lost: completions that could not be had.
    dead: chains that were given up, by reason.
    saved_tokens: an estimate of what chains that were rejected early would have
      gone on to write (`early_rejection.saved_tokens`); 0 of other methods.
    stopped: what ended it before the method would have: the budget's limit by
      its name, or why the policy could not be asked; '' where nothing did. Also
      a limit that was passed by the round that the method ended with.
    seconds: from its beginning to its end, the others in flight included.
  """

  samples: int = 0
  tokens: int = 0
  prompt_tokens: int = 0
  scored_tokens: int = 0
  policy_flops: float = 0.0
  prm_flops: float = 0.0
  rounds: int = 0
  lost: int = 0
  dead: dict[str, int] = dataclasses.field(default_factory=dict)
  saved_tokens: int = 0
  stopped: str = ''
  seconds: float = 0.0
  _began: float = dataclasses.field(default_factory=time.monotonic)

  def wrote(self, completion: Completion) -> None:
    """Counts what a policy wrote."""
    self.tokens += completion.tokens
    self.prompt_tokens += completion.prompt_tokens
    self.policy_flops += completion.flops

  def scored(self, scored: Scored) -> None:
    """Counts what a PRM read."""
    self.scored_tokens += scored.tokens
    self.prm_flops += scored.flops

  def died(self, reason: str) -> None:
    """Counts a chain that was given up."""
    self.dead[reason] = self.dead.get(reason, 0) + 1

  def limit(self, budget: Budget, passed: bool = False) -> str:
    """The name of the limit that is met; '' where another round may begin.

    Args:
      passed: that more was spent than it allows, instead.
    """
    self.seconds = time.monotonic() - self._began
    spent = {
      'samples': self.samples,
      'tokens': self.tokens,
      'flops': self.policy_flops + self.prm_flops,
      'seconds': self.seconds,
    }
    reached = operator.gt if passed else operator.ge
    met = [n for n, it in spent.items() if reached(it, getattr(budget, n))]
    return met[0] if met else ''

  def to_dict(self) -> dict:
    """JSON types only."""
    self.seconds = time.monotonic() - self._began
    fields = dataclasses.asdict(self)
    del fields['_began']
    return fields

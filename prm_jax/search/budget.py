"""Limits what a search may spend on a problem, and counts what it spent."""

import dataclasses
import math
import operator
import time
from typing import Annotated

from prm_jax.inference.protocols import Completion, ScoredSteps
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least


@dataclasses.dataclass(frozen=True)
class Budget:
  """Sets the limits for one problem; inf is no limit.

  A search ends after the round in which it reaches a limit, so it always has
  one round. Under a limit on tokens, FLOPs or seconds, only a few whole chains
  are written per round (`Expand.round_size`).

  Attributes:
    samples: number of completions asked of the policy. The last round is cut
      so that the limit is not exceeded.
    tokens: number of tokens written by the policy.
    flops: floating point operations of policy and PRM together, as computed:
      reading a cache costs nothing. A search with warm caches, or beside other
      problems, may therefore go further, as under a limit on `seconds`. Limits
      on `samples` and `tokens` always have the same effect.
    seconds: time since the problem was begun, in which other problems are
      searched as well.
  """

  samples: Annotated[float, at_least(1)] = math.inf
  tokens: Annotated[float, above(0)] = math.inf
  flops: Annotated[float, above(0)] = math.inf
  seconds: Annotated[float, above(0)] = math.inf

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def counts_samples_only(self) -> bool:
    """Says whether only samples are limited, so that rounds need no check."""
    return min(self.tokens, self.flops, self.seconds) == math.inf


@dataclasses.dataclass
class Ledger:
  """Counts what the search of one problem has spent.

  Attributes:
    samples: number of completions asked of the policy.
    tokens, prompt_tokens: tokens that the policy wrote and read.
    scored_tokens: tokens that the PRM read.
    policy_flops, prm_flops: floating point operations of each; 0 if unknown.
    rounds: number of rounds of proposing and scoring.
    lost: number of completions that failed.
    dead: number of chains given up, by reason.
    saved_tokens: estimate of the tokens that chains rejected early would still
      have written (`early_rejection.saved_tokens`); 0 for other methods.
    stopped: what ended the search before the method did: the name of a limit of
      the budget, or why the policy could not be asked; '' if nothing did. It
      also names a limit that was exceeded in the method's own last round.
    seconds: time from beginning to end, in which other problems are searched
      as well.
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

  def add_completion(self, completion: Completion) -> None:
    """Counts a completion of the policy."""
    self.tokens += completion.tokens
    self.prompt_tokens += completion.prompt_tokens
    self.policy_flops += completion.flops

  def add_scored(self, scored: ScoredSteps) -> None:
    """Counts what the PRM read to score a chain."""
    self.scored_tokens += scored.tokens
    self.prm_flops += scored.flops

  def add_dead(self, reason: str) -> None:
    """Counts a chain that was given up."""
    self.dead[reason] = self.dead.get(reason, 0) + 1

  def reached_limit(self, budget: Budget, exceeded: bool = False) -> str:
    """Returns the name of a limit that is reached, or '' if none is.

    Args:
      exceeded: looks for a limit that is exceeded instead.
    """
    self.seconds = time.monotonic() - self._began
    spent = {
      'samples': self.samples,
      'tokens': self.tokens,
      'flops': self.policy_flops + self.prm_flops,
      'seconds': self.seconds,
    }
    compare = operator.gt if exceeded else operator.ge
    for name, amount in spent.items():
      if compare(amount, getattr(budget, name)):
        return name
    return ''

  def to_dict(self) -> dict:
    """Returns the counts as JSON types."""
    self.seconds = time.monotonic() - self._began
    fields = dataclasses.asdict(self)
    del fields['_began']
    return fields

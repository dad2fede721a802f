"""What goes on with a chain: the contract of policies and of those who ask.

    Request: a chain so far, and how many ways to go on
      -> Policy.complete -> Completions, whole steps only
    Scoring: a chain so far -> StepScorer.score -> Scored, a score for each step

Sampling jobs, label sources and search ask; a trained model (`sampler.py`), a
server (`endpoint.py`) and the arithmetic domain's own solver answer. A judge is
asked in words instead, with Questions. Search asks a PRM for scores.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from prm_jax.runtime.errors import UserError


class Request(NamedTuple):
  """Completions that are wanted of one chain.

  Attributes:
    problem: as in Chain.
    steps: those written so far; () asks for the chain from its beginning.
    key: what the randomness is drawn from, with the policy's seed and the
      number of the sample: the same three give the same completion, in
      whatever company. Two requests with equal keys are the same request.
    samples: how many completions.
    first: number of the first of them: asking for 0 to 7 and later for 8 to 15
      is asking for 16 at once.
    max_steps: steps after which a completion stops; 0: at the chain's end.
  """

  problem: str
  steps: tuple[str, ...]
  key: str
  samples: int
  first: int = 0
  max_steps: int = 0


class Completion(NamedTuple):
  """One way to go on.

  Attributes:
    steps: whole steps written after the request's, none of them blank; () where
      nothing whole was written.
    finished: whether the policy ended the chain; False where it was stopped by
      a limit.
    tokens: written, a last step that was cut off included.
    prompt_tokens: read for it alone; 0 where another completion had read them.
    logprob: of all written tokens under the policy at temperature 1; NaN where
      the policy does not say.
    no_room: the policy's window ended within the first step (or before it), so
      that this says nothing of the request's steps. It is unfinished, too.
    flops: floating point operations of the model for `tokens` and
      `prompt_tokens`; 0 where nobody knows.
  """

  steps: tuple[str, ...]
  finished: bool
  tokens: int
  prompt_tokens: int
  logprob: float
  no_room: bool = False
  flops: float = 0.0


class CannotAsk(UserError):
  """Some of the requests can be put to no policy of this kind.

  Attributes:
    requests: those, and why.
  """

  def __init__(self, requests: Mapping[Request, str]) -> None:
    super().__init__(next(iter(requests.values())))
    self.requests = requests


class Question(NamedTuple):
  """Something to ask a chat model; `key`, `samples`, `first` as in Request."""

  text: str
  key: str
  samples: int
  first: int = 0


class Reply(NamedTuple):
  """What a chat model said."""

  text: str
  tokens: int
  prompt_tokens: int


class Policy(Protocol):
  """Proposes steps.

  Attributes:
    name: says which policy it is and how it samples: equal names give equal
      completions. Part of what a resumed job has to agree on.
    counts_flops: whether `Completion.flops` says anything.
  """

  name: str
  counts_flops: bool

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """`samples` completions of each request, in order.

    None is a completion that could not be had: a server that failed beyond
    all retries. What is asked together is computed together: ask for much.

    Raises:
      CannotAsk: some requests can never be answered; nothing was computed.
    """
    ...


class Scoring(NamedTuple):
  """A chain so far whose steps are to be scored.

  Attributes:
    problem: as in Chain.
    steps: one at least.
  """

  problem: str
  steps: tuple[str, ...]

  @property
  def samples(self) -> int:
    """Counted as one of what a round asks for."""
    return 1


class Scored(NamedTuple):
  """What a PRM says of a chain so far.

  Attributes:
    scores: of each step, in [0, 1]: the probability that it is right. NaN where
      the model is broken. () where the steps do not fit the PRM's window.
    tokens: that the PRM read for it alone; those that it had read before, for
      this chain or another, are not among them.
    flops: of the PRM for them; 0 where nobody knows.
  """

  scores: tuple[float, ...]
  tokens: int
  flops: float = 0.0


class StepScorer(Protocol):
  """Scores steps of chains that grow.

  Attributes:
    name: says which PRM it is, as a policy's.
    counts_flops: whether `Scored.flops` says anything.
  """

  name: str
  counts_flops: bool

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    """One answer, in a list, to each request, in order.

    The score of a step does not depend on what follows it.
    """
    ...


class Judge(Protocol):
  """Answers questions."""

  name: str

  def ask(self, questions: Sequence[Question]) -> list[list[Reply | None]]:
    """`samples` replies to each question; None as in `Policy.complete`."""
    ...


def sample_seed(seed: int, key: str, sample: int) -> int:
  """A 64-bit number for one sample: the same on every machine, in every order.

  Args:
    seed: of the job; key, sample: of the Request.
  """
  digest = hashlib.sha256(f'{seed}/{sample}/{key}'.encode()).digest()
  return int.from_bytes(digest[:8])

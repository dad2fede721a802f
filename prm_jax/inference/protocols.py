"""Defines the questions to policies, step scorers and judges, and the answers.

    Request: a partial chain, and how many completions are wanted
      -> Policy.complete -> Completions of whole steps
    Scoring: a partial chain -> StepScorer.score -> ScoredSteps
    Question: text -> Judge.ask -> Replies
    Choice: a partial chain -> Critic.choose -> Chosen: a probability an option

Sampling jobs, label sources, search and RL ask. Policies are trained models
(`generator.py`), servers (`server/endpoint.py`), recordings and the arithmetic
domain's own solver; step scorers are PRMs and the domain's exact values.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from prm_jax.runtime.errors import UserError


class Request(NamedTuple):
  """Asks for completions of one partial chain.

  Attributes:
    steps: steps written so far; () asks for the chain from its beginning.
    key: seeds the randomness together with the policy's seed and the sample's
      number: the same three give the same completion, whatever else is asked.
      Two requests with equal keys are the same request.
    samples: number of completions.
    first: number of the first sample: asking for 0 to 7 and later for 8 to 15
      gives the same as asking for all 16.
    max_steps: steps after which a completion stops; 0 goes to the chain's end.
  """

  problem: str
  steps: tuple[str, ...]
  key: str
  samples: int
  first: int = 0
  max_steps: int = 0


class Completion(NamedTuple):
  """Holds one continuation of a partial chain.

  Attributes:
    steps: whole steps written after the request's, none of them blank; () if
      no whole step was written.
    finished: whether the policy ended the chain itself; False if a limit
      stopped it.
    tokens: number of tokens written, including a last step that was cut off.
    prompt_tokens: prompt tokens read for this completion alone; 0 if another
      completion had already read them.
    logprob: log-probability of all written tokens under the policy at
      temperature 1; NaN if the policy does not tell.
    no_room: whether the policy's window ended within or before the first step,
      so that the completion says nothing about the request's steps. It is
      then unfinished, too.
    flops: floating point operations of the model for `tokens` and
      `prompt_tokens`; 0 if unknown.
  """

  steps: tuple[str, ...]
  finished: bool
  tokens: int
  prompt_tokens: int
  logprob: float
  no_room: bool = False
  flops: float = 0.0


class CannotAsk(UserError):
  """Reports requests that no policy of this kind can answer.

  Attributes:
    requests: the requests, each with the reason.
  """

  def __init__(self, requests: Mapping[Request, str]) -> None:
    super().__init__(next(iter(requests.values())))
    self.requests = requests


class Question(NamedTuple):
  """Asks a chat model; `key`, `samples` and `first` are as in Request."""

  text: str
  key: str
  samples: int
  first: int = 0


class Reply(NamedTuple):
  """Holds the answer of a chat model, and the tokens it wrote and read."""

  text: str
  tokens: int
  prompt_tokens: int


class Policy(Protocol):
  """Writes steps.

  Attributes:
    name: identifies the policy and how it samples: equal names give equal
      completions. A job can only be resumed with a policy of the same name.
    counts_flops: whether `Completion.flops` is filled in.
  """

  name: str
  counts_flops: bool

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """Returns `samples` completions of each request, in order.

    None stands for a completion that could not be obtained, from a server that
    failed at every retry. Requests of one call are computed together, so large
    calls are fast.

    Raises:
      CannotAsk: some requests can never be answered; nothing was computed.
    """
    ...


class Scoring(NamedTuple):
  """Asks for the scores of a partial chain's steps.

  Attributes:
    steps: at least one step.
  """

  problem: str
  steps: tuple[str, ...]

  @property
  def samples(self) -> int:
    """Returns 1: a scoring counts as one sample of a round of questions."""
    return 1


class ScoredSteps(NamedTuple):
  """Holds a PRM's scores of a partial chain.

  Attributes:
    scores: probability in [0, 1] that each step is right; NaN if the model's
      arithmetic overflows, () if the steps do not fit the PRM's window.
    tokens: tokens that the PRM read for this answer; tokens read before, for
      this chain or another, are not counted again.
    flops: floating point operations of the PRM for these tokens; 0 if unknown.
    unread: of a PRM that writes: critiques that say nothing.
    lost: of a PRM that writes: critiques that could not be had.
    refused: of a PRM that writes: the last steps for which it has no room or
      words, so that their scores say nothing.
  """

  scores: tuple[float, ...]
  tokens: int
  flops: float = 0.0
  unread: int = 0
  lost: int = 0
  refused: int = 0


class StepScorer(Protocol):
  """Scores the steps of partial chains.

  Attributes:
    name: identifies the PRM, as a policy's name does.
    counts_flops: whether `ScoredSteps.flops` is filled in.
  """

  name: str
  counts_flops: bool

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns one answer, in a list, to each request, in order.

    The score of a step does not depend on the steps after it.
    """
    ...


class Judge(Protocol):
  """Answers questions in words."""

  name: str

  def ask(self, questions: Sequence[Question]) -> list[list[Reply | None]]:
    """Returns `samples` replies to each question; None is as for a Policy."""
    ...


class Choice(NamedTuple):
  """Asks how likely each option is to come next.

  Attributes:
    steps: what was written so far.
    lead: text that follows the steps.
    options: texts that may follow the lead.
  """

  problem: str
  steps: tuple[str, ...]
  lead: str
  options: tuple[str, ...]


class Chosen(NamedTuple):
  """Holds the answer to a Choice.

  Attributes:
    logprobs: log-probability of each option's first word of its own, at
      temperature 1; () if the model does not tell.
    tokens: tokens that the model read for this answer.
    flops: floating point operations for these tokens; 0 if unknown.
  """

  logprobs: tuple[float, ...]
  tokens: int
  flops: float = 0.0


class Critic(Policy, Protocol):
  """Writes critiques, and says how likely its words are."""

  def choose(self, choices: Sequence[Choice]) -> list[Chosen]:
    """Returns an answer to each choice, in order."""
    ...


def shared_start(texts: Sequence[Sequence[Any]]) -> int:
  """Returns how many first letters, or ids, all texts have in common."""
  same = (len(set(each)) == 1 for each in zip(*texts, strict=False))
  return sum(itertools.takewhile(bool, same))


def sample_seed(seed: int, key: str, sample: int) -> int:
  """Returns a 64-bit seed of one sample, the same on every machine."""
  digest = hashlib.sha256(f'{seed}/{sample}/{key}'.encode()).digest()
  return int.from_bytes(digest[:8])

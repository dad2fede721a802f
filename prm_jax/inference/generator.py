"""The transformer as a Policy: requests in, whole steps out.

`Generator` encodes requests, has a `Writer` (writer.py) sample what follows
and turns the ids back into steps.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from prm_jax.data.encoding import StepFormat
from prm_jax.data.tokenizer import SPECIALS, HuggingFaceTokenizer
from prm_jax.inference.protocols import (
  CannotAsk,
  Completion,
  Request,
  sample_seed,
)
from prm_jax.inference.sampler import SamplingConfig, Stops
from prm_jax.inference.writer import Job, SamplingStats, Writer, Written
from prm_jax.models import TransformerConfig, chain_flops
from prm_jax.runtime.errors import UserError


class Sample(NamedTuple):
  """A completion, and the ids that it was read from."""

  ids: tuple[int, ...]  # what it goes on from
  written: Written
  completion: Completion


class Generator:
  """A trained language model, ready to write: a `policy.Policy`.

  Args:
    params: of its backbone, as `init_params` gives them. They are kept in
      another form: what is given may be deleted.
    fmt: a policy's format: an end, and one separator id.
    seed: of all samples, see `policy.sample_seed`.
    name: which policy it is; how it samples is added.

  Attributes:
    name: see `policy.Policy`.

  Raises:
    UserError: the format is no policy's, or the slots do not divide over the
      mesh.
  """

  counts_flops = True

  def __init__(
    self,
    params: Any,
    model: TransformerConfig,
    fmt: StepFormat,
    mesh: Mesh,
    sampling: SamplingConfig,
    seed: int = 0,
    name: str = 'policy',
  ) -> None:
    if fmt.end is None or len(fmt.separator) != 1:
      raise UserError(
        f'{name} cannot write chains: its format has the separator ids '
        f'{fmt.separator} and the end {fmt.end}; expected one id each, so '
        'take a model that was trained as a policy'
      )
    self.format = fmt
    self._seed, self._special = seed, special_ids(fmt)
    self._model = model
    stops = Stops(fmt.separator[0], fmt.end)
    self._writer = Writer(params, model, mesh, sampling, stops, fmt.max_length)
    values = dataclasses.asdict(sampling) | {'seed': seed}
    for no_sample_depends_on in ('slots', 'kept'):
      del values[no_sample_depends_on]
    self.name = ','.join([name, *(f'{k}={v}' for k, v in values.items())])

  @property
  def stats(self) -> SamplingStats:
    """What was written so far."""
    return self._writer.stats

  def forget(self) -> None:
    """Goes on from nothing that was kept: prompts are read again."""
    self._writer.forget()

  def take(self, params: Any) -> None:
    """Writes with these parameters of its backbone from now on."""
    self._writer.take(params)

  def complete(self, requests: Sequence[Request]) -> list[list[Completion]]:
    """See `policy.Policy`: `samples` completions of each request.

    Where the window has no room for a whole step, completions say `no_room`. A
    blank step, or one with special tokens in it, ends a completion unfinished,
    before that step.

    Raises:
      CannotAsk: the tokenizer has no tokens for some.
    """
    return [
      [sample.completion for sample in samples]
      for samples in self.sample(requests)
    ]

  def sample(self, requests: Sequence[Request]) -> list[list[Sample]]:
    """`complete`, with the ids of all."""
    encoded, refused = [], {}
    for request in requests:
      try:
        encoded.append(self.encode(request))
      except UserError as error:
        refused[request] = str(error)
    if refused:
      raise CannotAsk(refused)
    jobs = []
    for request, ids in zip(requests, encoded, strict=True):
      numbers = range(request.first, request.first + request.samples)
      jobs += [
        Job(ids, sample_seed(self._seed, request.key, n), request.max_steps)
        for n in numbers
      ]
    done = (
      Sample(job.ids, written, self._completion(job, written))
      for job, written in zip(jobs, self.write(jobs), strict=True)
    )
    return [
      [next(done) for _ in range(request.samples)] for request in requests
    ]

  def encode(self, request: Request) -> tuple[int, ...]:
    """The ids that a request's completions go on from."""
    ids = self.format.encode_prompt(request.problem)
    for i, step in enumerate(request.steps):
      ids += self.format.encode_step(step, i == 0)
    return tuple(ids)

  def write(self, jobs: Sequence[Job]) -> list[Written]:
    """Samples as ids, with the log-probability of each."""
    return self._writer.write(jobs)

  def _completion(self, job: Job, written: Written) -> Completion:
    tokens = written.tokens.tolist()
    steps, finished = read_steps(self.format, self._special, tokens)
    stops = {self.format.separator[0], self.format.end}
    # Neither stopped nor as long as it might be: the window cut it.
    most = self._writer.sampling.max_tokens
    no_room = len(tokens) < most and stops.isdisjoint(tokens)
    return Completion(
      steps,
      finished,
      len(tokens),
      written.prompt_tokens,
      float(written.logprobs.sum(dtype=np.float64)),
      no_room,
      writing_flops(self._model, len(job.ids), written),
    )


def writing_flops(
  model: TransformerConfig, length: int, written: Written
) -> float:
  """FLOPs of a sample after `length` ids, and of reading these for it.

  A token is written by reading the one before it, up to its logits; the rest of
  a prompt is read without them.
  """
  n, last = len(written.tokens), length - 1
  flops = chain_flops(model, last, n, n)
  if written.prompt_tokens:
    flops += chain_flops(model, written.kept, last - written.kept)
  return flops


def special_ids(fmt: StepFormat) -> frozenset[int]:
  """The ids that no text of a step may have."""
  tokenizer = fmt.tokenizer
  if isinstance(tokenizer, HuggingFaceTokenizer):
    return frozenset(map(tokenizer.id_of, tokenizer.specials))
  return frozenset(range(len(SPECIALS)))


def read_steps(
  fmt: StepFormat, special: frozenset[int], tokens: Sequence[int]
) -> tuple[tuple[str, ...], bool]:
  """Whole steps, and whether the chain was ended after them.

  Ends before a blank step, and before one that has special tokens in it. A
  last step that the end follows without a separator is whole: models that were
  not trained here end their chains like that.

  Args:
    special: from `special_ids`.
    tokens: what a policy wrote, from the beginning of a step on.
  """
  separator = fmt.separator[0]
  steps: list[str] = []
  ids: list[int] = []
  for token in tokens:
    ended = token == fmt.end
    if ended and not ids:
      return tuple(steps), True
    if not ended and token != separator:
      ids.append(token)
      continue
    text = '' if special.intersection(ids) else fmt.tokenizer.decode(ids)
    if separator not in special:
      # A separator that is text, as a line feed is, may be in other tokens.
      text = text.replace(fmt.tokenizer.decode([separator]), ' ')
    if not text.strip():
      break
    steps.append(text.strip())
    if ended:
      return tuple(steps), True
    ids = []
  return tuple(steps), False

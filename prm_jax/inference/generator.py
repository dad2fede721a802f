"""Samples steps with a trained language model: requests in, completions out.

    Request -> ids -> Writer (writer.py) -> sampled ids -> whole steps
    Choice -> ids of the options -> their log-probabilities

loading.py makes a `Generator` of a training run.
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
  Choice,
  Chosen,
  Completion,
  Request,
  sample_seed,
  shared_start,
)
from prm_jax.inference.sampler import SamplingConfig, Stops
from prm_jax.inference.writer import (
  SampledTokens,
  SampleRequest,
  SamplingStats,
  Writer,
)
from prm_jax.models import TransformerConfig, chain_flops
from prm_jax.runtime.errors import UserError


class Sample(NamedTuple):
  """Holds a completion and the ids that it was decoded from."""

  ids: tuple[int, ...]  # of the request: problem and steps so far
  written: SampledTokens
  completion: Completion


class Generator:
  """Is a `protocols.Critic`, which samples from a trained language model.

  Args:
    params: backbone parameters as from `init_params`, which are copied into
      another form, or those that `decoding_params.take_over` returned.
    model: the backbone's architecture.
    fmt: a policy's format, with an end id and a single separator id.
    mesh: devices to sample on.
    sampling: how tokens are drawn, and for how many chains at once.
    seed: seeds all samples, see `protocols.sample_seed`.
    name: identifies the parameters; the sampling is added to it.

  Attributes:
    name: see `protocols.Policy`.

  Raises:
    UserError: the format is not a policy's, or the slots do not divide over
      the mesh.
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
    # Samples depend on none of these, but for bfloat16's rounding.
    del values['slots'], values['kept'], values['spread']
    self.name = ','.join([name, *(f'{k}={v}' for k, v in values.items())])

  @property
  def stats(self) -> SamplingStats:
    """Returns counts of what was written so far."""
    return self._writer.stats

  def forget(self) -> None:
    """Empties the cache of kept chains, so that prompts are read again."""
    self._writer.forget()

  def set_params(self, params: Any) -> None:
    """Replaces the backbone's parameters by others of the same shapes."""
    self._writer.set_params(params)

  def complete(self, requests: Sequence[Request]) -> list[list[Completion]]:
    """Returns `samples` completions of each request; see `protocols.Policy`.

    Completions have `no_room` set if the window has no room for a whole step.
    A step that is blank or has special tokens in it is dropped and ends its
    completion unfinished.

    Raises:
      CannotAsk: the tokenizer cannot encode some of the requests.
    """
    return [
      [sample.completion for sample in samples]
      for samples in self.sample(requests)
    ]

  def sample(self, requests: Sequence[Request]) -> list[list[Sample]]:
    """Returns what `complete` does, together with the ids."""
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
        SampleRequest(
          ids, sample_seed(self._seed, request.key, n), request.max_steps
        )
        for n in numbers
      ]
    done = (
      Sample(job.ids, written, self._completion(job, written))
      for job, written in zip(jobs, self.write(jobs), strict=True)
    )
    return [
      [next(done) for _ in range(request.samples)] for request in requests
    ]

  def choose(self, choices: Sequence[Choice]) -> list[Chosen]:
    """Returns how likely each option is to come next; see `Critic.choose`.

    A choice that does not fit the window has no log-probabilities.

    Raises:
      UserError: two options begin with the same word.
    """
    asked, fitting = [], []
    for i, choice in enumerate(choices):
      ids, options = self._encode_choice(choice)
      if len(ids) <= self._writer.longest:
        asked.append((ids, options))
        fitting.append(i)
    chosen = [Chosen((), 0)] * len(choices)
    if not asked:
      return chosen
    read = self._writer.next_logprobs(asked)
    for i, (ids, _), logprobs in zip(fitting, asked, read, strict=True):
      flops = chain_flops(self._model, 0, len(ids), 1)
      chosen[i] = Chosen(tuple(logprobs.tolist()), len(ids), flops)
    return chosen

  def _encode_choice(self, choice: Choice) -> tuple[list[int], list[int]]:
    """Returns the ids up to where the options part, and their next ids."""
    before = self.encode(Request(choice.problem, choice.steps, '', 1))
    encode = self.format.tokenizer.encode
    texts = [encode(choice.lead + option) for option in choice.options]
    shared = shared_start(texts)
    following = [ids[shared] for ids in texts if len(ids) > shared]
    if len(set(following)) < len(texts):
      raise UserError(
        f'the options {choice.options} after {choice.lead!r} do not begin with '
        'words of their own in the tokenizer of this model'
      )
    return [*before, *texts[0][:shared]], following

  def encode(self, request: Request) -> tuple[int, ...]:
    """Returns the ids of a request's problem and steps."""
    ids = self.format.encode_prompt(request.problem)
    for i, step in enumerate(request.steps):
      ids += self.format.encode_step(step, i == 0)
    return tuple(ids)

  def write(self, jobs: Sequence[SampleRequest]) -> list[SampledTokens]:
    """Returns each job's sample as ids with their log-probabilities."""
    return self._writer.write(jobs)

  def _completion(
    self, job: SampleRequest, written: SampledTokens
  ) -> Completion:
    tokens = written.tokens.tolist()
    steps, finished = read_steps(self.format, self._special, tokens)
    stops = {self.format.separator[0], self.format.end}
    # A sample that is short and has no stop was cut off by the window.
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
  model: TransformerConfig, length: int, written: SampledTokens
) -> float:
  """Returns the FLOPs of a sample after `length` ids, and of reading these.

  Writing a token means reading the one before it, with its logits; the rest of
  the prompt is read without logits.
  """
  n, last = len(written.tokens), length - 1
  flops = chain_flops(model, last, n, n)
  if written.prompt_tokens:
    flops += chain_flops(model, written.kept, last - written.kept)
  return flops


def special_ids(fmt: StepFormat) -> frozenset[int]:
  """Returns the ids that may not occur within a step."""
  tokenizer = fmt.tokenizer
  if isinstance(tokenizer, HuggingFaceTokenizer):
    return frozenset(map(tokenizer.id_of, tokenizer.specials))
  return frozenset(range(len(SPECIALS)))


def read_steps(
  fmt: StepFormat, special: frozenset[int], tokens: Sequence[int]
) -> tuple[tuple[str, ...], bool]:
  """Decodes whole steps; returns them and whether the chain ended after them.

  Decoding stops before a blank step and before one that has special tokens in
  it, or rows of an embedding that has more than there are tokens. A last step
  counts as whole if the end follows it without a separator, because models from
  elsewhere end their chains in this way.

  Args:
    special: ids from `special_ids`.
    tokens: ids that a policy wrote, from the beginning of a step.
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
    known = max(ids, default=0) < fmt.tokenizer.vocab_size
    if special.intersection(ids) or not known:
      break
    text = fmt.tokenizer.decode(ids)
    if separator not in special:
      # A separator that is text, such as a line feed, may be part of others.
      text = text.replace(fmt.tokenizer.decode([separator]), ' ')
    if not text.strip():
      break
    steps.append(text.strip())
    if ended:
      return tuple(steps), True
    ids = []
  return tuple(steps), False

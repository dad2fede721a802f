"""Writes many samples with continuous batching: ids in, sampled ids out.

    jobs -> groups that share a prompt -> prompts read in batches
      -> a slot for each job, refilled when its chain ends -> sampled ids

This is the host's side of sampler.py: it decides which programs run, with one
of a few sizes each. `Generator` (generator.py) calls it and deals with text.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.inference import next_words, sampler
from prm_jax.inference.kept_chains import KeptChains
from prm_jax.inference.packing import bucket
from prm_jax.inference.sampler import SamplingConfig, Slots, Stops
from prm_jax.models import Cache, TransformerConfig, init_cache
from prm_jax.models.cache_shardings import cache_sharding
from prm_jax.models.decoding_params import jit_unstack
from prm_jax.models.prefix_store import slots_for
from prm_jax.runtime.metrics import Heartbeat

CHUNK = 32  # tokens written in every slot before the host refills slots
REFILL = 8  # a chunk ends early once 1 / REFILL of the slots can be refilled
PROMPT_TOKENS = 4096  # prompt tokens read in one call, padding included
SMALLEST_BUCKET = 32
NO_LIMIT = 2**30
# Names of the programs whose first argument is the parameters.
READS_PARAMS = frozenset({'read', 'read_on', 'chunk', 'next'})


class SampleRequest(NamedTuple):
  """Asks for one sample.

  Attributes:
    ids: ids that the sample continues, at least one.
    seed: 64 bits, the only source of its randomness.
    max_steps: separators after which it stops; 0 goes to the chain's end.
    max_tokens: most tokens to write; 0 takes that of the SamplingConfig.
  """

  ids: tuple[int, ...]
  seed: int
  max_steps: int = 0
  max_tokens: int = 0


class SampledTokens(NamedTuple):
  """Holds one sample.

  Attributes:
    tokens: [T] int32, including the token that ended it.
    logprobs: [T] float32 under the model, without temperature and filters.
    prompt_tokens: prompt tokens read for this sample; 0 if another job's
      reading was shared.
    kept: prompt tokens before these that the cache of kept chains held.
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  prompt_tokens: int
  kept: int = 0


@dataclasses.dataclass
class SamplingStats:
  """Counts what a Writer did; tokens / slot_steps is the use of its slots."""

  programs: set[tuple] = dataclasses.field(default_factory=set)
  tokens: int = 0  # written
  prompt_tokens: int = 0  # read
  slot_steps: int = 0  # tokens computed, in free slots too
  seconds: float = 0.0


class Group(NamedTuple):
  """Groups jobs whose ids are all a prefix of one prompt."""

  prompt: tuple[int, ...]
  jobs: list[int]


def group_jobs(jobs: Sequence[SampleRequest]) -> list[Group]:
  """Groups jobs by prompt, longest first; a group's first job has all of it."""
  groups: list[Group] = []
  # In descending order, ids that begin with x come right before x.
  for i in sorted(range(len(jobs)), key=lambda i: (jobs[i].ids, -i))[::-1]:
    ids = jobs[i].ids
    if not groups or groups[-1].prompt[: len(ids)] != ids:
      groups.append(Group(ids, []))
    groups[-1].jobs.append(i)
  return sorted(groups, key=lambda group: -len(group.prompt))


def cache_bucket(size: int) -> int:
  """Rounds a cache's length up to 2^n or 3 * 2^n; attention reads all of it."""
  above = bucket(size, SMALLEST_BUCKET)
  half = 3 * above // 4
  return half if half >= max(size, SMALLEST_BUCKET) else above


def jit_chunk(
  config: TransformerConfig,
  mesh: Mesh,
  sampling: SamplingConfig,
  stops: Stops,
) -> Any:
  """Returns `sampler.sample_chunk` jitted, of params, slots, cache, enough."""
  # Tokens are replicated, so that every process can read all of them.
  whole = NamedSharding(mesh, P())
  split = cache_sharding(config, sampling.slots, mesh)
  return jax.jit(
    functools.partial(
      sampler.sample_chunk,
      config=config,
      sampling=sampling,
      stops=stops,
      length=CHUNK,
    ),
    donate_argnums=2,
    out_shardings=(whole, whole, whole, split),
  )


def jit_resize(config: TransformerConfig, mesh: Mesh, slots: int) -> Any:
  """Returns `sampler.resize` jitted, of a cache and its new length."""
  split = cache_sharding(config, slots, mesh)
  return jax.jit(sampler.resize, static_argnums=1, out_shardings=split)


def jit_read(config: TransformerConfig, spread: bool = False) -> Any:
  """Returns `sampler.read_prompts` jitted, of params and tokens."""
  return jax.jit(
    functools.partial(sampler.read_prompts, config=config, spread=spread)
  )


class Writer:
  """Samples with one model, in many slots at once.

  Args:
    params: backbone parameters as from `init_params`, which are copied into
      another form, or those that `decoding_params.take_over` returned.
    config: the backbone's architecture.
    mesh: devices to sample on.
    sampling: how tokens are drawn, and the number of slots.
    stops: ids that end steps and chains.
    max_length: most tokens of a prompt and its sample together.

  Attributes:
    stats: counts of what was written so far.
    kept: cache of chains that may be continued, or None.

  Raises:
    UserError: the slots do not divide over the mesh, or the kept chains take
      more than half of the device's memory.
  """

  def __init__(
    self,
    params: Any,
    config: TransformerConfig,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: Stops,
    max_length: int,
  ) -> None:
    sampling.check_devices(mesh.shape['replica'] * mesh.shape['fsdp'])
    B = sampling.slots
    self.stats = SamplingStats()
    self._mesh, self.sampling, self.longest = mesh, sampling, max_length
    spread = sampling.spread
    self._unstack: Any = None
    self._decodes = config, mesh, spread
    split = cache_sharding(config, B, mesh)
    jit = functools.partial(jax.jit, out_shardings=split)
    self._programs = {
      'init': jit(functools.partial(init_cache, config, B), static_argnums=0),
      'read': jit_read(config, spread),
      'read_on': jax.jit(
        functools.partial(sampler.read_on, config=config, spread=spread),
        donate_argnums=3,
      ),
      'next': next_words.jit_next(config, mesh, spread),
      'insert': jit(sampler.insert, donate_argnums=0),
      'resize': jit_resize(config, mesh, B),
      'chunk': jit_chunk(config, mesh, sampling, stops),
    }
    self.kept: KeptChains | None = None
    self.set_params(params)
    if sampling.kept:
      kept = slots_for(config, mesh, sampling.kept, max_length, 'sampling.kept')
      self.kept = KeptChains(config, mesh, stops, kept, self.call)
      self._programs |= self.kept.programs

  def set_params(self, params: Any) -> None:
    """Replaces the parameters by others of the same shapes."""
    self.forget()
    self._params = None  # frees them first: both might not fit
    if not isinstance(params['layers'], tuple):
      if self._unstack is None:
        self._unstack = jit_unstack(params, *self._decodes)
      with jax.set_mesh(self._mesh):
        params = self._unstack(params)
    self._params = params

  def write(self, jobs: Sequence[SampleRequest]) -> list[SampledTokens]:
    """Returns every job's sample, in order.

    A job whose ids leave no room in `max_length` gets no tokens.
    """
    began = time.monotonic()
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    found = [SampledTokens(*nothing, 0)] * len(jobs)
    fitting = [i for i, job in enumerate(jobs) if self.room(job) > 0]
    with jax.set_mesh(self._mesh):
      for n, written in _WriteState(self, [jobs[i] for i in fitting]).results():
        found[fitting[n]] = written
    self.stats.tokens += sum(len(sample.tokens) for sample in found)
    self.stats.prompt_tokens += sum(sample.prompt_tokens for sample in found)
    self.stats.seconds += time.monotonic() - began
    return found

  def next_logprobs(self, asked: Sequence[next_words.Asked]) -> np.ndarray:
    """Returns how likely options are to come next; see `next_words.read`."""
    with jax.set_mesh(self._mesh):
      found = next_words.read(asked, self.call)
    self.stats.prompt_tokens += sum(len(ids) for ids, _ in asked)
    return found

  def forget(self) -> None:
    """Empties the cache of kept chains."""
    if self.kept:
      self.kept.forget()

  def room(self, job: SampleRequest) -> int:
    """Returns how many tokens may follow the job's ids; none if it is <= 0."""
    most = job.max_tokens or self.sampling.max_tokens
    return min(most, self.longest - len(job.ids))

  def call(self, name: str, sizes: tuple[int, ...], *arguments: Any) -> Any:
    """Runs a program and records the sizes that it was compiled for."""
    if (name, *sizes) not in self.stats.programs:
      logging.info('sampling: compiling %s %s', name, sizes)
    self.stats.programs.add((name, *sizes))
    if name in READS_PARAMS:
      arguments = (self._params, *arguments)
    return self._programs[name](*arguments)


class _WriteState:
  """Holds what changes during one `Writer.write`."""

  def __init__(self, writer: Writer, jobs: Sequence[SampleRequest]) -> None:
    self.writer, self.jobs = writer, jobs
    groups = group_jobs(jobs)
    # For jobs whose prompt is read: tokens read, and tokens kept before them.
    self.read_for = {group.jobs[0]: (len(group.prompt), 0) for group in groups}
    self.groups = collections.deque(groups)
    # Row of the prompt in self.prompts and index of the job.
    self.ready: collections.deque[tuple[int, int]] = collections.deque()
    self.prompts: Cache | None = None
    self.cache: Cache | None = None
    self.length = 0  # positions of the cache
    B = writer.sampling.slots
    self.slots = Slots(
      *(np.zeros(B, np.int32) for _ in range(4)), np.zeros((B, 2), np.uint32)
    )
    self.holders = np.full(B, -1)  # the job in each slot, -1 if it is free
    self.parts: dict[int, list] = collections.defaultdict(list)

  def results(self) -> Iterator[tuple[int, SampledTokens]]:
    """Yields index and sample of every job, as they end."""
    heartbeat, done = Heartbeat('sampling', len(self.jobs)), 0
    while self.refill():
      for ended in self.chunk():
        done += 1
        yield ended
      heartbeat.at(done)

  def refill(self) -> bool:
    """Gives free slots to jobs; returns whether any slot is in use.

    Prompts of a call are copied into slots before those of the next are read.
    """
    unread = itertools.chain.from_iterable(group.jobs for group in self.groups)
    jobs = itertools.chain((job for _, job in self.ready), unread)
    begun = list(zip(np.flatnonzero(self.holders < 0), jobs, strict=False))
    for slot, job in begun:
      self.begin(slot, job)
    if (self.holders < 0).all():
      return False
    self.fit_cache()
    left = [slot for slot, _ in begun]
    while left:
      if not self.ready:
        self.prompts = None
        self.read_prompts()
      taken, left = left[: len(self.ready)], left[len(self.ready) :]
      rows = [self.ready.popleft()[0] for _ in taken]
      self.insert(self.prompts, rows, taken)
    return True

  def read_prompts(self) -> None:
    """Reads prompts, enough for all slots or as many as fit one call."""
    T = bucket(len(self.groups[0].prompt) - 1, SMALLEST_BUCKET)
    taken: list[Group] = []
    while self.groups and len(self.ready) < self.writer.sampling.slots:
      if taken and bucket(len(taken) + 1, 1) * T > PROMPT_TOKENS:
        break
      group = self.groups.popleft()
      self.ready.extend((len(taken), job) for job in group.jobs)
      taken.append(group)
    if self.writer.kept:
      read = self.writer.kept.read([group.prompt for group in taken])
      self.prompts, known = read
      for group, n in zip(taken, known, strict=True):
        # The last token of a prompt is read when the first is written.
        new = len(group.prompt) - n
        self.read_for[group.jobs[0]] = (0 if n and new == 1 else new), n
      return
    tokens = np.zeros((bucket(len(taken), 1), T), np.int32)
    for row, group in enumerate(taken):
      # The last token of a prompt is read in its slot.
      tokens[row, : len(group.prompt) - 1] = group.prompt[:-1]
    self.prompts = self.writer.call('read', tokens.shape, tokens)

  def begin(self, slot: int, index: int) -> None:
    """Puts a job in a slot."""
    job, slots = self.jobs[index], self.slots
    slots.token[slot] = job.ids[-1]
    slots.position[slot] = len(job.ids) - 1
    slots.tokens_left[slot] = self.writer.room(job)
    slots.steps_left[slot] = job.max_steps or NO_LIMIT
    slots.key[slot] = divmod(job.seed, 1 << 32)
    self.holders[slot] = index

  def fit_cache(self) -> None:
    """Makes the cache as long as the next chunk needs."""
    most = np.minimum(self.slots.tokens_left, CHUNK)
    needed = (self.slots.position + most)[self.holders >= 0].max()
    length = min(cache_bucket(int(needed)), self.writer.longest)
    if self.cache is None:
      self.cache = self.writer.call('init', (length,), length)
    elif length != self.length:
      sizes = self.length, length
      self.cache = self.writer.call('resize', sizes, self.cache, length)
    self.length = length

  def insert(self, prompts: Cache, rows: list[int], taken: list[int]) -> None:
    """Copies rows of prompts into the slots that were taken for them."""
    fill = [0] * (len(self.holders) - len(rows))
    self.cache = self.writer.call(
      'insert',
      (self.length, *prompts.keys[0].shape[::2]),
      self.cache,
      prompts,
      np.int32(rows + fill),
      np.int32([*taken, *fill]),
      np.int32(len(rows)),
    )

  def chunk(self) -> Iterator[tuple[int, SampledTokens]]:
    """Writes some tokens in every slot; yields the samples that ended."""
    B = len(self.holders)
    waiting = self.ready or self.groups
    enough = max(1, B // REFILL) if waiting else B
    tokens, logprobs, slots, self.cache = self.writer.call(
      'chunk', (self.length,), self.slots, self.cache, np.int32(enough)
    )
    # In one transfer, for which the host waits once.
    tokens, logprobs, slots = jax.device_get((tokens, logprobs, slots))
    self.slots = Slots(*map(np.array, slots))
    self.writer.stats.slot_steps += B * int((tokens >= 0).any(0).sum())
    ended, chains = [], []
    for slot in np.flatnonzero(self.holders >= 0):
      now = tokens[slot] >= 0
      job = int(self.holders[slot])
      self.parts[job].append((tokens[slot, now], logprobs[slot, now]))
      if self.slots.tokens_left[slot] == 0:
        self.holders[slot] = -1
        ids, logs = map(np.concatenate, zip(*self.parts.pop(job), strict=True))
        ended.append(
          (job, SampledTokens(ids, logs, *self.read_for.get(job, (0, 0))))
        )
        chains.append((slot, (*self.jobs[job].ids, *ids.tolist())))
    if self.writer.kept:
      self.writer.kept.write(self.cache, chains)
    yield from ended

"""Runs all items of a job, whatever happens to its processes.

Between a job (`label_job`, `sample_job`, `search_job`), which says what an item
is and what becomes of the chains, and the driver. Items are shared out over
processes, what is finished stands in their journals, and the same command does
the rest: items that were never begun, went down with a process, failed for want
of an answer, or were in flight when a model gave up.
"""

import dataclasses
import json
import pathlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference.driver import AT_ONCE, Cost, Ended, Models, Work, drive
from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage
from prm_jax.jobs import journal
from prm_jax.jobs.journal import Journal
from prm_jax.runtime import manifest, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import FIRST_SECONDS, LiveLine, time_left
from prm_jax.runtime.stopping import Stopped, noted
from prm_jax.runtime.workdir import write_json

Log = Callable[[str], None]
LOOK_SECONDS = 1.0  # between two looks at the other processes
REASONS = 10  # why items failed, the most frequent; the ledger has all
LINE_SECONDS = 10.0  # between two lines where there is no terminal
MODELS = ('policy', 'prm')  # what a resumed job has to agree on
USAGE = 'usage'  # folder of a workdir, as `usage.read` takes it


class Price(NamedTuple):
  """US dollars for a million tokens, 0 where nobody is paid."""

  tokens: float = 0.0
  prompt_tokens: float = 0.0

  def of(self, used: Cost | Usage) -> float:
    """US dollars."""
    paid = self.tokens * used.tokens + self.prompt_tokens * used.prompt_tokens
    return paid / 1e6


class Job(NamedTuple):
  """What is to be done.

  Attributes:
    name: for the progress line.
    kind: of the chains that come of it, as in `chain_sets.write`.
    about: what the manifest says of it, beside what it says of every job;
      `data_fingerprint` (of what the items are) and `policy` (the name of who
      answers; `prm`, too, where one is asked) are among it.
    count: how many items there are.
    start: an item's number -> its work.
    counts: what came of each item -> what ledger.json says of the chains.
    models: who answers the work.
    at_once: samples that are asked for between two looks at the job.
    chains: what came of an item -> those of its chains that are written.
    also: writes to the workdir what else came of the items, before the results.
  """

  name: str
  kind: str
  about: Mapping[str, Any]
  count: int
  start: Callable[[int], Work]
  counts: Callable[[Mapping[int, Ended]], Mapping[str, Any]]
  models: Models = Models()
  at_once: int = AT_ONCE
  chains: Callable[[Ended], Sequence[Chain]] = lambda ended: ended.chains
  also: Callable[[pathlib.Path, Mapping[int, Ended]], None] = (
    lambda workdir, items: None
  )


def check(config: Mapping[str, Any]) -> None:
  """Raises UserError for what a config says of the engine."""
  if config['concurrent'] < 1:
    raise UserError(f'concurrent={config["concurrent"]}: expected >= 1')
  for name, dollars in config['price'].items():
    if dollars < 0:
      raise UserError(f'price.{name}={dollars}: expected >= 0')


def total(costs: Sequence[Cost]) -> Cost:
  """The sum."""
  return Cost(*map(sum, zip(*costs, strict=True))) if costs else Cost()


def run(
  job: Job, config: Mapping[str, Any], workdir: pathlib.Path, log: Log
) -> None:
  """Does what is not done yet, this process its share, and writes the results.

  Item i is done by process i mod n. Items that failed for want of an answer are
  tried again.

  Args:
    config: of the job, with `seed`, `name`, `concurrent` (items that a process
      has in flight) and `price`.

  Raises:
    Stopped: by SIGTERM, between two rounds; all that ended is in the journal.
    UserError: the workdir is another job's or damaged, nothing came of any
      item, another process stopped, or a model gave up.
  """
  data = job.about['data_fingerprint']
  processes.check_same(
    'the fingerprint of the data', data, 'give all of them the same files'
  )
  processes.first_alone(
    'claim', lambda: manifest.claim_workdir(workdir, config, data)
  )
  # By all at the same time: the first look at the devices is a meeting.
  about = {**manifest.describe(config), 'name': config['name'], **job.about}
  folder = workdir / 'journal'
  # The config is the workdir's own, and some of it may change.
  asked = {name: job.about[name] for name in MODELS if name in job.about}
  identity = {'input': data, **asked}
  before = list(journal.read(folder, identity))
  tried = journal.latest(before)
  done = {i for i, ended in tried.items() if not ended.open}
  todo = [i for i in range(job.count) if i not in done]
  # Nobody may begin before all have seen what there is to do.
  processes.check_same(
    'the number of open items',
    str(len(todo)),
    'wait until the file system shows the same to all, and start them again',
  )
  if todo:
    again = len(tried) - len(done)
    more = f', {again:,} of them once more' if again else ''
    log(f'{job.name}: {len(todo):,} of {job.count:,} to do{more}')
    mine = [i for i in todo if i % processes.count() == processes.index()]
    path = folder / f'process-{processes.index()}.jsonl'
    with Journal(path, identity) as lines:
      _work(job, mine, lines, config)
    processes.wait_for_all('items')
  processes.first_alone(
    'results',
    lambda: _write_results(
      job, config, workdir, about, list(journal.read(folder, identity)), log
    ),
  )


def _work(
  job: Job, mine: Sequence[int], lines: Journal, config: Mapping[str, Any]
) -> None:
  """This process's share of what is to do."""
  progress = _Progress(job.name, len(mine), Price(**config['price']))
  looked = time.monotonic()

  def look_up() -> None:
    nonlocal looked
    progress.look()
    if asked():
      progress.break_line()
      raise Stopped(f'stopped with {progress.done:,} of {len(mine):,} done')
    if time.monotonic() - looked > LOOK_SECONDS:
      looked = time.monotonic()
      if gone := processes.departed():
        raise UserError(gone)

  with noted(signal.SIGTERM) as asked:
    for ended in drive(
      mine,
      job.start,
      job.models,
      config['concurrent'],
      look_up,
      job.at_once,
    ):
      lines.write(ended)
      if not ended.interrupted:  # it will be done once more
        progress.show(ended)
      look_up()


def _write_results(
  job: Job,
  config: Mapping[str, Any],
  workdir: pathlib.Path,
  about: Mapping[str, Any],
  written: Sequence[Ended],
  log: Log,
) -> None:
  """The chains in the order of the items, and what they took.

  Where that stands in results.json it stays, with the manifest of those who
  did it; what else was deleted or damaged since is made again.
  """
  items = journal.latest(written)
  # Failures and earlier attempts were paid for, too.
  spent = total([ended.cost for ended in written])
  failed = Counter(ended.failed for ended in items.values() if ended.failed)
  partly = sum(e.cost.lost > 0 and not e.failed for e in items.values())
  told = {
    **job.counts(items),
    'failed': dict(failed.most_common()),
    'partly_answered': partly,
    **spent._asdict(),
  }
  paid: Cost | Usage = spent
  if (workdir / USAGE).exists():
    # An item that is tried again gets most answers from disk, for nothing.
    paid = usage.read(workdir / USAGE)
    told['server'] = dataclasses.asdict(paid)
  told['money'] = Price(**config['price']).of(paid)
  path = workdir / 'results.json'
  there = _read_results(path)
  write_json(workdir / 'ledger.json', told)
  if there.get('results') != told:
    for reason, count in failed.most_common(REASONS):
      log(f'{job.name}: {count:,} failed: {reason}')
  chains = [chain for ended in items.values() for chain in job.chains(ended)]
  if not chains:
    raise UserError(
      f'{job.name}: not one chain came of {len(items):,} items; see '
      f'{workdir / "ledger.json"} for the reasons'
    )
  dataset = chain_sets.write(workdir, job.kind, chains)
  job.also(workdir, items)
  if there == {'dataset': dataset, 'results': told}:
    log(f'{job.name}: all is done; the results are in {workdir}')
    return
  write_json(path, {'manifest': about, 'dataset': dataset, 'results': told})
  if partly:
    log(f'{job.name}: {partly:,} done without some of the answers they wanted')
  again = ''
  if count := sum(ended.open for ended in items.values()):
    again = f'; the same command tries again {count:,} that lacked answers'
  log(f'{job.name}: {len(chains):,} chains in {workdir / "data"}{again}')


def _read_results(path: pathlib.Path) -> dict[str, Any]:
  """What stands in results.json, without its manifest; {} where it is broken.

  All of it can be made again from the journal.
  """
  try:
    there = json.loads(path.read_bytes())
    return {name: there[name] for name in ('dataset', 'results')}
  except (FileNotFoundError, ValueError, LookupError, TypeError):
    return {}


class _Progress(LiveLine):
  """How far process 0 is with its share, what it took, and the time left."""

  def __init__(self, name: str, count: int, price: Price) -> None:
    super().__init__(processes.is_first())
    self._name, self._count, self._price = name, count, price
    self._shown_at, self._told = 0.0, False
    self.done, self._failed, self._cost = 0, 0, Cost()

  def show(self, ended: Ended) -> None:
    """Counts an item, and writes the line where it is time to."""
    self.done += 1
    self._failed += bool(ended.failed)
    self._cost = total([self._cost, ended.cost])
    last = self.done == self._count
    every = 0.1 if self.live else LINE_SECONDS
    if last or self.seconds - self._shown_at >= every:
      self._tell(last)

  def look(self) -> None:
    """Writes the line where items take so long that none ends in time."""
    first = not self._told and self.seconds >= FIRST_SECONDS
    if self.is_due() or first:
      self._tell()

  def _tell(self, last: bool = False) -> None:
    self._shown_at, self._told = self.seconds, True
    parts = [f'{self._name} {self.done:,}/{self._count:,}']
    if self._failed:
      parts.append(f'{self._failed:,} failed')
    if self._cost.calls:
      parts += [f'{self._cost.calls:,} calls', f'{self._cost.tokens:,} tokens']
    if self._cost.scored_tokens:
      parts.append(f'{self._cost.scored_tokens:,} PRM tokens')
    if any(self._price):
      parts.append(f'${self._price.of(self._cost):,.2f}')
    if self.done:  # before, nobody knows
      left = self._count - self.done
      parts.append(time_left(self.done, left, self.seconds))
    self.write('  '.join(parts), last)

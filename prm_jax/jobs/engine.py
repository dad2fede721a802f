"""Runs all items of a job, and resumes after any interruption.

    ItemJob -> items shared out over processes -> driver -> journal -> results

A job (`label.py`, `sample.py`, `search.py`, `evaluate.py`) defines its items
and makes chains from them. Every process keeps its finished items in a journal.
The same command resumes the job: it does the items that were never begun, were
lost with a process, lacked answers, or were in flight when a model gave up.
"""

import dataclasses
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference.driver import AskedModels, Cost, Ended, Work, drive
from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage
from prm_jax.jobs import journal
from prm_jax.jobs.journal import Journal
from prm_jax.jobs.policies import PRM_USAGE, USAGE
from prm_jax.jobs.settings.items import ItemSettings, PriceConfig
from prm_jax.runtime import manifest, paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import FIRST_SECONDS, LiveLine, time_left
from prm_jax.runtime.stopping import Stopped, catch_signal
from prm_jax.runtime.workdir import (
  Workdir,
  keep_or_write_results,
  read_content,
  write_json,
)

Log = Callable[[str], None]
LOOK_SECONDS = 1.0  # between two looks at the other processes
REASONS = 10  # most frequent failures that are logged; the ledger has all
LINE_SECONDS = 10.0  # between two lines where there is no terminal
MODELS = ('policy', 'prm')  # what a resumed job has to agree on


class ItemJob(NamedTuple):
  """Says what to do with every item.

  Attributes:
    name: shown in the progress line.
    kind: kind of the chains, as in `chain_sets.write`.
    about: the job's own part of the manifest: `data_fingerprint` (hash of the
      items), `policy` (the name of the model that answers) and, if there is
      one, `prm`.
    count: number of items.
    start: makes the work of an item from its number.
    counts: makes the counts in ledger.json from the results of the items.
    chains: returns those chains of an item that are written.
    write_more: writes other outputs to the workdir, before the results.
  """

  name: str
  kind: str
  about: Mapping[str, Any]
  count: int
  start: Callable[[int], Work]
  counts: Callable[[Mapping[int, Ended]], Mapping[str, Any]]
  models: AskedModels = AskedModels()
  chains: Callable[[Ended], Sequence[Chain]] = lambda ended: ended.chains
  write_more: Callable[[Workdir, Mapping[int, Ended]], None] = (
    lambda workdir, items: None
  )


class Records(NamedTuple):
  """Reads the journals of all processes of one job."""

  folder: paths.Path
  identity: Mapping[str, str]

  def read(self) -> list[Ended]:
    return list(journal.read(self.folder, self.identity))

  def open_own(self) -> Journal:
    """Opens this process's own journal to write more."""
    path = self.folder / f'process-{processes.index()}.jsonl'
    return Journal(path, self.identity)


def run(
  job: ItemJob, settings: ItemSettings, workdir: Workdir, log: Log
) -> None:
  """Does the open items, see `do_all`, and writes the results.

  Raises:
    UserError: as `do_all`, or all items failed.
  """
  about, records = do_all(job, settings, workdir, log)
  processes.first_alone(
    'results', write_results, job, settings, workdir, about, records, log
  )


def do_all(
  job: ItemJob, settings: ItemSettings, workdir: Workdir, log: Log
) -> tuple[dict[str, Any], Records]:
  """Does this process's share of the open items.

  Process i mod n does item i. Items that lacked answers are tried again.

  Returns:
    The manifest, and the records of all processes, who are all done.

  Raises:
    Stopped: by SIGTERM, between two rounds; finished items are in the journal.
    UserError: the workdir is another job's or damaged, another process stopped,
      or a model gave up.
  """
  data = job.about['data_fingerprint']
  # The config is the workdir's own, and some of it may change.
  asked = {name: job.about[name] for name in MODELS if name in job.about}
  asked = {'input': data, **asked}
  processes.check_same(
    'what the job reads and asks',
    json.dumps(asked, sort_keys=True),
    'give all processes the same files',
  )
  workdir.claim(data)
  # Called in every process: JAX opens the devices here, and waits for all
  # processes to do so.
  about = manifest.describe(settings.seed) | {
    'name': settings.name,
    **job.about,
  }
  records = Records(workdir / 'journal', asked)
  if todo := find_open_items(job, records, log):
    mine = [i for i in todo if i % processes.count() == processes.index()]
    with records.open_own() as lines:
      do_items(job, mine, lines, settings)
    processes.wait_for_all('items')
  return about, records


def find_open_items(job: ItemJob, records: Records, log: Log) -> list[int]:
  """Returns the numbers of the items to do, the same in every process.

  Raises:
    UserError: the processes read different journals.
  """
  tried = journal.latest(records.read())
  done = {i for i, ended in tried.items() if not ended.open}
  todo = [i for i in range(job.count) if i not in done]
  # No process may write before all have read what there is to do.
  processes.check_same(
    'the number of open items',
    str(len(todo)),
    'wait until the file system shows the same to all, and start them again',
  )
  if todo:
    again = len(tried) - len(done)
    more = f', {again:,} of them once more' if again else ''
    log(f'{job.name}: {len(todo):,} of {job.count:,} to do{more}')
  return todo


def do_items(
  job: ItemJob, mine: Sequence[int], lines: Journal, settings: ItemSettings
) -> None:
  """Does some items and writes each to the journal when it ends.

  Raises:
    Stopped: by SIGTERM.
    UserError: another process stopped, or a model gave up.
  """
  progress = _Progress(job.name, len(mine), settings.price)
  looked = time.monotonic()

  def look_up() -> None:
    nonlocal looked
    progress.look()
    if must_stop():
      progress.break_line()
      raise Stopped(f'stopped with {progress.done:,} of {len(mine):,} done')
    if time.monotonic() - looked > LOOK_SECONDS:
      looked = time.monotonic()
      if gone := processes.departed():
        raise UserError(gone)

  with catch_signal(signal.SIGTERM) as must_stop:
    for ended in drive(
      mine,
      job.start,
      job.models,
      settings.concurrent,
      look_up,
      settings.policy.samples_per_round,
    ):
      lines.write(ended)
      if not ended.interrupted:  # it will be done once more
        progress.show(ended)
      look_up()


def write_results(
  job: ItemJob,
  settings: ItemSettings,
  workdir: Workdir,
  about: Mapping[str, Any],
  records: Records,
  log: Log,
) -> None:
  """Writes the chains in the order of the items, the ledger and the results.

  A results.json with the same content is kept, and with it the manifest of the
  processes that did the work. Other deleted or damaged files are written again.

  Raises:
    UserError: no item gave a chain.
  """
  written = records.read()
  items = journal.latest(written)
  if len(items) < job.count:
    raise UserError(
      f'{job.name}: {len(items):,} of {job.count:,} items are in the journals '
      'that process 0 sees; run the same command again'
    )
  ledger = make_ledger(job, written, settings.price, workdir)
  there = read_content(workdir.path)
  write_json(workdir / 'ledger.json', ledger)
  if there.get('results') != ledger:
    for reason, count in list(ledger['failed'].items())[:REASONS]:
      log(f'{job.name}: {count:,} failed: {reason}')
  chains = [chain for ended in items.values() for chain in job.chains(ended)]
  if not chains:
    raise UserError(
      f'{job.name}: none of {len(items):,} items gave a chain; see '
      f'{workdir / "ledger.json"} for the reasons'
    )
  dataset = chain_sets.write(workdir.path, job.kind, chains)
  job.write_more(workdir, items)
  content = {'dataset': dataset, 'results': ledger}
  if not keep_or_write_results(workdir.path, about, content):
    log(f'{job.name}: all is done; the results are in {workdir}')
    return
  if partly := ledger['partly_answered']:
    log(f'{job.name}: {partly:,} done without some of their answers')
  again = ''
  if count := sum(ended.open for ended in items.values()):
    again = f'; the same command tries again {count:,} that lacked answers'
  log(f'{job.name}: {len(chains):,} chains in {workdir / "data"}{again}')


def make_ledger(
  job: ItemJob, written: Sequence[Ended], price: PriceConfig, workdir: Workdir
) -> dict[str, Any]:
  """Returns the content of ledger.json: counts, failures, costs and money.

  Args:
    written: every attempt at every item; failures and earlier attempts cost
      money, too.
  """
  items = journal.latest(written)
  spent = add_up([ended.cost for ended in written])
  failed = Counter(ended.failed for ended in items.values() if ended.failed)
  ledger = {
    **job.counts(items),
    'failed': dict(failed.most_common()),
    'partly_answered': sum(
      ended.cost.lost > 0 and not ended.failed for ended in items.values()
    ),
    **spent._asdict(),
  }
  paid: Cost | Usage = spent
  if (workdir / USAGE).exists():
    # An item that is tried again reads most answers from disk, for nothing.
    paid = usage.read(workdir / USAGE)
    ledger['server'] = dataclasses.asdict(paid)
  ledger['money'] = price.dollars(paid)
  if (workdir / PRM_USAGE).exists():
    asked = usage.read(workdir / PRM_USAGE)
    ledger['prm_server'] = dataclasses.asdict(asked)
    ledger['money'] += price.dollars(asked)
  return ledger


def add_up(costs: Sequence[Cost]) -> Cost:
  """Sums the costs field by field."""
  return Cost(*map(sum, zip(*costs, strict=True))) if costs else Cost()


class _Progress(LiveLine):
  """Shows process 0's progress on its share, the cost, and the time left."""

  def __init__(self, name: str, count: int, price: PriceConfig) -> None:
    super().__init__(processes.is_first())
    self._name, self._count, self._price = name, count, price
    self._shown_at, self._has_shown = 0.0, False
    self.done, self._failed, self._cost = 0, 0, Cost()

  def show(self, ended: Ended) -> None:
    """Counts an item, and prints the line if one is due."""
    self.done += 1
    self._failed += bool(ended.failed)
    self._cost = add_up([self._cost, ended.cost])
    last = self.done == self._count
    every = 0.1 if self.live else LINE_SECONDS
    if last or self.seconds - self._shown_at >= every:
      self._write(last)

  def look(self) -> None:
    """Prints a line if one is due while no item ends."""
    first = not self._has_shown and self.seconds >= FIRST_SECONDS
    if self.is_due() or first:
      self._write()

  def _write(self, last: bool = False) -> None:
    self._shown_at, self._has_shown = self.seconds, True
    parts = [f'{self._name} {self.done:,}/{self._count:,}']
    if self._failed:
      parts.append(f'{self._failed:,} failed')
    if self._cost.calls:
      parts += [f'{self._cost.calls:,} calls', f'{self._cost.tokens:,} tokens']
    if self._cost.scored_tokens:
      parts.append(f'{self._cost.scored_tokens:,} PRM tokens')
    # What a PRM's server is paid is only in the ledger.
    if dollars := self._price.dollars(self._cost):
      parts.append(f'${dollars:,.2f}')
    if self.done:  # before that the rate is unknown
      left = self._count - self.done
      parts.append(time_left(self.done, left, self.seconds))
    self.write('  '.join(parts), last)

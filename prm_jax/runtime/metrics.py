"""Writes metrics to files and shows progress on the terminal.

MetricWriter writes `metrics.jsonl`, one JSON object with a `step` per line.
TensorBoard and Weights & Biases get the same numbers if the config asks for
them and they are installed. Progress and Heartbeat tell a person how far a job
is.
"""

import contextlib
import json
import math
import pathlib
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError

REWRITE_SECONDS = 30  # shortest time between two writes of a file at gs://
LINE_SECONDS = 30.0  # longest time between two lines of progress
FIRST_SECONDS = 5.0  # longest time until the first line of a job
Item = TypeVar('Item')


def _cut_after(path: paths.Path, keep_through: int) -> None:
  """Removes the lines of steps after the one from which a run resumes."""
  if not path.exists():
    return
  kept = []
  for line in paths.read_lines(path):
    try:
      kept_step = json.loads(line)['step'] <= keep_through
    except (ValueError, LookupError, TypeError, RecursionError):
      continue  # a killed process left it incomplete, or the disk broke it
    if kept_step:
      kept.append(line + b'\n')
  paths.write_bytes(path, b''.join(kept))


class _ObjectLines:
  """Appends lines to a text file at gs://, where objects are written whole.

  All lines are kept in memory and written again: at `flush`, and otherwise at
  most every REWRITE_SECONDS, so that not every line waits for the network.
  """

  def __init__(self, path: paths.Path) -> None:
    self._path = path
    self._text = path.read_text() if path.exists() else ''
    self._unwritten, self._written_at = False, -math.inf

  def append(self, line: str) -> None:
    self._text += line
    self._unwritten = True
    if time.monotonic() - self._written_at > REWRITE_SECONDS:
      self.flush()

  def flush(self) -> None:
    if self._unwritten:
      paths.write_text(self._path, self._text)
      self._unwritten, self._written_at = False, time.monotonic()

  def close(self) -> None:
    self.flush()


class _DiskLines:
  """Appends lines to a text file on disk, without buffering."""

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self._file = path, path.open('ab', buffering=0)

  def append(self, line: str) -> None:
    paths.write_all(self._file, line.encode(), self._path)

  def flush(self) -> None:
    """Does nothing, as no line is buffered."""

  def close(self) -> None:
    self._file.close()


class MetricWriter:
  """Appends metrics to metrics.jsonl, TensorBoard and Weights & Biases.

  Args:
    workdir: the folder of metrics.jsonl.
    start_step: the step from which the run resumes; lines of later steps are
      removed.
    tensorboard: whether to write TensorBoard events (needs `tensorboardX`).
    wandb_project: Weights & Biases project to log to; '' for none.
    writes: False writes nothing; for all processes but the first.
  """

  def __init__(
    self,
    workdir: paths.Path,
    start_step: int,
    tensorboard: bool = False,
    wandb_project: str = '',
    writes: bool = True,
  ) -> None:
    self._sinks, self._closers = [], []
    self._lines = None
    if not writes:
      return
    path = workdir / 'metrics.jsonl'
    _cut_after(path, start_step)
    remote = paths.is_remote(path)
    self._lines = _ObjectLines(path) if remote else _DiskLines(path)
    if tensorboard:
      try:
        import tensorboardX  # noqa: PLC0415
      except ImportError as error:
        raise UserError(
          'metrics.tensorboard is set: pip install tensorboardX'
        ) from error
      # TensorBoard drops what the run that was interrupted wrote further.
      board = tensorboardX.SummaryWriter(
        str(workdir / 'tensorboard'), purge_step=max(start_step + 1, 0)
      )
      self._closers.append(board.close)
      self._sinks.append(
        lambda step, values: [
          board.add_scalar(name, value, step) for name, value in values.items()
        ]
      )
    if wandb_project:
      try:
        import wandb  # noqa: PLC0415
      except ImportError as error:
        raise UserError(
          'metrics.wandb_project is set: pip install wandb'
        ) from error
      local = paths.machine_folder('wandb') if remote else workdir
      local.mkdir(parents=True, exist_ok=True)
      name = workdir / 'wandb_run.txt'
      if not name.exists():
        paths.write_text(name, secrets.token_hex(8))
      run = wandb.init(
        project=wandb_project,
        dir=str(local),
        id=paths.read_text(name),
        resume='allow',
      )
      self._sinks.append(lambda step, values: run.log(values, step=step))
      self._closers.append(run.finish)

  def write(self, step: int, values: dict[str, float]) -> None:
    """Writes the metrics of one step."""
    if self._lines:
      self._lines.append(json.dumps({'step': step, **values}) + '\n')
    for sink in self._sinks:
      sink(step, values)

  def flush(self) -> None:
    """Writes all lines to the file before it returns."""
    if self._lines:
      self._lines.flush()

  def close(self) -> None:
    if self._lines:
      self._lines.close()
    for close in self._closers:
      close()


def _print(line: str, last: bool = False) -> None:
  """Prints a line that in a terminal the next one overwrites."""
  if sys.stderr.isatty():
    end = '\n' if last else ''
    print(f'\r\x1b[2K{line}', end=end, file=sys.stderr, flush=True)
  else:
    print(line, file=sys.stderr, flush=True)


class Console:
  """Keeps the time of the last line of progress.

  Loops are nested: an RL update samples, scores and learns. A line from any of
  them shows that the job is alive, so all of them share one Console.

  Attributes:
    clock: returns seconds, like time.monotonic.
    every: longest time between two lines in seconds.
    last_line: the last line of progress, to be repeated; '' for none.
    last_line_at: its time.
  """

  def __init__(
    self,
    clock: Callable[[], float] = time.monotonic,
    every: float = LINE_SECONDS,
  ) -> None:
    self.clock, self.every = clock, every
    self.last_line, self.last_line_at = '', clock()

  @contextlib.contextmanager
  def keep_alive(self, name: str) -> Iterator[None]:
    """Repeats the last line while an iteration takes longer than `every`.

    A long step or a program that is compiled prints nothing by itself.

    Args:
      name: what the line says of a job that has not printed any.
    """
    ended = threading.Event()

    def watch() -> None:
      said_at = self.clock()
      while not ended.wait(min(1.0, self.every / 4)):
        now, quiet_since = self.clock(), self.last_line_at
        if now - max(said_at, quiet_since) >= self.every:
          said_at = now
          waited = minutes(now - quiet_since)
          _print(f'{self.last_line or name}  (nothing new for {waited})')

    watcher = threading.Thread(target=watch, name='keep_alive', daemon=True)
    watcher.start()
    try:
      yield
    finally:
      ended.set()
      watcher.join()


CONSOLE = Console()


class LiveLine:
  """Shows how far a job is, in one line that a terminal overwrites.

  Args:
    shown: False prints nothing; for all processes but the first.

  Attributes:
    repeats: whether `Console.keep_alive` may repeat its lines.
  """

  repeats = True

  def __init__(self, shown: bool = True, console: Console = CONSOLE) -> None:
    self._shown, self._console = shown, console
    self.live = shown and sys.stderr.isatty()
    self._began = self._asked = console.clock()

  @property
  def seconds(self) -> float:
    """Returns the seconds since this line began."""
    return self._console.clock() - self._began

  def is_due(self) -> bool:
    """Says whether it is time for a line; to be called in every iteration.

    The next iteration is assumed to take as long as this one, so a line comes
    an iteration early rather than late.
    """
    now = self._console.clock()
    iteration, self._asked = now - self._asked, now
    return now - self._console.last_line_at + iteration > self._console.every

  def write(self, line: str, last: bool = False) -> None:
    """Prints a line in place of the one before; the last one stays."""
    self._console.last_line_at = self._console.clock()
    self._console.last_line = line if self.repeats and not last else ''
    if self._shown:
      _print(line, last)

  def break_line(self) -> None:
    """Ends the live line, so that other text can follow."""
    if self.live:
      print(file=sys.stderr)


def minutes(seconds: float) -> str:
  """Returns 'm:ss'."""
  return f'{round(seconds) // 60}:{round(seconds) % 60:02}'


def time_left(done: int, left: int, seconds: float) -> str:
  """Returns 'm:ss left', at the rate of `done` items in `seconds`."""
  return f'{minutes(left * seconds / max(done, 1))} left'


class Heartbeat(LiveLine):
  """Shows how far a part of a job is, but only if it takes long.

  Args:
    what: the first words of the line, such as 'scoring chains'.
    count: total number of items; 0 if unknown.
  """

  repeats = False  # what follows it may be something else

  def __init__(
    self, what: str, count: int = 0, console: Console | None = None
  ) -> None:
    # All processes do the same work, and the first prints for all.
    super().__init__(console=console or CONSOLE)
    self._what, self._count = what, count

  def at(self, done: int) -> None:
    """Prints a line if one is due; to be called in every iteration."""
    if not self.is_due() or not processes.is_first():
      return
    if not self._count:
      self.write(f'{self._what}: {done:,}')
      return
    left = time_left(done, self._count - done, self.seconds)
    self.write(
      f'{self._what}: {done:,}/{self._count:,}' + (f'  {left}' if done else '')
    )

  def over(self, items: Iterable[Item]) -> Iterator[Item]:
    """Iterates over items and prints a line whenever one is due."""
    for done, item in enumerate(items):
      self.at(done)
      yield item


class Progress(LiveLine):
  """Shows the progress of training: step, loss, tokens per second, time left.

  Outside of a terminal it prints about 20 lines per run, and more if these are
  too far apart: the first line within FIRST_SECONDS, each later one within
  `Console.every`.

  Args:
    shown_metrics: names of the metrics in the line; it leaves out those that a
      step does not have.

  Attributes:
    last_step: the step of the last line.
  """

  def __init__(
    self,
    name: str,
    start_step: int,
    total_steps: int,
    shown: bool = True,
    shown_metrics: Sequence[str] = ('loss',),
    console: Console = CONSOLE,
  ) -> None:
    super().__init__(shown, console)
    self._metrics = shown_metrics
    self._name, self._start, self._total = name, start_step, total_steps
    self._every = max(1, total_steps // 20)
    self.last_step = start_step

  def is_due(self) -> bool:
    first = self.last_step == self._start and self.seconds >= FIRST_SECONDS
    return super().is_due() or first

  def show(self, step: int, values: Mapping[str, Any]) -> None:
    """Prints a line if one is due by the number of steps or by the clock."""
    counted = step - self.last_step >= self._every or step == self._total
    if self.is_due() or self.live or counted:
      self.print_step(step, values)

  def print_step(self, step: int, values: Mapping[str, Any]) -> None:
    """Prints a line with these values."""
    self.last_step = step
    left = time_left(step - self._start, self._total - step, self.seconds)
    metrics = '  '.join(
      f'{name} {values[name]:.4f}' for name in self._metrics if name in values
    )
    speed = f'{values["tokens_per_second"]:,.0f} tokens/s'
    if (ratio := values.get('tokens_per_unique_token', 1.0)) > 1.0:
      unique = values['unique_tokens_per_second']
      speed += f' ({unique:,.0f} unique, {ratio:.2f}x)'
    if flat := values.get('flat_tokens'):
      computed = values['unique_tokens']
      speed += f' (trained on {flat:,.0f}, {computed:,.0f} unique)'
    self.write(
      f'{self._name} step {step:,}/{self._total:,}  {metrics}  {speed}  {left}',
      step == self._total,
    )

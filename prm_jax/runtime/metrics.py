"""Numbers that leave the loop: metrics.jsonl always, lines to read.

`metrics.jsonl` has one object a line with `step` in each. TensorBoard and
Weights & Biases get the same numbers where the config asks for them and they
are installed.
"""

import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError

REWRITE_SECONDS = 30
LINE_SECONDS = 30.0  # between two lines of progress, at most
FIRST_SECONDS = 5.0  # until the first line of a job
Item = TypeVar('Item')


def _cut_after(path: paths.Path, keep_through: int) -> None:
  """Cuts what a run wrote after the checkpoint that it now goes on from."""
  if not path.exists():
    return
  kept = []
  for line in paths.read_lines(path):
    try:
      step = json.loads(line)['step']
    except (ValueError, LookupError, TypeError):
      break  # the line that a killed process was writing
    if step <= keep_through:
      kept.append(line + b'\n')
  paths.write_bytes(path, b''.join(kept))


class _ObjectLines:
  """A text file at gs://, where objects are written whole and never appended.

  The lines are kept here and written all again: at most every REWRITE_SECONDS,
  or a run would wait for the network at every line, and when asked.
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
  """A text file on disk; a line is there as soon as it is appended."""

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self._file = path, path.open('ab', buffering=0)

  def append(self, line: str) -> None:
    paths.write_all(self._file, line.encode(), self._path)

  def flush(self) -> None:
    """Nothing waits."""

  def close(self) -> None:
    self._file.close()


class MetricWriter:
  """Appends metrics and shows progress.

  Args:
    workdir: where metrics.jsonl goes on.
    start_step: the step to go on from; later lines of an earlier run go.
    tensorboard: also write TensorBoard events (needs `tensorboardX`).
    wandb_project: also log to this Weights & Biases project, '' for not.
    writes: False keeps silent, beside the process that does write.
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
      board = tensorboardX.SummaryWriter(str(workdir / 'tensorboard'))
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
      run = wandb.init(project=wandb_project, dir=str(local), resume='allow')
      self._sinks.append(lambda step, values: run.log(values, step=step))
      self._closers.append(run.finish)

  def write(self, step: int, values: dict[str, float]) -> None:
    """One line of numbers."""
    if self._lines:
      self._lines.append(json.dumps({'step': step, **values}) + '\n')
    for sink in self._sinks:
      sink(step, values)

  def flush(self) -> None:
    """Nothing is lost of what was written when this returns."""
    if self._lines:
      self._lines.flush()

  def close(self) -> None:
    if self._lines:
      self._lines.close()
    for close in self._closers:
      close()


class Console:
  """Where progress is told, and when that was last.

  Loops stand inside each other: an update of RL samples, scores and learns. A
  line of any of them says that the job is alive, so all of them share one.

  Attributes:
    clock: seconds, as time.monotonic.
    every: seconds between two lines, at most, but for a single turn of a loop
      that takes longer.
    told_at: when the last line came.
  """

  def __init__(
    self,
    clock: Callable[[], float] = time.monotonic,
    every: float = LINE_SECONDS,
  ) -> None:
    self.clock, self.every = clock, every
    self.told_at = clock()


CONSOLE = Console()


class LiveLine:
  """A line that says how far a job is; on a terminal it rewrites itself.

  Args:
    shown: False says nothing, beside the process that does.
  """

  def __init__(self, shown: bool = True, console: Console = CONSOLE) -> None:
    self._shown, self._console = shown, console
    self.live = shown and sys.stderr.isatty()
    self._began = self._asked = console.clock()

  @property
  def seconds(self) -> float:
    """Since it began."""
    return self._console.clock() - self._began

  def is_due(self) -> bool:
    """Whether a line has to come by time; asked at every turn of a loop.

    It comes a turn early rather than late: the next is taken to be as long.
    """
    now = self._console.clock()
    turn, self._asked = now - self._asked, now
    return now - self._console.told_at + turn > self._console.every

  def write(self, line: str, last: bool = False) -> None:
    """Shows a line in place of the one before, which the last one ends."""
    self._console.told_at = self._console.clock()
    if self.live:
      end = '\n' if last else ''
      print(f'\r\x1b[2K{line}', end=end, file=sys.stderr, flush=True)
    elif self._shown:
      print(line, file=sys.stderr, flush=True)

  def break_line(self) -> None:
    """Leaves the live line as it stands, so that other text can follow."""
    if self.live:
      print(file=sys.stderr)


def time_left(done: int, left: int, seconds: float) -> str:
  """`m:ss left`, where so much was done in so many seconds."""
  seconds = round(left * seconds / max(done, 1))
  return f'{seconds // 60}:{seconds % 60:02} left'


class Heartbeat(LiveLine):
  """Says how far a part of a job is, where it takes long; else nothing.

  Args:
    what: is done.
    count: how much there is to do; 0: nobody knows.
  """

  def __init__(
    self, what: str, count: int = 0, console: Console | None = None
  ) -> None:
    # The other processes do the same; the first one talks for all.
    super().__init__(console=console or CONSOLE)
    self._what, self._count = what, count

  def at(self, done: int) -> None:
    """To be called at every turn of the loop that does the work."""
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
    """The items, each of them a turn."""
    for done, item in enumerate(items):
      self.at(done)
      yield item


class Progress(LiveLine):
  """The live line of training: step, loss, tokens per second, time left.

  Not on a terminal it prints about 20 lines a run, and more by time: the first
  one soon, and none later than `Console.every` after another.

  Args:
    said: metrics that are shown in place of the loss.

  Attributes:
    told: the step of the last line.
  """

  def __init__(
    self,
    name: str,
    start_step: int,
    total_steps: int,
    shown: bool = True,
    said: Sequence[str] = ('loss',),
    console: Console = CONSOLE,
  ) -> None:
    super().__init__(shown, console)
    self._said = said
    self._name, self._start, self._total = name, start_step, total_steps
    self._every = max(1, total_steps // 20)
    self.told = start_step

  def is_due(self) -> bool:
    first = self.told == self._start and self.seconds >= FIRST_SECONDS
    return super().is_due() or first

  def show(self, step: int, values: Mapping[str, Any]) -> None:
    """A line, if it is time for one by number of steps or by the clock."""
    counted = step - self.told >= self._every or step == self._total
    if self.is_due() or self.live or counted:
      self.tell(step, values)

  def tell(self, step: int, values: Mapping[str, Any]) -> None:
    """A line, of these values."""
    self.told = step
    left = time_left(step - self._start, self._total - step, self.seconds)
    said = '  '.join(f'{name} {values[name]:.4f}' for name in self._said)
    self.write(
      f'{self._name} step {step:,}/{self._total:,}  {said}  '
      f'{values["tokens_per_second"]:,.0f} tokens/s  {left}',
      step == self._total,
    )

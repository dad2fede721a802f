"""Numbers that leave the loop: metrics.jsonl always, a live line to read.

`metrics.jsonl` has one object a line with `step` in each. TensorBoard and
Weights & Biases get the same numbers where the config asks for them and they
are installed.
"""

import json
import math
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from prm_jax import paths
from prm_jax.errors import UserError

REWRITE_SECONDS = 30


def _cut_after(path: paths.Path, keep_through: int) -> None:
  """Cuts what a run wrote after the checkpoint that it now goes on from."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    try:
      step = json.loads(line)['step']
    except (json.JSONDecodeError, KeyError):
      break  # the line that a killed process was writing
    if step <= keep_through:
      kept.append(line + '\n')
  paths.write_text(path, ''.join(kept))


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
    self._file = path.open('a')

  def append(self, line: str) -> None:
    self._file.write(line)
    self._file.flush()

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


class LiveLine:
  """A line that says how far a job is; on a terminal it rewrites itself.

  Args:
    shown: False says nothing, beside the process that does.
  """

  def __init__(self, shown: bool = True) -> None:
    self._shown = shown
    self.live = shown and sys.stderr.isatty()

  def write(self, line: str, last: bool = False) -> None:
    """Shows a line in place of the one before, which the last one ends."""
    if self.live:
      end = '\n' if last else ''
      print(f'\r\x1b[2K{line}', end=end, file=sys.stderr, flush=True)
    elif self._shown:
      print(line, file=sys.stderr, flush=True)

  def break_line(self) -> None:
    """Leaves the live line as it stands, so that other text can follow."""
    if self.live:
      print(file=sys.stderr)


def time_left(done: int, left: int, began: float) -> str:
  """`m:ss left`, from time.monotonic() when nothing was done."""
  seconds = round(left * (time.monotonic() - began) / max(done, 1))
  return f'{seconds // 60}:{seconds % 60:02} left'


class Progress(LiveLine):
  """The live line of training: step, loss, tokens per second, time left.

  Not on a terminal it prints about 20 lines a run.

  Args:
    said: metrics that are shown in place of the loss.
  """

  def __init__(
    self,
    name: str,
    start_step: int,
    total_steps: int,
    shown: bool = True,
    said: Sequence[str] = ('loss',),
  ) -> None:
    super().__init__(shown)
    self._said = said
    self._name, self._start, self._total = name, start_step, total_steps
    self._began = time.monotonic()
    self._every = max(1, total_steps // 20)
    self._printed = start_step

  def show(self, step: int, values: dict[str, Any]) -> None:
    last = step == self._total
    if not self.live and step - self._printed < self._every and not last:
      return
    self._printed = step
    left = time_left(step - self._start, self._total - step, self._began)
    said = '  '.join(f'{name} {values[name]:.4f}' for name in self._said)
    self.write(
      f'{self._name} step {step:,}/{self._total:,}  {said}  '
      f'{values["tokens_per_second"]:,.0f} tokens/s  {left}',
      last,
    )

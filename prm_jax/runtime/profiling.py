"""A trace of some training steps: what ran when, on host and devices.

`train.fit` runs its steps through a Profile, which records those that the
config names for XProf.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import jax

from prm_jax.runtime import checks, paths, processes
from prm_jax.runtime.checks import at_least


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
  """Which training steps are recorded.

  Attributes:
    first_step: counted from 1, whose time is mostly compilation.
    steps: how many; 0 records nothing. A few are enough: a trace grows by
      megabytes a step.
  """

  first_step: Annotated[int, at_least(0)] = 0
  steps: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def last_step(self) -> int:
    return self.first_step + self.steps - 1

  def check(self, training_steps: int) -> None:
    """Raises Faults unless the run has the steps to be recorded."""
    if self.steps and not 1 <= self.first_step <= self.last_step <= (
      training_steps
    ):
      checks.fail(
        'profile.first_step',
        self.first_step,
        f'expected profile.steps={self.steps} steps among 1 to train.steps='
        f'{training_steps}; 2 is the first without compilation',
      )


class Profile:
  """Records steps; a context, so that an early end writes what there is.

  Args:
    folder: where the traces go, every process its own.
    before_text: called before the user is told of a trace.
  """

  def __init__(
    self,
    config: ProfileConfig,
    folder: paths.Path,
    before_text: Callable[[], None],
  ) -> None:
    # XProf names a file by its host, of which there may be fewer.
    several = processes.count() > 1
    self._config = config
    self._folder = (
      folder / f'process_{processes.index()}' if several else folder
    )
    self._before_text = before_text
    self._recording = False

  def __enter__(self) -> 'Profile':
    return self

  def __exit__(self, *_: Any) -> None:
    if self._recording:
      self._write()

  def run(self, step: int, step_fn: Callable, *args: Any) -> Any:
    """`step_fn(*args)`, recorded if the config says so of this step."""
    c = self._config
    if not c.steps or not c.first_step <= step <= c.last_step:
      return step_fn(*args)
    if not self._recording:
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # slows the loop that is measured
      jax.profiler.start_trace(self._folder, profiler_options=options)
      self._recording = True
    with jax.profiler.StepTraceAnnotation('train', step_num=step):
      result = step_fn(*args)
    if step == c.last_step:
      jax.block_until_ready(result)  # devices run behind the host
      self._write()
    return result

  def _write(self) -> None:
    jax.profiler.stop_trace()
    self._recording = False
    if processes.is_first():
      self._before_text()
      print(
        f'profile: {self._folder}; open it with: pip install xprof && '
        f'xprof --logdir {self._folder}',
        flush=True,
      )

"""Records a trace of some training steps: what ran when, on host and devices.

`training.loop.fit` runs its steps through a Profile, which records those that
the config names. XProf shows the trace.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import jax

from prm_jax.runtime import checks, paths, processes
from prm_jax.runtime.checks import at_least


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
  """Says which training steps are recorded.

  Attributes:
    first_step: first recorded step. Steps count from 1, and step 1 is mostly
      compilation.
    steps: number of recorded steps; 0 records nothing. A few are enough, as a
      trace grows by megabytes per step.
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
  """Records steps; a context manager, so that an early end writes the trace.

  Args:
    folder: folder of the trace; each process has a folder in it.
    before_text: called before the line that names the trace is printed.
  """

  def __init__(
    self,
    config: ProfileConfig,
    folder: paths.Path,
    before_text: Callable[[], None],
  ) -> None:
    # XProf names a file by its host, and one host may run several processes.
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
    """Calls `step_fn(*args)`, and records it if the config names this step."""
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

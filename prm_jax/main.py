"""Runs one job from the command line.

    python -m prm_jax.main --config configs/prm_math.py --workdir /tmp/prm_math

Any value of the config can be set: `--config.optim.lr=1e-4`. Variants follow
the file after a colon: `--config configs/prm_math.py:tiny`. The same command
resumes an interrupted run.

On several hosts run it on every host; where JAX does not find the others by
itself (Cloud TPU, GKE, SLURM), with --coordinator, --processes and --process.
"""

import contextlib
import os
import signal
import sys
import traceback
from typing import Any

import jax
from absl import flags

from prm_jax.jobs import (
  evaluate,
  label,
  policy,
  prm,
  rl,
  sample,
  search,
  settings,
)
from prm_jax.runtime import command_line, manifest, paths, processes
from prm_jax.runtime.determinism import ask_for_same_bits
from prm_jax.runtime.errors import UserError, user_message
from prm_jax.runtime.metrics import CONSOLE
from prm_jax.runtime.stopping import INTERRUPTED, Stopped
from prm_jax.runtime.workdir import Workdir, with_defaults

RUN = {
  'prm': prm.run,
  'policy': policy.run,
  'rl': rl.run,
  'label': label.run,
  'sample': sample.run,
  'search': search.run,
  'evaluate': evaluate.run,
}
DONE = 'done'

flags.declare_key_flag('config')
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Folder for checkpoints, metrics, results, report; or gs://BUCKET/FOLDER.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'HOST:PORT of process 0, where there are several.'
)
_PROCESSES = flags.DEFINE_integer(
  'processes', None, 'How many processes run this job; 1 looks for no others.'
)
_PROCESS = flags.DEFINE_integer(
  'process', None, 'Number of this process, 0 to --processes - 1.'
)


def prepare_jax(cpu_devices: int) -> None:
  """Chooses devices and the compilation cache, before JAX computes anything.

  On GPUs it also asks for programs that give the same bits each time.
  """
  ask_for_same_bits(os.environ)
  if cpu_devices:
    jax.config.update('jax_platforms', 'cpu')
    jax.config.update('jax_num_cpu_devices', cpu_devices)
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    cache = str(paths.machine_folder('xla'))
    jax.config.update('jax_compilation_cache_dir', cache)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def stop_at_once(*_: Any) -> None:
  """Ends on SIGTERM outside training, where no file is half written."""
  raise Stopped('stopped')


def mind_unraisable(unraisable: Any) -> None:
  """Replaces sys.unraisablehook, so that a SIGTERM is not lost.

  SIGTERM may arrive in a destructor or in a callback of the garbage collector,
  where Python drops what is raised; so it is sent again a moment later.

  Reads of TensorStore that end after Orbax has given up find its event loop
  closed, and would each print a traceback around our one line.
  """
  if isinstance(unraisable.exc_value, Stopped):
    signal.signal(
      signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM)
    )
    signal.setitimer(signal.ITIMER_REAL, 0.01)
  elif str(unraisable.exc_value) != 'Event loop is closed':
    sys.__unraisablehook__(unraisable)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise UserError(f'unknown argument {argv[1]!r}; see --help')
  config, workdir = command_line.CONFIG.value, _WORKDIR.value
  if config is None:
    raise UserError('--config is missing: --config configs/prm_math.py')
  if not workdir:
    raise UserError('--workdir is missing: --workdir /tmp/prm_math')
  raw = config.to_dict()
  signal.signal(signal.SIGTERM, stop_at_once)
  devices = raw.get('cpu_devices', 0)
  prepare_jax(devices if type(devices) is int and devices > 0 else 0)
  # A process with another config says so before it is refused: else the others
  # would wait for it.
  processes.join(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
  manifest.check_same_config(raw)
  processes.compile_afresh_on_cpus()
  chosen = settings.read_settings(raw)
  defaults = settings.default_config(chosen.task).to_dict()
  folder = Workdir.open(workdir, with_defaults(raw, defaults), defaults)
  folder.hold()
  with contextlib.ExitStack() as stack:
    if processes.is_first():
      stack.enter_context(CONSOLE.keep_alive(f'{chosen.task} job'))
    RUN[chosen.task](chosen, folder, command_line.log)


def run(argv: list[str]) -> None:
  """Runs the job and exits.

  The exit code is 0 if the job ended or SIGTERM stopped it, 2 for a user's
  fault, 130 after Ctrl-C, and 1 for a bug or if another process was lost.
  """
  sys.unraisablehook = mind_unraisable
  if {'--help', '-h'} & set(argv[1:]):
    print(f'{__doc__}\n{flags.FLAGS.main_module_help()}')
    return
  try:
    main(command_line.parse_flags(argv))
    end(DONE, 0)
  except (Exception, Stopped, KeyboardInterrupt) as error:
    if stopped := stop_behind(error):
      end_stopped(stopped)
    else:
      end_for(error)


def stop_behind(error: BaseException) -> BaseException | None:
  """Returns the signal's exception that caused an error; None for none.

  Orbax raises an error of its own where a signal interrupts it.
  """
  cause: BaseException | None = error
  while cause is not None:
    if isinstance(cause, Stopped | KeyboardInterrupt):
      return cause
    cause = cause.__cause__ or cause.__context__
  return None


def end_stopped(stopped: BaseException) -> None:
  """Says that a signal ended the job, tells the other processes, and exits."""
  if isinstance(stopped, Stopped):
    command_line.log(f'{stopped}; the same command resumes from there')
    end(str(stopped), stopped.code)
  else:
    print('interrupted; the same command resumes', file=sys.stderr)
    end('interrupted', INTERRUPTED)


def end_for(error: BaseException) -> None:
  """Says what went wrong, tells the other processes, and exits."""
  if line := user_message(error):
    for each in line.split('\n'):
      print(f'error: {processes.name()}{each}', file=sys.stderr, flush=True)
    end(line, 2)
  if processes.count() == 1:
    raise error
  if not processes.is_loss(error):
    traceback.print_exception(error)
    end(f'{type(error).__name__}, see its traceback', 1)
  processes.stop(
    f'error: {processes.name()}{processes.describe_loss(error)}', 1
  )


def end(why: str, code: int) -> None:
  """Tells the other processes why this one ends, and exits."""
  if processes.count() > 1:
    # Process 0 may be writing results when the others are done.
    processes.leave(why, patient=why == DONE)
    processes.stop('', code)
  # While Python ends it would restore the default, which changes the exit code.
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  if code:
    sys.exit(code)


if __name__ == '__main__':
  run(sys.argv)

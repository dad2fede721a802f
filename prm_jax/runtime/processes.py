"""Coordinates the processes of one job: joining, agreeing, waiting, leaving.

On a TPU pod, under SLURM or on many GPUs every host runs the same command.
`join` makes them one job before anything is computed. From then on all run the
same program, and wait here for work that one process does alone (only process 0
writes). With one process everything here does nothing.

Messages go through the key-value store of JAX's coordination service, not
through the devices, so a waiting process learns when another has left.
"""

import itertools
import json
import math
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import jax

# The store and the numbers it goes by. The public API gives the numbers only
# with the devices, which cannot be opened before all configs agree.
from jax._src.distributed import global_state

from prm_jax.runtime.errors import UserError

JOIN_SECONDS = 60
# Hosts of a cluster come up one after another.
CLUSTER_JOIN_SECONDS = 300
# JAX's own watch over hosts that vanish without closing a connection.
HEARTBEAT_SECONDS = 40
LEAVE_SECONDS = 20
POLL_MILLISECONDS = 1000
MOST_TOLD = 256  # texts that are broadcast before the store forgets them
_LEFT = 'prm_jax/left'
_GONE = 'prm_jax/gone'  # processes that are about to exit
# What gloo, NCCL and the coordination service say when a peer is gone.
_LOST = (
  'Gloo',
  'gloo',
  'NCCL',
  'coordination',
  'Connection closed by peer',
  'Connection reset by peer',
  'Socket closed',
  'heartbeat',
)

# All processes come through the same calls in the same order.
_calls = itertools.count()
_told: list[str] = []  # keys of what was broadcast


class FailedAlone(RuntimeError):
  """Says that this process failed where another did not, which now waits."""


def index() -> int:
  """Returns the number of this process."""
  return global_state.process_id


def count() -> int:
  """Returns the number of processes that run this job."""
  return global_state.num_processes


def is_first() -> bool:
  """Says whether this is process 0, which alone writes files and prints."""
  return index() == 0


def name() -> str:
  """Returns the prefix of this process's errors; '' if it runs alone."""
  return f'process {index()} of {count()}: ' if count() > 1 else ''


def join(
  coordinator: str | None, processes: int | None, process: int | None
) -> None:
  """Joins the processes of a job, before JAX is used for anything else.

  Args:
    coordinator: HOST:PORT of process 0, which opens that port.
    processes: the number of processes; 1 without the other two always runs
      alone.
    process: the number of this process. Without any of the three JAX looks for
      a cluster that it knows (Cloud TPU, GKE, SLURM, Open MPI).

  Raises:
    UserError: the arguments do not fit together, or not all processes joined
      within JOIN_SECONDS (CLUSTER_JOIN_SECONDS in a cluster).
  """
  if processes == 1 and coordinator is None and not process:
    return
  given = {
    '--coordinator': coordinator,
    '--processes': processes,
    '--process': process,
  }
  missing = [flag for flag, value in given.items() if value is None]
  if missing and len(missing) < len(given):
    raise UserError(
      f'{", ".join(missing)} missing: give --coordinator=HOST:PORT, '
      '--processes=N and --process=I together, or none of them'
    )
  if not missing:
    _check(coordinator, processes, process)
  # One where a program spreads over the network, None elsewhere.
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # `stopping.py` handles SIGTERM in place of JAX's preemption service.
  jax.config.update('jax_enable_preemption_service', False)
  seconds = CLUSTER_JOIN_SECONDS if missing else JOIN_SECONDS
  # JAX itself would end the process with a trace from C++.
  waiting = threading.Timer(seconds, _give_up, (seconds, coordinator, process))
  waiting.daemon = True
  waiting.start()
  try:
    with warnings.catch_warnings():
      # In a pod of Kubernetes JAX asks for an extra, even of one process.
      warnings.simplefilter('ignore', UserWarning)
      jax.distributed.initialize(
        coordinator,
        processes,
        process,
        cluster_detection_method='deactivate' if coordinator else None,
        initialization_timeout=2 * seconds,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=JOIN_SECONDS,
      )
  except Exception as error:  # each kind of cluster raises its own
    text = _first_line(error)
    if missing and 'coordinator_address should be defined' in text:
      return  # no cluster
    if missing:
      raise UserError(
        f'this looks like one of several processes, but they cannot be joined '
        f'({text}); --processes=1 runs alone'
      ) from error
    raise UserError(
      f'process {process} cannot join {coordinator} ({text}); choose another '
      'port'
    ) from error
  finally:
    waiting.cancel()


def compile_afresh_on_cpus() -> None:
  """Turns JAX's cache of compiled programs off where several CPUs compute.

  Opens the devices; call it before anything is compiled. On a CPU a program
  that comes from the cache does not keep the order of its collectives (seen in
  jaxlib 0.10.2): one device gathers while another reduces, and both wait for
  ever.
  """
  if jax.device_count() > 1 and jax.default_backend() == 'cpu':
    jax.config.update('jax_enable_compilation_cache', False)


def _check(coordinator: str, processes: int, process: int) -> None:
  """Raises UserError for flags that cannot work."""
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise UserError(
      f'--coordinator={coordinator}: expected HOST:PORT of process 0, as '
      '10.0.0.1:8476'
    )
  if not 0 <= process < processes:
    raise UserError(
      f'--process={process} with --processes={processes}: expected 0 to '
      f'{processes - 1}'
      if processes > 0
      else f'--processes={processes}: expected 1 or more'
    )


def _give_up(
  seconds: int, coordinator: str | None, process: int | None
) -> NoReturn:
  """Ends this process, whose main thread is waiting for the others."""
  who = '' if process is None else f'process {process}: '
  what = 'not all processes of the job have joined, each with its own number,'
  if coordinator and process:
    host, _, port = coordinator.rpartition(':')
    try:
      socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
    except OSError:
      what = f'no answer from {coordinator}, where process 0 should be'
  stop(
    f'error: {who}{what} after {seconds} s; start all of them with the same '
    'command, each with its own --process (--processes=1 runs alone)',
    2,
  )


def stop(line: str, code: int) -> NoReturn:
  """Ends the process at once: a regular exit would wait for the others."""
  if line:
    print(line, file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def exchange(what: str, text: str) -> list[str]:
  """Returns the texts of all processes, in order; waits for all of them.

  Raises:
    UserError: another process has left.
  """
  if count() == 1:
    return [text]
  key = f'prm_jax/{next(_calls)}/{what}'
  store = global_state.client
  store.key_value_set(f'{key}/{index()}', text)
  # A star: process 0 collects, so that N processes cost 2 N requests.
  if is_first():
    texts = [_get(f'{key}/{i}') for i in range(count())]
    store.key_value_set(f'{key}/all', json.dumps(texts))
    return texts
  return json.loads(_get(f'{key}/all'))


def broadcast(what: str, text: str = '') -> str:
  """Returns the text of process 0, for which the others wait.

  Raises:
    UserError: another process has left.
  """
  if count() == 1:
    return text
  key = f'prm_jax/{next(_calls)}/{what}'
  if is_first():
    global_state.client.key_value_set(key, text)
  else:
    text = _get(key)
  _told.append(key)
  if len(_told) == MOST_TOLD:
    # All have read them, so that the store does not grow without end.
    wait_for_all(what)
    for old in _told if is_first() else ():
      global_state.client.key_value_delete(old)
    _told.clear()
  return text


def _get(key: str) -> str:
  """Waits for a value; raises UserError if a process leaves first."""
  gone = ''
  while True:
    try:
      return global_state.client.blocking_key_value_get(key, POLL_MILLISECONDS)
    except jax.errors.JaxRuntimeError as error:
      if 'DEADLINE_EXCEEDED' not in str(error):
        raise
    # A process may have answered just before it left, so try once more.
    if gone:
      raise UserError(gone)
    gone = departed()


def wait_for_all(what: str) -> None:
  """Waits until every process has called this."""
  exchange(what, '')


def fail_together(error: Exception, seconds: float) -> None:
  """Returns once every process has failed at the work that this one failed at.

  Where one fails alone, the others wait for it in a program for ever.

  Args:
    error: what this one failed with.
    seconds: how long this waits for the others.

  Raises:
    FailedAlone: another process did not fail.
  """
  if count() == 1:
    return
  key = f'prm_jax/{next(_calls)}/failed'
  store = global_state.client
  store.key_value_set(f'{key}/{index()}', '')
  end = time.monotonic() + seconds
  while len(store.key_value_dir_get(key)) < count():
    if time.monotonic() > end or departed():
      raise FailedAlone(
        f'process {index()} failed alone ({_first_line(error)})'
      )
    time.sleep(0.1)


def first_alone(what: str, work: Callable[..., Any], *args: Any) -> None:
  """Calls `work(*args)` in process 0; the others wait until it is done.

  Raises:
    UserError: process 0 failed; every process raises its reason.
  """
  if is_first():
    work(*args)
  wait_for_all(what)


def check_same(what: str, value: str, cure: str) -> None:
  """Raises UserError in all processes if their values differ."""
  values = exchange(what, value)
  others = [i for i, text in enumerate(values) if text != values[0]]
  if others:
    raise UserError(
      f'{what} is {values[others[0]]} on process {others[0]} and '
      f'{values[0]} on process 0; {cure}'
    )


def departed() -> str:
  """Returns which process stopped and why; '' if none did.

  If several stopped, it is process 0.
  """
  if count() == 1:
    return ''
  left = dict(global_state.client.key_value_dir_get(_LEFT))
  if not left:
    return ''
  by_number = {int(key.rpartition('/')[2]): why for key, why in left.items()}
  number = min(by_number)
  return f'process {number} stopped: {by_number[number]}'


def leave(why: str, patient: bool = False) -> None:
  """Tells the others that this process ends, and waits until they end, too.

  `stop` comes next. JAX's own shutdown has a race: process 0, and the store
  with it, may end while another process still listens to it, which is then
  aborted from C++.

  Args:
    patient: waits as long as all live, not only for LEAVE_SECONDS.
  """
  store = global_state.client
  if count() == 1 or store is None:  # None: it ends before it has joined
    return

  def wait_for(key: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while len(store.key_value_dir_get(key)) < count() and (
      time.monotonic() < end
    ):
      time.sleep(0.1)

  try:
    store.key_value_set(f'{_LEFT}/{index()}', why)
    wait_for(_LEFT, math.inf if patient else LEAVE_SECONDS)
    store.key_value_set(f'{_GONE}/{index()}', why)
    if is_first():
      wait_for(_GONE, LEAVE_SECONDS)
      time.sleep(0.2)  # between a process's last word and its end
  except jax.errors.JaxRuntimeError as error:
    if not is_loss(error):  # if process 0 is gone, no process can be told
      raise


def is_loss(error: BaseException) -> bool:
  """Says whether an exception means that the processes lost each other."""
  if count() == 1:
    return False
  seen: BaseException | None = error
  while seen is not None:
    if isinstance(seen, FailedAlone) or any(
      mark in str(seen) for mark in _LOST
    ):
      return True
    seen = seen.__cause__ or seen.__context__
  return False


def describe_loss(error: BaseException) -> str:
  """Returns a line for `is_loss`: who left and why, as far as is known."""
  if isinstance(error, FailedAlone):
    return f'{error}; start all of them again with the same command'
  try:
    gone = departed()
  except jax.errors.JaxRuntimeError:  # it was process 0, with the store
    gone = ''
  if not gone:
    gone = f'lost another process ({_first_line(error)})'
  return f'{gone}; start all of them again with the same command'


def _first_line(error: BaseException) -> str:
  return (str(error).splitlines() or [type(error).__name__])[0][:120]

"""The process that `sandbox.py` starts: walls first, then the program.

Run as a file, never imported. Three processes: this one (outside), the init of
a new PID namespace, and the program. When the init ends, for whatever reason,
the kernel kills everything that the program left behind, daemons included.

Reads a job from stdin (JSON), writes what happened to descriptor `status`:
{"isolation": why} or {"code": exit code, negative for a signal}.
"""

import ctypes
import json
import os
import pathlib
import resource
import signal
import sys

# From linux/sched.h, sys/mount.h, linux/mount.h and sys/prctl.h.
_NEW_NAMESPACES = {
  'user': 0x10000000,
  'mount': 0x00020000,
  'ipc': 0x08000000,
  'process': 0x20000000,
  'network': 0x40000000,
}
_MS_NOSUID, _MS_NODEV, _MS_BIND = 2, 4, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS = 1, 4, 38
NOBODY = 65534
WORKPLACE = '/dev/shm'

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
  """Raises the OSError of a C call that failed."""
  if result < 0:
    code = ctypes.get_errno()
    raise OSError(code, f'{what}: {os.strerror(code)}')


def prctl(option: int, value: int) -> None:
  check(libc.prctl(option, value, 0, 0, 0), f'prctl {option}')


def mount(kind: str, target: str, flags: int, options: str = '') -> None:
  done = libc.mount(
    kind.encode(), target.encode(), kind.encode(), flags, options.encode()
  )
  check(done, f'mounting {kind} on {target}')


def private_mounts() -> None:
  check(libc.mount(None, b'/', None, _MS_REC | _MS_PRIVATE, None), 'private /')


def open_way(folders: list[str]) -> None:
  """As root: shows nobody these folders, such as a Python below /root.

  Where a parent is closed to others, an empty folder takes its place, in this
  process's mounts only, with nothing in it but the way to these.
  """
  check(libc.unshare(_NEW_NAMESPACES['mount']), 'new mounts')
  private_mounts()
  closed = {}
  for folder in sorted(set(folders)):
    for parent in reversed(pathlib.Path(folder).parents):
      if not parent.stat().st_mode & 1:
        source = os.open(folder, os.O_PATH)
        closed.setdefault(parent, []).append((folder, source))
        break
  for parent, inside in closed.items():
    mount('tmpfs', str(parent), _MS_NOSUID | _MS_NODEV, 'mode=755')
    for folder, source in inside:
      os.makedirs(folder, exist_ok=True)
      shown = f'/proc/self/fd/{source}'.encode(), folder.encode()
      done = libc.mount(*shown, None, _MS_BIND | _MS_REC, None)
      check(done, f'showing {folder}')
      os.close(source)


def leave_root() -> None:
  """Root becomes nobody; what follows is the same for every user."""
  os.setgroups([])
  os.setresgid(NOBODY, NOBODY, NOBODY)
  os.setresuid(NOBODY, NOBODY, NOBODY)
  # Or the kernel gives /proc/self to root, and uid_map cannot be written.
  prctl(_SET_DUMPABLE, 1)


def new_namespaces() -> None:
  user, group = os.getuid(), os.getgid()
  check(libc.unshare(sum(_NEW_NAMESPACES.values())), 'new namespaces')
  for name, text in (
    ('setgroups', 'deny'),
    ('uid_map', f'{user} {user} 1'),
    ('gid_map', f'{group} {group} 1'),
  ):
    with open(f'/proc/self/{name}', 'w') as file:
      file.write(text)


def new_mounts(job: dict) -> None:
  """All disks read-only, the workplace empty, /proc of our own processes."""
  private_mounts()
  attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
  check(
    libc.syscall(
      *(_MOUNT_SETATTR, _AT_FDCWD, b'/', _AT_RECURSIVE),
      *(ctypes.byref(attributes), ctypes.sizeof(attributes)),
    ),
    'read-only /',
  )
  # In memory, so it is gone with the namespace and no disk fills up.
  flags = _MS_NOSUID | _MS_NODEV
  size = f'size={job["disk_bytes"]},nr_inodes={job["files"]},mode=700'
  mount('tmpfs', WORKPLACE, flags, size)
  try:
    mount('proc', '/proc', flags)
  except OSError:
    # Containers that mask parts of /proc allow no second one.
    mount('tmpfs', '/proc', flags, 'size=0')


def set_limits(job: dict) -> None:
  for name, value in (
    ('CPU', job['cpu_seconds']),
    ('AS', job['memory_bytes']),
    ('FSIZE', job['disk_bytes']),
    ('NPROC', job['processes']),
    ('NOFILE', job['files']),
    ('CORE', 0),
  ):
    kind = getattr(resource, f'RLIMIT_{name}')
    hard = resource.getrlimit(kind)[1]
    limit = value if hard < 0 else min(value, hard)
    # SIGXCPU says why; the SIGKILL at the hard limit, a second later, does not.
    above = limit + 1 if name == 'CPU' and limit != hard else limit
    resource.setrlimit(kind, (limit, above))


def run_program(job: dict) -> None:
  """Becomes the program; never returns."""
  os.chdir(WORKPLACE)
  try:
    with open('program.py', 'w', encoding='utf-8') as file:
      file.write(job['source'])
  except (OSError, UnicodeError) as error:
    os.write(1, f'program.py cannot be written: {error}\n'.encode())
    os._exit(1)
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  os.dup2(1, 2)
  os.set_inheritable(job['status'], False)
  os.setsid()
  prctl(_SET_NO_NEW_PRIVS, 1)
  set_limits(job)
  command = [job['python'], '-I', '-B', '-X', 'utf8', 'program.py']
  environment = {'PATH': '/usr/bin:/bin', 'HOME': WORKPLACE}
  os.execve(command[0], command, environment)


def init(job: dict) -> None:
  """The first process of the namespace: starts the program and reaps."""
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  try:
    new_mounts(job)
    program = os.fork()
    if program == 0:
      try:
        run_program(job)
      except OSError as error:
        tell(job, {'isolation': str(error)})
      finally:
        os._exit(127)
    while True:
      child, status = os.wait()
      if child == program:
        tell(job, {'code': os.waitstatus_to_exitcode(status)})
        break
  except OSError as error:
    tell(job, {'isolation': str(error)})
  finally:
    os._exit(0)


def tell(job: dict, what: dict) -> None:
  os.write(job['status'], json.dumps(what).encode() + b'\n')


def main() -> None:
  job = json.load(sys.stdin)
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  try:
    if os.getuid() == 0:
      open_way(job['folders'])
      leave_root()
      # Changing the user cleared it.
      prctl(_SET_PDEATHSIG, signal.SIGKILL)
    new_namespaces()
    # Until the handler below is there, a SIGTERM would leave the init alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    first = os.fork()
  except OSError as error:
    tell(job, {'isolation': str(error)})
    return
  if first == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    init(job)
  # Killing the init and waiting for it waits for all that dies with it.
  signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
  signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
  # The init keeps it open: the pipe closes when everything has gone.
  os.close(1)
  os.waitpid(first, 0)


if __name__ == '__main__':
  main()

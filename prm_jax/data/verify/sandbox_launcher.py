"""Isolates a program and runs it; `sandbox.py` starts this file as a process.

It is never imported. There are three processes: this launcher (outside), the
init of a new PID namespace, and the program. The init measures the program's
memory. When the init ends, for whatever reason, the kernel kills everything
that the program has left behind, daemons included.

Reads a job from standard input (JSON), and writes the result to the file
descriptor `status`: {"isolation": why} if the program could not be isolated and
did not run, or {"code": exit code, negative for a signal, null if killed}.
"""

import base64
import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import sys

# From linux/sched.h, sys/mount.h, linux/mount.h, linux/keyctl.h, sys/prctl.h
# and linux/seccomp.h.
_NEW_USER = 0x10000000
_NEW_NAMESPACES = {
  'mount': 0x00020000,
  'ipc': 0x08000000,
  'process': 0x20000000,
  'network': 0x40000000,
}
_MS_NOSUID, _MS_NODEV, _MS_BIND = 2, 4, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_JOIN_SESSION_KEYRING = 1
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS = 1, 4, 38
_SET_SECCOMP, _FILTER = 22, 2
NOBODY = 65534
WORKPLACE = '/dev/shm'
_LOOK_SECONDS = 0.02
# The most data that a pipe or one end of a socket pair holds.
_DESCRIPTOR_BYTES = 256 << 10

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
  """Raises the OSError of a failed C call; `what` says what it tried."""
  if result < 0:
    code = ctypes.get_errno()
    raise OSError(code, f'{what}: {os.strerror(code)}')


def prctl(option: int, value: int, more: object = 0) -> None:
  """Sets a property of this process, as the C function does."""
  check(libc.prctl(option, value, more, 0, 0), f'prctl {option}')


def mount(kind: str, target: str, options: str = '') -> None:
  """Mounts a file system, without setuid programs and devices."""
  flags = _MS_NOSUID | _MS_NODEV
  done = libc.mount(
    kind.encode(), target.encode(), kind.encode(), flags, options.encode()
  )
  check(done, f'mounting {kind} on {target}')


def make_mounts_private() -> None:
  """Keeps the mounts of this namespace from spreading to the one outside."""
  check(libc.mount(None, b'/', None, _MS_REC | _MS_PRIVATE, None), 'private /')


def drop_root() -> None:
  """Makes this process nobody's instead of root's."""
  os.setgroups([])
  os.setresgid(NOBODY, NOBODY, NOBODY)
  os.setresuid(NOBODY, NOBODY, NOBODY)
  # Otherwise /proc/self belongs to root, and uid_map cannot be written.
  prctl(_SET_DUMPABLE, 1)


def enter_user_namespace(proc: int) -> None:
  """Enters a new user namespace as the same user, with a new process count.

  The process has all rights inside the namespace, until it calls exec.
  """
  user, group = os.getuid(), os.getgid()
  check(libc.unshare(_NEW_USER), 'new user namespace')
  for name, text in (
    ('setgroups', 'deny'),
    ('uid_map', f'{user} {user} 1'),
    ('gid_map', f'{group} {group} 1'),
  ):
    file = os.open(f'self/{name}', os.O_WRONLY, dir_fd=proc)
    os.write(file, text.encode())
    os.close(file)


def enter_new_root(job: dict) -> int:
  """Replaces the root folder by one with only Python and an empty workplace.

  Returns:
    A descriptor of a /proc of this namespace, which is not in the new root.
  """
  make_mounts_private()
  mount('tmpfs', '/tmp', 'mode=755')
  os.chdir('/tmp')
  os.mkdir('old')
  check(libc.syscall(job['calls']['pivot_root'], b'.', b'old'), 'new root')
  for folder in ('empty', 'tmp', 'proc', 'dev', WORKPLACE, 'etc'):
    os.mkdir(os.path.join('/', folder))
  folders = {'/usr', '/etc/alternatives', *job['folders']}
  for name in ('/bin', '/lib', '/lib32', '/lib64', '/sbin'):
    if os.path.islink(f'/old{name}'):
      os.symlink(os.readlink(f'/old{name}'), name)
    else:
      folders.add(name)
  for folder in sorted(folders):  # so that a folder precedes those inside it
    show_folder(folder)
  for name in ('/etc/ld.so.cache', '/etc/localtime'):
    if os.path.exists(f'/old{name}'):
      with open(f'/old{name}', 'rb') as old, open(name, 'wb') as new:
        new.write(old.read())
  for name in ('/dev/null', '/dev/urandom'):
    os.close(os.open(name, os.O_CREAT))
    source = f'/old{name}'.encode()
    done = libc.mount(source, name.encode(), None, _MS_BIND, None)
    check(done, f'showing {name}')
  mount('proc', '/old/proc')
  proc = os.open('/old/proc', os.O_RDONLY)
  check(libc.umount2(b'/old', _MNT_DETACH), 'leaving the old root')
  os.rmdir('/old')
  attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
  check(
    libc.syscall(
      *(_MOUNT_SETATTR, _AT_FDCWD, b'/', _AT_RECURSIVE),
      *(ctypes.byref(attributes), ctypes.sizeof(attributes)),
    ),
    'read-only /',
  )
  # It is held in memory, so that it vanishes with the namespace, and no disk
  # fills up.
  size = f'size={job["disk_bytes"]},nr_inodes={job["files"]},mode=777'
  mount('tmpfs', WORKPLACE, size)
  return proc


def show_folder(folder: str) -> None:
  """Shows a folder of the old root in the new one, through an overlay.

  Only the bytes of its files are shared: a FIFO or socket in the overlay is not
  connected to the one outside.
  """
  if os.path.isdir(f'/old{folder}'):
    os.makedirs(folder, exist_ok=True)
    # The option names ".", so that no path, whatever its characters, can be
    # taken for an option.
    os.chdir(f'/old{folder}')
    try:
      mount('overlay', folder, 'lowerdir=.:/empty')
    except OSError as error:
      why = 'only root may show a folder with mounts in it'
      raise OSError(f'{error} ({why})') from error
    os.chdir('/')


def set_limits(job: dict) -> None:
  """Sets the limits that the kernel keeps for each process or user."""
  for name, value in (
    ('CPU', job['cpu_seconds']),
    ('AS', job['memory_bytes']),
    ('FSIZE', job['disk_bytes']),
    ('NPROC', job['processes']),
    ('NOFILE', job['files']),
    # With 0, a crash would still be piped to a program outside, if the kernel
    # is so configured; with 1 it is not.
    ('CORE', 1),
    ('MEMLOCK', 0),
  ):
    kind = getattr(resource, f'RLIMIT_{name}')
    hard = resource.getrlimit(kind)[1]
    limit = value if hard < 0 else min(value, hard)
    # SIGXCPU at the soft limit tells us the reason; the SIGKILL at the hard
    # limit, which comes a second later, would not.
    above = limit + 1 if name == 'CPU' and limit != hard else limit
    resource.setrlimit(kind, (limit, above))


def set_filter(code: bytes) -> None:
  """Allows only the system calls of `sandbox_filter.py` from here on."""

  class Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (('length', ctypes.c_ushort), ('code', ctypes.c_char_p))

  program = Program(len(code) // 8, code)
  prctl(_SET_NO_NEW_PRIVS, 1)
  prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program))


def run_program(job: dict) -> None:
  """Turns this process into the program; never returns."""
  if job['group'] is not None:
    os.write(job['group'], b'0')
    os.close(job['group'])
  if os.getuid() == 0:
    drop_root()
    enter_user_namespace(job['proc'])
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
  command = [job['python'], '-I', '-B', '-X', 'utf8', 'program.py']
  environment = {'PATH': '/usr/bin:/bin', 'HOME': WORKPLACE}
  set_limits(job)
  set_filter(base64.b64decode(job['filter']))
  # By its real path: links that lead to it may lie in folders that we do not
  # show.
  os.execve(job['real_python'], command, environment)


def measure_memory(files: int) -> int:
  """Returns the bytes held by all processes of the namespace but the init.

  These are memory in RAM or swap that belongs to no file, and the most data
  that the open pipes and sockets can hold. The current folder must be /proc.

  Args:
    files: open files assumed for a process whose table we may not read.
  """
  total = 0
  for process in os.listdir():
    most = 0
    if process.isdigit() and process != '1':
      try:
        # All threads are read: one that has ended shows no memory.
        for thread in os.listdir(f'{process}/task'):
          most = max(most, _measure_thread(f'{process}/task/{thread}', files))
      except (FileNotFoundError, ProcessLookupError):
        pass  # a process or thread has ended; the next measurement is right
    total += most
  return total


def _measure_thread(thread: str, files: int) -> int:
  with open(f'{thread}/status', 'rb') as file:
    held = re.findall(rb'(?:RssAnon|VmSwap):\s*(\d+) kB', file.read())
  # Not even we may look into a process of a file that can be run but not read.
  with contextlib.suppress(PermissionError):
    files = len(os.listdir(f'{thread}/fd'))
  return 1024 * sum(map(int, held)) + _DESCRIPTOR_BYTES * files


def watch(job: dict, program: int) -> int | None:
  """Waits for the program to end, and measures its memory meanwhile.

  Returns:
    Its exit code, or None if it uses more memory than allowed.
  """
  os.chdir(job['proc'])
  ended = os.pidfd_open(program)
  while True:
    select.select([ended], [], [], _LOOK_SECONDS)
    child = True
    while child:
      child, status = os.waitpid(-1, os.WNOHANG)
      if child == program:
        return os.waitstatus_to_exitcode(status)
    if measure_memory(job['files']) > job['memory_bytes']:
      return None


def init(job: dict) -> None:
  """Runs as the namespace's first process: starts the program, and waits.

  As an init it also reaps processes whose parents have ended.
  """
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  try:
    job['proc'] = enter_new_root(job)
    program = os.fork()
    if program == 0:
      try:
        run_program(job)
      # Whatever the error, the caller must learn that the program never ran.
      except Exception as error:
        report(job, {'isolation': str(error)})
      finally:
        os._exit(127)
    report(job, {'code': watch(job, program)})
  except Exception as error:
    report(job, {'isolation': str(error)})
  finally:
    os._exit(0)


def report(job: dict, what: dict) -> None:
  """Writes a result to the descriptor `status`."""
  os.write(job['status'], json.dumps(what).encode() + b'\n')


def main() -> None:
  """Reads a job, runs it in new namespaces, and waits until all has ended."""
  job = json.load(sys.stdin)
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  # An init gets from inside only signals that have a handler. Through Python's
  # handler of SIGINT, the program could end the init before its report.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  try:
    keyring = libc.syscall(job['calls']['keyctl'], _JOIN_SESSION_KEYRING, None)
    check(keyring, 'new session keyring')
    if os.getuid() != 0:
      enter_user_namespace(os.open('/proc', os.O_RDONLY))
    check(libc.unshare(sum(_NEW_NAMESPACES.values())), 'new namespaces')
    # Until the handler below is set, a SIGTERM would end this process and not
    # the init.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    first = os.fork()
  except OSError as error:
    report(job, {'isolation': str(error)})
    return
  if first == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    init(job)
  # Waiting for the killed init waits for everything that dies with it.
  signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
  signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
  # The init keeps the output open, so the pipe closes when everything inside
  # has ended.
  os.close(1)
  # A SIGTERM may come as the init ends. Until none is handled any more, its
  # number stays taken, so that the handler finds it.
  os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
  os.waitpid(first, 0)


if __name__ == '__main__':
  main()

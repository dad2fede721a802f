"""The process that `sandbox.py` starts: walls first, then the program.

Run as a file, never imported. Three processes: this one (outside), the init of
a new PID namespace, and the program. The init counts the program's memory; when
it ends, for whatever reason, the kernel kills everything that the program left
behind, daemons included.

Reads a job from stdin (JSON), writes what happened to descriptor `status`:
{"isolation": why} or {"code": exit code, negative for a signal; None: killed}.
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
# The most that waits in a pipe or in one end of a socket pair.
_DESCRIPTOR_BYTES = 256 << 10

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
  """Raises the OSError of a C call that failed."""
  if result < 0:
    code = ctypes.get_errno()
    raise OSError(code, f'{what}: {os.strerror(code)}')


def prctl(option: int, value: int, more: object = 0) -> None:
  check(libc.prctl(option, value, more, 0, 0), f'prctl {option}')


def mount(kind: str, target: str, options: str = '') -> None:
  flags = _MS_NOSUID | _MS_NODEV
  done = libc.mount(
    kind.encode(), target.encode(), kind.encode(), flags, options.encode()
  )
  check(done, f'mounting {kind} on {target}')


def private_mounts() -> None:
  check(libc.mount(None, b'/', None, _MS_REC | _MS_PRIVATE, None), 'private /')


def leave_root() -> None:
  """Root becomes nobody."""
  os.setgroups([])
  os.setresgid(NOBODY, NOBODY, NOBODY)
  os.setresuid(NOBODY, NOBODY, NOBODY)
  # Or the kernel gives /proc/self to root, and uid_map cannot be written.
  prctl(_SET_DUMPABLE, 1)


def new_user_namespace(proc: int) -> None:
  """The same user, counted anew; with all rights in here until an exec."""
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


def new_root(job: dict) -> int:
  """A root with nothing in it but Python and an empty workplace.

  Returns:
    A descriptor of a /proc of our own processes, which nobody else sees.
  """
  private_mounts()
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
  for folder in sorted(folders):  # a folder before those inside it
    show(folder)
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
  # In memory, so it is gone with the namespace and no disk fills up.
  size = f'size={job["disk_bytes"]},nr_inodes={job["files"]},mode=777'
  mount('tmpfs', WORKPLACE, size)
  return proc


def show(folder: str) -> None:
  """The files of a folder, by an overlay: nothing but their bytes.

  A FIFO or socket in it is then another than the one outside.
  """
  if os.path.isdir(f'/old{folder}'):
    os.makedirs(folder, exist_ok=True)
    # So that no path, whatever its letters, stands among the options.
    os.chdir(f'/old{folder}')
    try:
      mount('overlay', folder, 'lowerdir=.:/empty')
    except OSError as error:
      why = 'only root may show a folder with mounts in it'
      raise OSError(f'{error} ({why})') from error
    os.chdir('/')


def set_limits(job: dict) -> None:
  for name, value in (
    ('CPU', job['cpu_seconds']),
    ('AS', job['memory_bytes']),
    ('FSIZE', job['disk_bytes']),
    ('NPROC', job['processes']),
    ('NOFILE', job['files']),
    # Not 0: with 1, too, no program outside is told of a crash.
    ('CORE', 1),
    ('MEMLOCK', 0),
  ):
    kind = getattr(resource, f'RLIMIT_{name}')
    hard = resource.getrlimit(kind)[1]
    limit = value if hard < 0 else min(value, hard)
    # SIGXCPU says why; the SIGKILL at the hard limit, a second later, does not.
    above = limit + 1 if name == 'CPU' and limit != hard else limit
    resource.setrlimit(kind, (limit, above))


def set_filter(code: bytes) -> None:
  """No system calls but those of sandbox_filter.py, from here on."""

  class Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (('length', ctypes.c_ushort), ('code', ctypes.c_char_p))

  program = Program(len(code) // 8, code)
  prctl(_SET_NO_NEW_PRIVS, 1)
  prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program))


def run_program(job: dict) -> None:
  """Becomes the program; never returns."""
  if job['group'] is not None:
    os.write(job['group'], b'0')
    os.close(job['group'])
  if os.getuid() == 0:
    leave_root()
    new_user_namespace(job['proc'])
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
  # By its own name: links on the way to it may lie in no folder of ours.
  os.execve(job['real_python'], command, environment)


def memory_in_use(files: int) -> int:
  """Bytes held by all processes of the /proc that we stand in, but the first.

  Memory in RAM or swap that belongs to no file, and what may wait in pipes.
  """
  total = 0
  for process in os.listdir():
    most = 0
    if process.isdigit() and process != '1':
      try:
        # The first thread may have ended, and then says nothing.
        for thread in os.listdir(f'{process}/task'):
          most = max(most, _held(f'{process}/task/{thread}', files))
      except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended, or one of its threads: the next look sees it
    total += most
  return total


def _held(thread: str, files: int) -> int:
  with open(f'{thread}/status', 'rb') as file:
    held = re.findall(rb'(?:RssAnon|VmSwap):\s*(\d+) kB', file.read())
  # Nobody may look at the program of a file that may be run and not read.
  with contextlib.suppress(PermissionError):
    files = len(os.listdir(f'{thread}/fd'))
  return 1024 * sum(map(int, held)) + _DESCRIPTOR_BYTES * files


def watch(job: dict, program: int) -> int | None:
  """Waits for the program; its exit code, None where it took too much."""
  os.chdir(job['proc'])
  ended = os.pidfd_open(program)
  while True:
    select.select([ended], [], [], _LOOK_SECONDS)
    child = True
    while child:
      child, status = os.waitpid(-1, os.WNOHANG)
      if child == program:
        return os.waitstatus_to_exitcode(status)
    if memory_in_use(job['files']) > job['memory_bytes']:
      return None


def init(job: dict) -> None:
  """The first process of the namespace: starts the program and reaps."""
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  try:
    job['proc'] = new_root(job)
    program = os.fork()
    if program == 0:
      try:
        run_program(job)
      except Exception as error:  # or nobody would know that it never ran
        tell(job, {'isolation': str(error)})
      finally:
        os._exit(127)
    tell(job, {'code': watch(job, program)})
  except Exception as error:
    tell(job, {'isolation': str(error)})
  finally:
    os._exit(0)


def tell(job: dict, what: dict) -> None:
  os.write(job['status'], json.dumps(what).encode() + b'\n')


def main() -> None:
  job = json.load(sys.stdin)
  prctl(_SET_PDEATHSIG, signal.SIGKILL)
  # Or the program could end the init, which is to say how it ended.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  try:
    keyring = libc.syscall(job['calls']['keyctl'], _JOIN_SESSION_KEYRING, None)
    check(keyring, 'new session keyring')
    if os.getuid() != 0:
      new_user_namespace(os.open('/proc', os.O_RDONLY))
    check(libc.unshare(sum(_NEW_NAMESPACES.values())), 'new namespaces')
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

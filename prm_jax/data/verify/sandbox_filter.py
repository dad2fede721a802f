"""Lists the system calls that a sandboxed program may make.

The list holds what Python and its packages need. Any other call, also one that
a future kernel may add, is answered as if it did not exist. libseccomp turns
the names into a filter for this machine's processor.
"""

import ctypes
import errno
import functools
import os
import platform

from prm_jax.runtime.errors import UserError

LIBRARY = 'libseccomp.so.2'
ALLOWED = """
  read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2
  lseek close close_range dup dup2 dup3 pipe pipe2 sendfile copy_file_range
  open openat openat2 creat truncate ftruncate fallocate fsync fdatasync
  fadvise64 readahead stat lstat fstat newfstatat statx statfs fstatfs
  access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd
  chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
  link linkat symlink symlinkat chmod fchmod fchmodat fchmodat2 chown fchown
  lchown fchownat utime utimes futimesat utimensat umask getxattr lgetxattr
  fgetxattr listxattr llistxattr flistxattr
  poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait
  epoll_pwait epoll_pwait2 eventfd eventfd2
  recvfrom recvmsg shutdown getsockopt getsockname getpeername
  brk munmap mremap mprotect madvise msync membarrier
  fork vfork execve exit exit_group wait4 waitid kill tkill tgkill
  rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait
  rt_sigsuspend rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack restart_syscall
  pause alarm getitimer setitimer nanosleep clock_nanosleep clock_gettime
  clock_getres gettimeofday time times
  futex set_robust_list get_robust_list rseq set_tid_address arch_prctl
  gettid getpid getppid getpgrp getpgid setpgid getsid setsid getuid geteuid
  getgid getegid getresuid getresgid getgroups capget getrlimit getrusage
  getpriority sched_yield sched_getaffinity sched_getscheduler
  sched_getparam sched_get_priority_max sched_get_priority_min getcpu
  uname sysinfo getrandom
"""

# From linux/seccomp.h, seccomp.h and the headers of the calls below.
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL, _MASKED = 4, 7
_NEW_NAMESPACES, _THREAD, _FILES = 0x7E020000, 0x10000, 0x400
_SHARED, _ANONYMOUS, _HUGE = 0x1, 0x20, 0x40000
_UNIX = 1


class _Test(ctypes.Structure):
  """Mirrors `struct scmp_arg_cmp`, a condition on argument `number`.

  The argument must equal `a`; or, for _MASKED, equal `b` under the mask `a`.
  """

  _fields_ = (
    ('number', ctypes.c_uint),
    ('how', ctypes.c_int),
    ('a', ctypes.c_uint64),
    ('b', ctypes.c_uint64),
  )


def _is(number: int, *values: int) -> list[_Test]:
  return [_Test(number, _EQUAL, value, 0) for value in values]


def _under(mask: int, number: int, value: int = 0) -> _Test:
  return _Test(number, _MASKED, mask, value)


# Calls that are allowed if an argument meets one of the conditions.
_WHERE = {
  # No new namespaces. Threads must share one table of open files, because the
  # launcher counts only one table for each process.
  'clone': [
    _under(_NEW_NAMESPACES | _THREAD, 0),
    _under(_NEW_NAMESPACES | _THREAD | _FILES, 0, _THREAD | _FILES),
  ],
  # Shared anonymous memory and huge pages do not count as any process's memory.
  'mmap': [
    _under(_ANONYMOUS | _HUGE, 3),
    _under(_ANONYMOUS | _SHARED | _HUGE, 3, _ANONYMOUS),
  ],
  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_OFD_GETLK,
  # F_DUPFD_CLOEXEC, F_GETPIPE_SZ
  'fcntl': _is(1, 0, 1, 2, 3, 4, 5, 36, 1030, 1032),
  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
  'ioctl': _is(1, 0x5401, 0x541B, 0x5421, 0x5450, 0x5451),
  # PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME,
  # PR_GET_NAME
  'prctl': _is(0, 1, 2, 3, 15, 16),
  # Only its own limits, not those of the process that watches it.
  'prlimit64': _is(0, 0),
  # asyncio needs a pair of connected sockets. sendto without an address sends
  # to the other end, never to a named socket.
  'socketpair': _is(0, _UNIX),
  'sendto': _is(4, 0),
}
# Locks seem to succeed but have no effect. SQLite needs them; the program's
# files are its own, and the machine's files must not be locked from inside.
_PRETENDED = {'flock': None, 'fcntl': _is(1, 6, 7, 37, 38)}
# Calls refused with an error that programs expect, such as "Address family not
# supported".
_ANSWERS = {
  'socket': errno.EAFNOSUPPORT,
  'mknod': errno.EPERM,
  'mknodat': errno.EPERM,
}


@functools.cache
def compiled() -> bytes:
  """Returns the filter in the form that the kernel takes.

  Raises:
    UserError: libseccomp is missing, or the processor is not supported.
  """
  if platform.machine() not in ('x86_64', 'aarch64'):
    raise UserError(
      f'no sandbox on {platform.machine()}: run code tests on x86_64 or aarch64'
    )
  library = _library()
  library.seccomp_init.restype = ctypes.c_void_p
  context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.ENOSYS))
  rules = [(name, _ALLOW, None) for name in ALLOWED.split()]
  for name, error in _ANSWERS.items():
    rules.append((name, _ERRNO | error, None))
  for action, tests in ((_ALLOW, _WHERE), (_ERRNO, _PRETENDED)):
    for name, alternatives in tests.items():
      rules += [(name, action, test) for test in alternatives or [None]]
  for name, action, test in rules:
    if (call := number(name)) >= 0:  # not every processor has every call
      tests = (_Test * 1)(test) if test else None
      count = 1 if test else 0
      done = library.seccomp_rule_add_array(
        context, ctypes.c_uint32(action), call, count, tests
      )
      if done:
        raise OSError(-done, f'a rule for {name}: {os.strerror(-done)}')
  end, start = os.pipe()
  try:
    library.seccomp_export_bpf(context, start)
    os.close(start)
    with os.fdopen(end, 'rb') as file:
      return file.read()
  finally:
    library.seccomp_release(context)


def number(name: str) -> int:
  """Returns a system call's number; negative if this processor lacks it."""
  return _library().seccomp_syscall_resolve_name(name.encode())


@functools.cache
def _library() -> ctypes.CDLL:
  try:
    return ctypes.CDLL(LIBRARY)
  except OSError as error:
    raise UserError(
      f'no sandbox on this machine ({LIBRARY} is missing): install libseccomp2 '
      '(apt-get install libseccomp2; elsewhere the package libseccomp)'
    ) from error

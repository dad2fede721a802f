"""Programs that try to get out, each with what must become of it.

`outside.py` runs them and looks from outside at what they have done: the words
and the outcome below say only that a program has tried.
"""

import signal

# What they find in `out` is what `outside.Outside` has put there.
HEAD = """
import contextlib, ctypes, errno, os, signal, socket, subprocess, sys
import threading, time
out = OUT
libc = ctypes.CDLL(None, use_errno=True)
places = [out['folder'], sys.prefix]

def call(name, *arguments):
  '''What the kernel answers: a number, or the name of an error.'''
  numbers = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
  done = libc.syscall(out['calls'][name], *numbers)
  return errno.errorcode[ctypes.get_errno()] if done == -1 else done

def refused(*names):
  '''Calls with arguments that would do no harm, and be no fault.'''
  for name in names:
    if out['calls'][name] >= 0:
      print(name, call(name, 0, 0, 0, 0, 0, 0))

def attempt(function, *arguments):
  try:
    print(function(*arguments))
  except OSError as error:
    print(type(error).__name__, error)
"""

CALLS = """
  keyctl add_key request_key shmget shmat shmctl msgget msgsnd semget semop
  mq_open memfd_create memfd_secret unshare setns clone clone3 mount umount2
  pivot_root chroot fsopen fsmount open_tree move_mount mount_setattr
  fspick ptrace process_vm_readv process_vm_writev process_madvise pidfd_open
  pidfd_getfd pidfd_send_signal kcmp bpf perf_event_open userfaultfd
  io_uring_setup io_uring_enter io_uring_register io_setup io_submit
  open_by_handle_at name_to_handle_at reboot swapon swapoff acct quotactl
  syslog init_module finit_module delete_module kexec_load kexec_file_load
  iopl ioperm inotify_init1 fanotify_init vmsplice splice tee sync syncfs
  landlock_create_ruleset seccomp personality sethostname setdomainname
  settimeofday clock_settime adjtimex clock_adjtime vhangup mlock mlock2
  mlockall move_pages migrate_pages mbind set_mempolicy setpriority
  sched_setscheduler sched_setparam sched_setattr sched_setaffinity
  ioprio_set setuid setgid setgroups setxattr lookup_dcookie mmap prlimit64
  exit getpid fcntl sendmsg sendto timer_create socket
""".split()

_FORBIDDEN = {
  'keys': 'keyctl add_key request_key',
  'System V memory': 'shmget shmat shmctl',
  'System V queues and semaphores': 'msgget msgsnd semget semop mq_open',
  'memory without a file': 'memfd_create memfd_secret',
  'other namespaces': 'unshare setns',
  'mounts': (
    'mount umount2 pivot_root chroot fsopen fsmount fspick open_tree '
    'move_mount mount_setattr'
  ),
  'the memory of others': (
    'ptrace process_vm_readv process_vm_writev process_madvise kcmp'
  ),
  'processes by descriptor': 'pidfd_open pidfd_getfd pidfd_send_signal',
  'programs in the kernel': 'bpf perf_event_open userfaultfd',
  'io_uring': (
    'io_uring_setup io_uring_enter io_uring_register io_setup io_submit'
  ),
  'files by number': 'open_by_handle_at name_to_handle_at lookup_dcookie',
  'the machine': (
    'reboot swapon swapoff acct quotactl syslog init_module finit_module '
    'delete_module kexec_load kexec_file_load iopl ioperm vhangup sync syncfs'
  ),
  'watching files': 'inotify_init1 fanotify_init',
  'pages in pipes': 'vmsplice splice tee',
  'names of the machine': 'sethostname setdomainname',
  'clocks': 'settimeofday clock_settime adjtimex clock_adjtime timer_create',
  'memory that stays': 'mlock mlock2 mlockall move_pages migrate_pages mbind',
  'priorities': (
    'setpriority sched_setscheduler sched_setparam sched_setattr '
    'sched_setaffinity ioprio_set'
  ),
  'other users': 'setuid setgid setgroups personality',
  'other filters': 'seccomp landlock_create_ruleset',
}

# Name: (program, limits, outcome, exit code, words in the output).
PROGRAMS = {
  'right': ('answer = 42\nassert answer == 42', {}, 'passed', 0, ''),
  'wrong': ('assert 41 == 42', {}, 'failed', 1, 'AssertionError'),
  'exception': ('{}["key"]', {}, 'failed', 1, "KeyError: 'key'"),
  'no Python': ('def f(:', {}, 'failed', 1, 'SyntaxError'),
  'exit 3': ('sys.exit(3)', {}, 'failed', 3, ''),
  'exit 0 before the tests': ('sys.exit(0)', {}, 'failed', 0, ''),
  'hard exit 0': ('os._exit(0)', {}, 'failed', 0, ''),
  'kills itself': ('os.kill(os.getpid(), 9)', {}, 'failed', -9, ''),
  'kills all it can': (
    # Its parent is the init of a namespace, or this would kill the tester.
    'assert os.getppid() == 1\n'
    'if os.fork() == 0: time.sleep(60)\nos.kill(-1, 9)',
    {},
    'passed',
    0,
    '',
  ),
  'signals the tester': (
    'for process in (out["process"], os.getppid(), -1):\n'
    '  with contextlib.suppress(ProcessLookupError, PermissionError):\n'
    '    signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n'
    '    os.kill(process, signal.SIGUSR1)',
    {},
    'passed',
    0,
    '',
  ),
  'interrupts the first process': (
    'for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):\n'
    '  with contextlib.suppress(PermissionError): os.kill(1, number)\n'
    'time.sleep(0.3)\nsys.exit(3)',
    {},
    'failed',
    3,
    '',
  ),
  'limits the first process': (
    # To one second of CPU and no files, so that it could not watch.
    'limits = (ctypes.c_uint64 * 2)(0, 0)\n'
    'for kind in (0, 7): print(call("prlimit64", 1, kind, limits, None))\n'
    'sys.exit(3)',
    {},
    'failed',
    3,
    'E',
  ),
  'writes to every descriptor': (
    'for fd in range(3, 64):\n'
    '  try: os.write(fd, b\'{"code": 0}\\n\')\n'
    '  except OSError: pass\n'
    'sys.exit(3)',
    {},
    'failed',
    3,
    '',
  ),
  'uses every descriptor': (
    'for fd in range(1024):\n'
    '  with contextlib.suppress(OSError):\n'
    '    if os.isatty(fd): print("a terminal")\n'
    '    os.fchdir(fd); open("escaped", "w"); print("a folder")\n'
    'print("nothing")',
    {},
    'passed',
    0,
    'nothing',
  ),
  'too large to write down': (
    '#' * 100_000,
    {'disk_bytes': 50_000},
    'failed',
    1,
    'cannot be written',
  ),
  'no text': ('"\ud800"', {}, 'failed', 1, 'cannot be written'),
  # Time.
  'fork bomb': (
    'while True:\n  try: os.fork()\n  except OSError: pass',
    {'wall_seconds': 1.5},
    'timed out',
    None,
    '',
  ),
  'thread bomb': (
    'while True:\n'
    '  try: threading.Thread(target=time.sleep, args=(60,)).start()\n'
    '  except RuntimeError as e: print(e, flush=True); os._exit(3)',
    {},
    'failed',
    3,
    "can't start new thread",
  ),
  'zombies': (
    'children = 0\n'
    'try:\n'
    '  while children < 1000:\n'
    '    if os.fork() == 0: os._exit(0)\n'
    '    children += 1\n'
    'except BlockingIOError: print(children < 20)',
    {},
    'passed',
    0,
    'True',
  ),
  'infinite loop': (
    'while True: pass',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  'cpu limit': (
    'while True: pass',
    {'cpu_seconds': 1, 'wall_seconds': 30},
    'timed out',
    -signal.SIGXCPU,
    '',
  ),
  'children use the cpu': (
    'for _ in range(3): os.fork()\nwhile True: pass',
    {'wall_seconds': 1.5},
    'timed out',
    None,
    '',
  ),
  'timers and no end': (
    'signal.signal(signal.SIGALRM, lambda *_: None)\n'
    'signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n'
    'while True: signal.pause()',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  'silent and stopped': (
    'os.close(1); os.close(2); os.kill(os.getpid(), signal.SIGSTOP)',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  'deaf to every signal': (
    'for number in range(1, 65):\n'
    '  with contextlib.suppress(OSError, ValueError):\n'
    '    signal.signal(number, signal.SIG_IGN)\n'
    'while True: time.sleep(1)',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  '1 GB of output': (
    'for _ in range(1000): print("x" * 1_000_000)',
    {},
    'output too long',
    None,
    'xxxx',
  ),
  '1 GB of errors from children': (
    'os.fork(); os.fork()\n'
    'for _ in range(1000): print("x" * 1_000_000, file=sys.stderr)',
    {},
    'output too long',
    None,
    'xxxx',
  ),
  'child outlives parent': (
    'if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n'
    '    os.close(1); os.close(2); time.sleep(60)\n  os._exit(0)',
    {},
    'passed',
    0,
    '',
  ),
  'child of an infinite loop': (
    'if os.fork() == 0:\n  os.setsid(); os.close(1); os.close(2)\n'
    'while True: time.sleep(1)',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  # Files.
  'writes outside': (
    'open("/tmp/escaped", "w").write("x")',
    {},
    'failed',
    1,
    'Read-only file system',
  ),
  'writes where everyone may': (
    'for place in places:\n'
    '  attempt(open, f"{place}/escaped", "w")\n'
    '  attempt(open, f"{place}/file", "w")',
    {},
    'passed',
    0,
    'Error',
  ),
  'links and dots': (
    'os.symlink(out["folder"], "link")\n'
    'attempt(open, "link/escaped", "w")\n'
    'attempt(open, "../" * 40 + out["folder"] + "/escaped", "w")\n'
    'for name in ("/old", "/proc/1/root", "/dev/fd/3", "/oldroot"):\n'
    '  attempt(open, name + out["folder"] + "/escaped", "w")\n'
    'attempt(os.link, sys.prefix + "/file", "linked")',
    {},
    'passed',
    0,
    'Error',
  ),
  'reads what others may': (
    'attempt(open(f"{sys.prefix}/file").read)\n'
    'attempt(lambda: open(f"{places[0]}/file").read())\n'
    'for name in ("/etc/passwd", "/etc/shadow", "/home", "/var", "/run"):\n'
    '  print(name, os.path.exists(name))',
    {},
    'passed',
    0,
    '/run False',
  ),
  'sees a root of its own': (
    'shown = set(os.listdir("/")) - set(sys.prefix.split("/"))\n'
    'shown -= set(sys.base_prefix.split("/"))\n'
    'known = "usr bin lib lib32 lib64 sbin etc dev proc tmp empty"\n'
    'print(shown - set(known.split()), sorted(os.listdir("/dev")))\n'
    'print(set(os.listdir("/tmp")) - set(sys.prefix.split("/")))\n'
    'print(os.listdir("/proc"))',
    {},
    'passed',
    0,
    "set() ['null', 'shm', 'urandom']\nset()\n[]",
  ),
  'devices': (
    'import stat\n'
    'for name in ("mem", "kmsg", "sda", "vda", "kvm", "fuse", "ptmx", "zero"):\n'
    '  attempt(os.open, f"/dev/{name}", os.O_RDWR)\n'
    'for kind in (stat.S_IFBLK, stat.S_IFCHR):\n'
    '  attempt(os.mknod, "device", kind | 0o600, os.makedev(1, 1))\n'
    'assert not os.path.exists("device")\n'
    'attempt(os.utime, "/dev/null"); attempt(os.chmod, "/dev/null", 0)',
    {},
    'passed',
    0,
    'PermissionError',
  ),
  'dumps core': (
    'assert not os.path.exists("core")\n'
    'if os.fork() == 0: ctypes.string_at(0)\n'
    'print(os.wait()[1] & 0x80, os.listdir())',
    {},
    'passed',
    0,
    "0 ['program.py']",
  ),
  '10 GB in a file': (
    'with open("big", "wb") as file:\n'
    '  for _ in range(10_000): file.write(bytes(1_000_000))',
    {},
    'failed',
    1,
    'OSError',
  ),
  'a hole of 10 GB': (
    'os.truncate(os.open("big", os.O_CREAT | os.O_RDWR), 10 << 30)',
    {},
    'failed',
    1,
    'File too large',
  ),
  '10 GB in many files': (
    'for i in range(10_000):\n'
    '  with open(f"{i}", "wb") as file: file.write(bytes(1_000_000))',
    {},
    'failed',
    1,
    'No space left on device',
  ),
  'a million empty files': (
    'for i in range(1_000_000): os.close(os.open(f"{i}", os.O_CREAT))',
    {},
    'failed',
    1,
    'No space left on device',
  ),
  'a million links': (
    'for i in range(1_000_000): os.symlink("x" * 3000, f"{i}")',
    {},
    'failed',
    1,
    'No space left on device',
  ),
  'locks files outside': (
    'import fcntl\n'
    'for name in (*(f"{p}/file" for p in places), "/dev/null", os.__file__,\n'
    '             os.path.realpath(sys.executable), "/usr/bin/env"):\n'
    '  try: fd = os.open(name, os.O_RDONLY)\n'
    '  except OSError: continue\n'
    '  for lock in (fcntl.flock, fcntl.lockf):\n'
    '    attempt(lock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n'
    '  attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n'
    '  attempt(fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n'
    '  print(call("fcntl", fd, 37, (ctypes.c_int64 * 4)()))\n'
    'time.sleep(0.5)',
    {},
    'passed',
    0,
    'OSError',
  ),
  # Ways to others.
  'network': (
    'socket.create_connection(("127.0.0.1", out["port"]), timeout=2)',
    {},
    'failed',
    1,
    'OSError',
  ),
  'every kind of socket': (
    'for family in range(64):\n'
    '  for kind in (1, 2, 3, 5):\n'
    '    with contextlib.suppress(OSError):\n'
    '      print("a socket:", socket.socket(family, kind))\n'
    'print("none")',
    {},
    'passed',
    0,
    'none',
  ),
  'path sockets': (
    'for place in places:\n'
    '  for name, kind in (("stream", 1), ("mail", 2)):\n'
    '    with contextlib.suppress(OSError):\n'
    '      with socket.socket(socket.AF_UNIX, kind) as end:\n'
    '        end.connect(f"{place}/{name}"); end.send(b"escaped")\n',
    {},
    'passed',
    0,
    '',
  ),
  'path sockets from a pair': (
    'for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n'
    '  for end in socket.socketpair(type=kind):\n'
    '    for place in places:\n'
    '      name = f"{place}/mail"\n'
    '      attempt(end.connect, name); attempt(end.sendto, b"x", name)\n'
    '      attempt(end.sendmsg, [b"escaped"], [], 0, name)',
    {},
    'passed',
    0,
    'Error',
  ),
  'abstract socket': (
    'with contextlib.suppress(OSError):\n'
    '  with socket.socket(socket.AF_UNIX) as end:\n'
    '    end.connect("\\0" + out["abstract"])',
    {},
    'passed',
    0,
    '',
  ),
  'FIFOs': (
    'for place in places:\n'
    '  with contextlib.suppress(OSError):\n'
    '    fd = os.open(f"{place}/fifo", os.O_WRONLY | os.O_NONBLOCK)\n'
    '    print(os.write(fd, b"escaped"))',
    {},
    'passed',
    0,
    '',
  ),
  'FIFO of its own': (
    'attempt(os.mkfifo, "fifo")',
    {},
    'passed',
    0,
    'PermissionError',
  ),
  'tmux': (
    'with contextlib.suppress(OSError):\n'
    '  words = ["run-shell", f"touch {out[\'folder\']}/escaped"]\n'
    '  done = subprocess.run(["tmux", "-S", out["tmux"], *words])\n'
    'print("tried")',
    {},
    'passed',
    0,
    'tried',
  ),
  "the caller's terminal": (
    'import fcntl, termios\n'
    'for name in ("/dev/tty", out["terminal"], "/dev/console", "/dev/ptmx"):\n'
    '  with contextlib.suppress(OSError):\n'
    '    fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)\n'
    '    os.write(fd, b"escaped"); print(os.read(fd, 100))\n'
    'for fd in range(64):\n'
    '  with contextlib.suppress(OSError):\n'
    '    fcntl.ioctl(fd, termios.TIOCSTI, b"x"); print("typed")',
    {},
    'passed',
    0,
    '',
  ),
  "the caller's keys": (
    'room = ctypes.create_string_buffer(100)\n'
    'for key in (out["key"], -3, -4, -5):\n'
    '  print(call("keyctl", 11, key, room, 100), room.raw)\n'
    '  call("keyctl", 2, key, b"escaped", 7)\n'
    '  call("add_key", b"user", b"escaped", b"x", 1, key)\n'
    '  call("keyctl", 3, out["key"]); call("keyctl", 9, out["key"], key)',
    {},
    'passed',
    0,
    'E',
  ),
  "the caller's shared memory": (
    'libc.shmat.restype = ctypes.c_void_p\n'
    'found = libc.shmget(out["shared"], 4096, 0o666)\n'
    'if found >= 0: ctypes.memmove(libc.shmat(found, None, 0), b"escaped", 7)\n'
    'print(found)',
    {},
    'passed',
    0,
    '-1',
  ),
  "the caller's environment": (
    'found = [dict(os.environ)]\n'
    'for process in [*os.listdir("/proc"), os.getppid(), out["process"]]:\n'
    '  for name in ("environ", "cmdline", "maps", "fd", "cwd"):\n'
    '    try: found.append(open(f"/proc/{process}/{name}").read())\n'
    '    except OSError: pass\n'
    'print(len(found), found)',
    {},
    'passed',
    0,
    'HOME',
  ),
  'memory through /proc': (
    'for process in ("self", 1, os.getppid(), out["process"]):\n'
    '  attempt(open, f"/proc/{process}/mem", "r+b")\n'
    '  attempt(open, f"/proc/{process}/root{out[\'folder\']}/escaped", "w")\n'
    'attempt(open, "/proc/sys/kernel/core_pattern", "w")\n'
    'attempt(open, "/proc/sysrq-trigger", "w")',
    {},
    'passed',
    0,
    'FileNotFoundError',
  ),
  'programs of root': (
    'for command in ("su -c id", "mount -t tmpfs x /tmp", "newuidmap 1 0 0 1",\n'
    '                "passwd", "sudo -n id", "unshare -Ur id", "chsh"):\n'
    '  with contextlib.suppress(OSError):\n'
    '    done = subprocess.run(command.split(), capture_output=True,\n'
    '                          stdin=subprocess.DEVNULL)\n'
    '    assert done.returncode != 0, done\n'
    'assert 0 not in os.getresuid() and "x" not in os.listdir("/tmp")',
    {},
    'passed',
    0,
    '',
  ),
  # Rights.
  'mounts it writable': (
    'assert libc.mount(None, b"/", None, 32 | 4096, None) == -1\n'
    'libc.unshare(0x10020000)\n'
    'assert libc.mount(None, b"/", None, 32 | 4096, None) == -1\n'
    'open("/tmp/escaped", "w")',
    {},
    'failed',
    1,
    'Read-only file system',
  ),
  'namespaces inside': (
    'for flags in (0x10000000, 0x10020000, 0x20000, 0x40000000, 0x80):\n'
    '  print(call("unshare", flags))\n'
    '  done = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)\n'
    '  if done == 0: os._exit(0)\n'
    '  print(done)\n'
    'print(call("clone3", (ctypes.c_uint64 * 11)(0x10000000), 88))\n'
    'assert libc.mount(b"x", b"/tmp", b"tmpfs", 0, None) == -1',
    {},
    'passed',
    0,
    'ENOSYS',
  ),
  'rights it never had': (
    'for number in range(64):\n'
    '  libc.prctl(47, 2, number, 0, 0)\n'
    'assert libc.prctl(38, 0, 0, 0, 0) == -1\n'
    'assert libc.prctl(4, 0, 0, 0, 0) == -1\n'
    'assert libc.prctl(28, 0, 0, 0, 0) == -1',
    {},
    'passed',
    0,
    '',
  ),
  # Memory: the whole program's.
  '10 GB of memory': (
    'memory = bytearray(10 << 30)',
    {},
    'out of memory',
    1,
    'MemoryError',
  ),
  'memory of many processes': (
    'for _ in range(3): os.fork()\n'
    'memory = bytearray(os.urandom(1 << 20)) * 150\ntime.sleep(60)',
    {'memory_bytes': 256 << 20},
    'out of memory',
    None,
    '',
  ),
  'memory of a dead thread': (
    # The first thread ends; what the others have is under no name but theirs.
    'def hold():\n'
    '  memory = bytearray(os.urandom(1 << 20)) * 150\n  time.sleep(60)\n'
    'for _ in range(3): os.fork()\n'
    'threading.Thread(target=hold, daemon=True).start()\n'
    'call("exit", 0)',
    {'memory_bytes': 256 << 20, 'processes': 40},
    'out of memory',
    None,
    '',
  ),
  '60 memfds': (
    'size = 8 << 20\n'
    'for number in range(60):\n'
    '  done = call("memfd_create", b"x", 0)\n'
    '  if isinstance(done, str): break\n'
    '  os.write(done, bytes(size))\n'
    'print(number * size)',
    {'memory_bytes': 256 << 20},
    'passed',
    0,
    '0\n',
  ),
  'shared memory': (
    'print(call("shmget", 0, 1 << 30, 0o1600))',
    {},
    'passed',
    0,
    'ENOSYS',
  ),
  'memory without an owner': (
    # Shared and without a file it belongs to no process that could be counted.
    'import mmap\n'
    'held = 0\n'
    'with contextlib.suppress(OSError):\n'
    '  for _ in range(4):\n'
    '    memory = mmap.mmap(-1, 100 << 20)\n'
    '    memory.write(bytes(100 << 20)); held += 100\n'
    '    if os.fork() == 0: time.sleep(5)\n'
    '    memory.close()\n'
    'print(held)',
    {'memory_bytes': 256 << 20},
    'passed',
    0,
    '0\n',
  ),
  'memory in sockets': (
    'for _ in range(3): os.fork()\n'
    'pairs = []\n'
    'for _ in range(50):\n'
    '  for end in socket.socketpair():\n'
    '    pairs.append(end); end.setblocking(False)\n'
    '    with contextlib.suppress(OSError):\n'
    '      while True: end.send(bytes(1 << 16))\n'
    'time.sleep(60)',
    {'memory_bytes': 128 << 20, 'wall_seconds': 20},
    'out of memory',
    None,
    '',
  ),
  'huge pages': (
    'print(call("mmap", 0, 2 << 20, 3, 0x40022, -1, 0))',
    {},
    'passed',
    0,
    'ENOSYS',
  ),
}
for _what, _calls in _FORBIDDEN.items():
  PROGRAMS[_what] = (
    f'refused(*{_calls.split()!r})',
    {},
    'passed',
    0,
    'ENOSYS',
  )

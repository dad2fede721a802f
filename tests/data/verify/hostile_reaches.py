"""Hostile programs that try to reach files, other processes and rights."""

from tests.data.verify.hostile_programs import Program

# Forbidden system calls, by the purpose that they would serve.
FORBIDDEN = {
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

# All calls that the programs make by name, as Python has no function for them.
CALLS = {
  *' '.join(FORBIDDEN.values()).split(),
  *('clone', 'clone3', 'exit', 'fcntl', 'mmap', 'prlimit64'),
}
REACHES = {
  'kills all it can': Program(
    """
      assert os.getppid() == 1
      if os.fork() == 0: time.sleep(60)
      os.kill(-1, 9)
    """,
  ),
  'signals the tester': Program(
    """
      for process in (out["process"], os.getppid(), -1):
        with contextlib.suppress(ProcessLookupError, PermissionError):
          signal.signal(signal.SIGUSR1, signal.SIG_IGN)
          os.kill(process, signal.SIGUSR1)
    """,
  ),
  'interrupts the first process': Program(
    """
      for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(PermissionError): os.kill(1, number)
      time.sleep(0.3)
      sys.exit(3)
    """,
    outcome='failed',
    code=3,
  ),
  'limits the first process': Program(
    """
      limits = (ctypes.c_uint64 * 2)(0, 0)
      for kind in (0, 7): print(call("prlimit64", 1, kind, limits, None))
      sys.exit(3)
    """,
    outcome='failed',
    code=3,
    words='E',
  ),
  'writes to every descriptor': Program(
    """
      for fd in range(3, 64):
        try: os.write(fd, b'{"code": 0}\\n')
        except OSError: pass
      sys.exit(3)
    """,
    outcome='failed',
    code=3,
  ),
  'uses every descriptor': Program(
    """
      for fd in range(1024):
        with contextlib.suppress(OSError):
          if os.isatty(fd): print("a terminal")
          os.fchdir(fd); open("escaped", "w"); print("a folder")
      print("nothing")
    """,
    words='nothing',
  ),
  'writes outside': Program(
    'open("/tmp/escaped", "w").write("x")',
    outcome='failed',
    code=1,
    words='Read-only file system',
  ),
  'writes where everyone may': Program(
    """
      for place in places:
        attempt(open, f"{place}/escaped", "w")
        attempt(open, f"{place}/file", "w")
    """,
    words='Error',
  ),
  'links and dots': Program(
    """
      os.symlink(out["folder"], "link")
      attempt(open, "link/escaped", "w")
      attempt(open, "../" * 40 + out["folder"] + "/escaped", "w")
      for name in ("/old", "/proc/1/root", "/dev/fd/3", "/oldroot"):
        attempt(open, name + out["folder"] + "/escaped", "w")
      attempt(os.link, sys.prefix + "/file", "linked")
    """,
    words='Error',
  ),
  'reads what others may': Program(
    """
      attempt(open(f"{sys.prefix}/file").read)
      attempt(lambda: open(f"{places[0]}/file").read())
      for name in ("/etc/passwd", "/etc/shadow", "/home", "/var", "/run"):
        print(name, os.path.exists(name))
    """,
    words='/run False',
  ),
  'sees a root of its own': Program(
    """
      shown = set(os.listdir("/")) - set(sys.prefix.split("/"))
      shown -= set(sys.base_prefix.split("/"))
      known = "usr bin lib lib32 lib64 sbin etc dev proc tmp empty"
      print(shown - set(known.split()), sorted(os.listdir("/dev")))
      print(set(os.listdir("/tmp")) - set(sys.prefix.split("/")))
      print(os.listdir("/proc"))
    """,
    words="set() ['null', 'shm', 'urandom']\nset()\n[]",
  ),
  'devices': Program(
    """
      import stat
      for name in ("mem", "kmsg", "sda", "vda", "kvm", "fuse", "ptmx", "zero"):
        attempt(os.open, f"/dev/{name}", os.O_RDWR)
      for kind in (stat.S_IFBLK, stat.S_IFCHR):
        attempt(os.mknod, "device", kind | 0o600, os.makedev(1, 1))
      assert not os.path.exists("device")
      attempt(os.utime, "/dev/null"); attempt(os.chmod, "/dev/null", 0)
    """,
    words='PermissionError',
  ),
  'locks files outside': Program(
    """
      import fcntl
      for name in (*(f"{p}/file" for p in places), "/dev/null", os.__file__,
                   os.path.realpath(sys.executable), "/usr/bin/env"):
        try: fd = os.open(name, os.O_RDONLY)
        except OSError: continue
        for lock in (fcntl.flock, fcntl.lockf):
          attempt(lock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        attempt(fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        print(call("fcntl", fd, 37, (ctypes.c_int64 * 4)()))
      time.sleep(0.5)
    """,
    words='OSError',
  ),
  'network': Program(
    """
      socket.create_connection(("127.0.0.1", out["port"]), timeout=2)
    """,
    outcome='failed',
    code=1,
    words='OSError',
  ),
  'every kind of socket': Program(
    """
      for family in range(64):
        for kind in (1, 2, 3, 5):
          with contextlib.suppress(OSError):
            print("a socket:", socket.socket(family, kind))
      print("none")
    """,
    words='none',
  ),
  'path sockets': Program(
    """
      for place in places:
        for name, kind in (("stream", 1), ("mail", 2)):
          with contextlib.suppress(OSError):
            with socket.socket(socket.AF_UNIX, kind) as end:
              end.connect(f"{place}/{name}"); end.send(b"escaped")
    """,
  ),
  'path sockets from a pair': Program(
    """
      for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for end in socket.socketpair(type=kind):
          for place in places:
            name = f"{place}/mail"
            attempt(end.connect, name); attempt(end.sendto, b"x", name)
            attempt(end.sendmsg, [b"escaped"], [], 0, name)
    """,
    words='Error',
  ),
  'abstract socket': Program(
    """
      with contextlib.suppress(OSError):
        with socket.socket(socket.AF_UNIX) as end:
          end.connect("\\0" + out["abstract"])
    """,
  ),
  'FIFOs': Program(
    """
      for place in places:
        with contextlib.suppress(OSError):
          fd = os.open(f"{place}/fifo", os.O_WRONLY | os.O_NONBLOCK)
          print(os.write(fd, b"escaped"))
    """,
  ),
  'FIFO of its own': Program(
    'attempt(os.mkfifo, "fifo")', words='PermissionError'
  ),
  'tmux': Program(
    """
      with contextlib.suppress(OSError):
        words = ["run-shell", f"touch {out['folder']}/escaped"]
        done = subprocess.run(["tmux", "-S", out["tmux"], *words])
      print("tried")
    """,
    words='tried',
  ),
  "the caller's terminal": Program(
    """
      import fcntl, termios
      for name in ("/dev/tty", out["terminal"], "/dev/console", "/dev/ptmx"):
        with contextlib.suppress(OSError):
          fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
          os.write(fd, b"escaped"); print(os.read(fd, 100))
      for fd in range(64):
        with contextlib.suppress(OSError):
          fcntl.ioctl(fd, termios.TIOCSTI, b"x"); print("typed")
    """,
  ),
  "the caller's keys": Program(
    """
      room = ctypes.create_string_buffer(100)
      for key in (out["key"], -3, -4, -5):
        print(call("keyctl", 11, key, room, 100), room.raw)
        call("keyctl", 2, key, b"escaped", 7)
        call("add_key", b"user", b"escaped", b"x", 1, key)
        call("keyctl", 3, out["key"]); call("keyctl", 9, out["key"], key)
    """,
    words='E',
  ),
  "the caller's shared memory": Program(
    """
      libc.shmat.restype = ctypes.c_void_p
      found = libc.shmget(out["shared"], 4096, 0o666)
      if found >= 0: ctypes.memmove(libc.shmat(found, None, 0), b"escaped", 7)
      print(found)
    """,
    words='-1',
  ),
  "the caller's environment": Program(
    """
      found = [dict(os.environ)]
      for process in [*os.listdir("/proc"), os.getppid(), out["process"]]:
        for name in ("environ", "cmdline", "maps", "fd", "cwd"):
          try: found.append(open(f"/proc/{process}/{name}").read())
          except OSError: pass
      print(len(found), found)
    """,
    words='HOME',
  ),
  'memory through /proc': Program(
    """
      for process in ("self", 1, os.getppid(), out["process"]):
        attempt(open, f"/proc/{process}/mem", "r+b")
        attempt(open, f"/proc/{process}/root{out['folder']}/escaped", "w")
      attempt(open, "/proc/sys/kernel/core_pattern", "w")
      attempt(open, "/proc/sysrq-trigger", "w")
    """,
    words='FileNotFoundError',
  ),
  'programs of root': Program(
    """
      for command in ("su -c id", "mount -t tmpfs x /tmp", "newuidmap 1 0 0 1",
                      "passwd", "sudo -n id", "unshare -Ur id", "chsh"):
        with contextlib.suppress(OSError):
          done = subprocess.run(command.split(), capture_output=True,
                                stdin=subprocess.DEVNULL)
          assert done.returncode != 0, done
      assert 0 not in os.getresuid() and "x" not in os.listdir("/tmp")
    """,
  ),
  'mounts it writable': Program(
    """
      assert libc.mount(None, b"/", None, 32 | 4096, None) == -1
      libc.unshare(0x10020000)
      assert libc.mount(None, b"/", None, 32 | 4096, None) == -1
      open("/tmp/escaped", "w")
    """,
    outcome='failed',
    code=1,
    words='Read-only file system',
  ),
  'namespaces inside': Program(
    """
      for flags in (0x10000000, 0x10020000, 0x20000, 0x40000000, 0x80):
        print(call("unshare", flags))
        done = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
        if done == 0: os._exit(0)
        print(done)
      print(call("clone3", (ctypes.c_uint64 * 11)(0x10000000), 88))
      assert libc.mount(b"x", b"/tmp", b"tmpfs", 0, None) == -1
    """,
    words='ENOSYS',
  ),
  'rights it never had': Program(
    """
      for number in range(64):
        libc.prctl(47, 2, number, 0, 0)
      assert libc.prctl(38, 0, 0, 0, 0) == -1
      assert libc.prctl(4, 0, 0, 0, 0) == -1
      assert libc.prctl(28, 0, 0, 0, 0) == -1
    """,
  ),
} | {
  name: Program(f'refused(*{calls.split()!r})', "{'ENOSYS'}")
  for name, calls in FORBIDDEN.items()
}

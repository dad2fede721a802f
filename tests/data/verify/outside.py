"""Runs hostile programs, and sees whether they reach things outside.

As a script, started by root or an ordinary user, it runs the hostile programs
and prints as JSON their results and every change that it saw outside. It makes
the things outside itself, so that two of it can run at the same time. With the
word "together" before their names, all programs run at the same time.
"""

import array
import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import textwrap
import threading
import time
import tty
from concurrent import futures

from prm_jax.data.verify import sandbox, sandbox_filter
from tests.data.verify.hostile_programs import HEAD
from tests.data.verify.hostile_programs import PROGRAMS as GREEDY
from tests.data.verify.hostile_reaches import CALLS, REACHES
from tests.data.verify.hostile_remains import REMAINS

PROGRAMS = GREEDY | REACHES | REMAINS
SECRET = 'a secret that nobody inside may read'
VARIABLE = 'PRM_JAX_TEST_SECRET'
TYPED = b'typed for the caller\n'
_SET_DUMPABLE, _SUBREAPER, _LINK_SESSION = 4, 36, -3
_KEYCTL = {'join': 1, 'update': 2, 'describe': 6, 'read': 11}
_IPC_CREATE, _IPC_REMOVE = 0o1000, 0

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def descendants() -> dict[int, str]:
  """Returns the command lines of all descendants of this process, by pid."""
  parents, found = {}, {}
  for name in filter(str.isdigit, os.listdir('/proc')):
    with contextlib.suppress(OSError):  # it has ended
      stat = pathlib.Path(f'/proc/{name}/stat').read_text()
      parents[int(name)] = int(stat.rpartition(')')[2].split()[1])
  for process in parents:
    above = process
    while above in parents and above != os.getpid():
      above = parents[above]
    if above == os.getpid() and process != os.getpid():
      with contextlib.suppress(OSError):
        line = pathlib.Path(f'/proc/{process}/cmdline').read_bytes()
        found[process] = line.replace(b'\0', b' ').decode()
  return found


def private_bytes(process: int) -> int:
  """Returns the memory of a process that belongs to no file on a disk."""
  total = 0
  with contextlib.suppress(OSError):
    for line in (
      pathlib.Path(f'/proc/{process}/smaps_rollup').read_text().splitlines()
    ):
      if line.startswith(('Pss_Anon:', 'Pss_Shmem:', 'Swap:')):
        total += 1024 * int(line.split()[1])
  return total


def held() -> set[tuple[str, str]]:
  """Returns the descendants and the open descriptors of this process."""
  found = {('process', f'{p} {line}') for p, line in descendants().items()}
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError):  # the folder's own is closed again
      found.add((name, os.readlink(f'/proc/self/fd/{name}')))
  return found


class Outside:
  """Makes things that a program might reach, and checks them afterwards."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    # Everyone may enter and write: only the sandbox prevents it.
    folder.chmod(0o777)
    self.names = {'process': os.getpid(), 'folder': str(folder)}
    self.names['calls'] = {name: sandbox_filter.number(name) for name in CALLS}
    self.seen = []
    self.sockets, self.pipes, self.files = {}, {}, {}
    self.peak = 0
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGUSR1, lambda *_: self.seen.append('a signal'))
    self._terminal()
    self._network()
    for place in (folder, pathlib.Path(sys.prefix)):
      self._fill(place)
    self._shared_memory()
    self._keyring()
    self._tmux()

  def _network(self) -> None:
    server = socket.create_server(('127.0.0.1', 0))
    self.names['port'] = server.getsockname()[1]
    self.sockets['network'] = server
    name = f'prm_jax_{os.getpid()}_{time.time_ns()}'
    self.names['abstract'] = name
    self.sockets['abstract'] = self._listen(f'\0{name}', socket.SOCK_STREAM)

  def _listen(self, name: str, kind: int) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(name)
    if kind == socket.SOCK_STREAM:
      server.listen()
    return server

  def _fill(self, place: pathlib.Path) -> None:
    """Makes files, sockets and FIFOs in a folder, hidden or shown inside."""
    for name, kind in (
      ('stream', socket.SOCK_STREAM),
      ('mail', socket.SOCK_DGRAM),
    ):
      self.sockets[f'{place / name}'] = self._listen(str(place / name), kind)
    os.mkfifo(place / 'fifo')
    self.pipes[f'{place / "fifo"}'] = os.open(
      place / 'fifo', os.O_RDWR | os.O_NONBLOCK
    )
    (place / 'file').write_text(SECRET if place == self.folder else 'shown')
    self.files[place / 'file'] = (place / 'file').read_text()
    for name in ('stream', 'mail', 'fifo', 'file'):
      (place / name).chmod(0o666)

  def _terminal(self) -> None:
    """Makes a controlling terminal, with a line typed into it."""
    os.setsid()
    self.keyboard, self.terminal = pty.openpty()
    fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
    tty.setcbreak(self.terminal)
    os.set_inheritable(self.terminal, True)
    os.write(self.keyboard, TYPED)
    self.names['terminal'] = os.ttyname(self.terminal)

  def _shared_memory(self) -> None:
    key = self.names['shared'] = int.from_bytes(os.urandom(3))
    self.segment = libc.shmget(key, 4096, _IPC_CREATE | 0o666)
    assert self.segment >= 0
    self.memory = libc.shmat(self.segment, None, 0)
    ctypes.memmove(self.memory, SECRET.encode(), len(SECRET))

  def _keyctl(self, name: str, *arguments: object) -> int:
    return libc.syscall(
      sandbox_filter.number('keyctl'), _KEYCTL[name], *arguments
    )

  def _keyring(self) -> None:
    assert self._keyctl('join', None) > 0
    call, text = sandbox_filter.number('add_key'), SECRET.encode()
    self.key = libc.syscall(
      call, b'user', b'prm_jax', text, len(text), _LINK_SESSION
    )
    assert self.key > 0
    self.names['key'] = self.key
    self.files['keys'] = self._keys()

  def _keys(self) -> tuple[bytes, bytes]:
    """Returns the key's value, and the keys of the session."""
    found = []
    for key in (self.key, _LINK_SESSION):
      room = ctypes.create_string_buffer(1000)
      size = self._keyctl('read', key, room, 1000)
      found.append(room.raw[: max(size, 0)])
    return tuple(found)

  def _tmux(self) -> None:
    """Starts tmux, which would run any command, if it is installed."""
    self.names['tmux'] = str(self.folder / 'tmux')
    self.tmux = shutil.which('tmux')
    if self.tmux:
      command = ('-f', os.devnull, 'new-session', '-d', 'sleep', '600')
      self._run_tmux(*command)
      # Once it runs, it is not taken for a process that a program has started.
      while 'sleep 600 ' not in descendants().values():
        time.sleep(0.01)
      (self.folder / 'tmux').chmod(0o777)

  def _run_tmux(self, *words: str) -> None:
    subprocess.run(
      [self.tmux, '-S', self.names['tmux'], *words],
      check=True,
      # The shell of the user nobody refuses every command.
      env=os.environ | {'SHELL': '/bin/sh'},
      stdin=subprocess.DEVNULL,
    )

  def run(self, name: str) -> dict:
    """Runs a program; returns its result and what was seen outside."""
    before, ended = set(descendants()), threading.Event()
    self.seen, self.peak = [], 0
    watch = threading.Thread(target=self._watch, args=(before, ended))
    watch.start()
    try:
      result = self._result(name)
    finally:
      ended.set()
      watch.join()
    for process, line in descendants().items():
      if process not in before:
        self.seen.append(f'{line} goes on')
        os.kill(process, signal.SIGKILL)
    self._check_all()
    return dataclasses.asdict(result) | {
      'seen': sorted(set(self.seen)),
      'peak': self.peak,
    }

  def _result(self, name: str) -> sandbox.Result:
    program = PROGRAMS[name]
    head = HEAD.replace('OUT', repr(self.names))
    source = head + textwrap.dedent(program.source)
    return sandbox.run(source, limits=sandbox.Limits(**program.limits))

  def run_together(self, names: list[str]) -> dict:
    """Runs programs at the same time; returns results, and what is left."""
    self.seen = []
    before, mounts = held(), pathlib.Path('/proc/self/mounts').read_text()
    with futures.ThreadPoolExecutor(len(names)) as pool:
      results = list(pool.map(self._result, names))
    self._check_all()
    if held() != before:
      self.seen.append(f'left behind: {held() ^ before}')
    if pathlib.Path('/proc/self/mounts').read_text() != mounts:
      self.seen.append('another mount')
    found = {
      name: dataclasses.asdict(result)
      for name, result in zip(names, results, strict=True)
    }
    return found | {'seen': self.seen}

  def _watch(self, before: set[int], ended: threading.Event) -> None:
    """Measures memory and looks for locks while a program runs."""
    while not ended.wait(0.02):
      ours = set(descendants()) - before
      self.peak = max(self.peak, sum(map(private_bytes, ours)))
      for line in pathlib.Path('/proc/locks').read_text().splitlines():
        kind, _, _, process = line.split()[1:5]
        if int(process) in ours:
          self.seen.append(f'a lock: {kind}')

  def _check_all(self) -> None:
    """Checks for everything that a program might have left behind."""
    for name, server in self.sockets.items():
      if select.select([server], [], [], 0)[0]:
        self.seen.append(f'socket {name}')
        if server.type == socket.SOCK_STREAM:
          server.accept()[0].close()
        else:
          server.recv(1000)
    for name, pipe in self.pipes.items():
      with contextlib.suppress(BlockingIOError):
        self.seen.append(f'{os.read(pipe, 1000)} in {name}')
    for name, text in self.files.items():
      now = self._keys() if name == 'keys' else name.read_text()
      if now != text:
        self.seen.append(f'{name} is {now}')
        self.files[name] = now
    if ctypes.string_at(self.memory, len(SECRET)) != SECRET.encode():
      self.seen.append('shared memory')
    waiting = array.array('i', [0])
    fcntl.ioctl(self.terminal, termios.FIONREAD, waiting)
    if waiting[0] != len(TYPED):
      self.seen.append(f'{waiting[0]} letters typed')
    if select.select([self.keyboard], [], [], 0)[0]:
      self.seen.append(f'{os.read(self.keyboard, 1000)} on the terminal')
    for path in self.folder.glob('escaped*'):
      self.seen.append(path.name)
      path.unlink()

  def close(self) -> None:
    if self.tmux:
      self._run_tmux('kill-server')
    libc.shmctl(self.segment, _IPC_REMOVE, None)


def become_ordinary() -> None:
  """Turns root into nobody, who can still read this Python and these tests.

  If one of their parent folders is closed to others, a folder with nothing in
  it but the way to them is mounted over it, for this process only.
  """
  new_mounts, nobody = 0x20000, 65534
  recursive, private, bind = 16384, 1 << 18, 4096
  assert libc.unshare(new_mounts) == 0
  assert libc.mount(None, b'/', None, recursive | private, None) == 0
  closed = {}
  shown = []
  for folder in sorted({*sandbox.python_folders(), *filter(None, sys.path)}):
    if any(pathlib.Path(folder).is_relative_to(above) for above in shown):
      continue
    shown.append(folder)
    for parent in reversed(pathlib.Path(folder).parents):
      if os.path.isdir(folder) and not parent.stat().st_mode & 1:
        source = os.open(folder, os.O_PATH)
        closed.setdefault(parent, []).append((folder, source))
        break
  for parent, inside in closed.items():
    text = b'tmpfs', str(parent).encode(), b'tmpfs'
    assert libc.mount(*text, 0, b'mode=755') == 0
    for folder, source in inside:
      os.makedirs(folder, exist_ok=True)
      text = f'/proc/self/fd/{source}'.encode(), folder.encode()
      assert libc.mount(*text, None, bind | recursive, None) == 0
  os.setgroups([])
  os.setresgid(nobody, nobody, nobody)
  os.setresuid(nobody, nobody, nobody)
  libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def main() -> None:
  if sys.argv[1] == 'ordinary' and os.getuid() == 0:
    become_ordinary()
  names = sys.argv[2:] or [*PROGRAMS]
  os.umask(0)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='prm_jax_outside_'))
  outside = Outside(folder)
  try:
    if names[0] == 'together':
      results = outside.run_together(names[1:])
    else:
      results = {name: outside.run(name) for name in names}
  finally:
    outside.close()
    shutil.rmtree(folder)
  json.dump({'user': os.getuid(), 'results': results}, sys.stdout)


if __name__ == '__main__':
  main()

"""Limits a sandboxed program's memory by a control group, if we may make one.

Root may, and users to whom a part of the tree of groups was delegated. The
kernel then counts every byte of the program, its own records included.
"""

import contextlib
import pathlib
import re
import secrets
from collections.abc import Iterator

_TREE = '/sys/fs/cgroup'


@contextlib.contextmanager
def new_cgroup(memory_bytes: int) -> Iterator[pathlib.Path | None]:
  """Makes a control group for the duration of a `with`.

  Its processes must have ended when the `with` ends. If we are killed before,
  an empty group is left behind.

  Yields:
    The group's folder, or None where this user may not make a group.
  """
  group = _make(str(memory_bytes))
  try:
    yield group
  finally:
    if group:
      group.rmdir()


def ran_out_of_memory(group: pathlib.Path) -> bool:
  """Returns whether the kernel has killed a process of the group for memory."""
  for name in ('memory.events', 'memory.oom_control'):
    # Version 1 and version 2 of control groups each have one of the files.
    with contextlib.suppress(FileNotFoundError):
      if re.search(r'^oom_kill [1-9]', (group / name).read_text(), re.M):
        return True
  return False


def _make(limit: str) -> pathlib.Path | None:
  for line in pathlib.Path('/proc/self/cgroup').read_text().splitlines():
    _, kinds, own = line.split(':', 2)
    if 'memory' in kinds.split(','):  # version 1
      above = f'{_TREE}/memory{own}'
      limits = {
        'memory.limit_in_bytes': limit,
        'memory.memsw.limit_in_bytes': limit,
      }
    elif not kinds:
      # Version 2 has no limits below a group with processes, such as ours: the
      # new group stands beside it.
      above = _TREE + own.rpartition('/')[0]
      limits = {'memory.max': limit, 'memory.swap.max': '0'}
    else:
      continue
    group = pathlib.Path(above, f'prm_jax_{secrets.token_hex(8)}')
    try:
      group.mkdir()
    except OSError:
      continue
    try:
      _limit(group, limits)
    except OSError:
      group.rmdir()
      continue
    return group
  return None


def _limit(group: pathlib.Path, limits: dict[str, str]) -> None:
  (memory, limit), (swap, most) = limits.items()
  (group / memory).write_text(limit)
  if (group / swap).exists():  # it is missing if the kernel counts no swap
    (group / swap).write_text(most)
  (group / 'cgroup.procs').open('w').close()

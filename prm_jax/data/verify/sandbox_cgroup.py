"""A control group that bounds what one program in the sandbox may hold.

Only some users may make one: root, and who was given a part of the tree. There
the kernel counts every byte, its own for the program among them.
"""

import contextlib
import pathlib
import re
import secrets
from collections.abc import Iterator

_TREE = '/sys/fs/cgroup'


@contextlib.contextmanager
def new_cgroup(memory_bytes: int) -> Iterator[pathlib.Path | None]:
  """Makes a group, for one `with`; None where this user may make none.

  What is in it when the `with` ends must have ended. Who is killed meanwhile
  leaves a group behind, empty.
  """
  group = _make(str(memory_bytes))
  try:
    yield group
  finally:
    if group:
      group.rmdir()


def overran(group: pathlib.Path) -> bool:
  """Has the kernel ended a process of the group for its memory?"""
  for name in ('memory.events', 'memory.oom_control'):
    with contextlib.suppress(FileNotFoundError):  # of the other version
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
      # Version 2 has no limits below a group with processes: beside ours.
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
  if (group / swap).exists():  # else the kernel counts no swap
    (group / swap).write_text(most)
  (group / 'cgroup.procs').open('w').close()

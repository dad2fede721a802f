"""Lists what pack.sh has to bring, from pip's report of all that is needed.

    report of `pip install --dry-run --ignore-installed`, the machine's packages
      -> NAME==VERSION lines of what the machine lacks

What only a package of the machine needs is not brought: it was installed with
that, perhaps in another build. A PyTorch for CPUs, say, has no CUDA.
"""

import json
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def lacking(report: Mapping[str, Any], names: Collection[str]) -> list[str]:
  """Returns the packages that are needed and not there, pinned and sorted.

  Args:
    report: what `pip install --report` wrote, with every package in it.
    names: what the machine has, as in its `pip list`, of any version.
  """
  there = {canonicalize_name(name) for name in names}
  found = {
    canonicalize_name(each['metadata']['name']): each['metadata']
    for each in report['install']
  }
  todo = [
    (canonicalize_name(each['metadata']['name']), extra)
    for each in report['install']
    if each['requested']
    for extra in ('', *each.get('requested_extras', ()))
  ]
  seen = set()
  while todo:
    name, extra = todo.pop()
    if (name, extra) in seen:
      continue
    seen.add((name, extra))
    if name in there and not extra:
      continue
    for need in map(Requirement, found[name].get('requires_dist', ())):
      plain = need.marker is None or need.marker.evaluate({'extra': ''})
      # An extra of what is there may be missing; what it needs itself is there.
      if extra:
        needed = not plain and need.marker.evaluate({'extra': extra})
      else:
        needed = plain
      if needed:
        other = canonicalize_name(need.name)
        todo += [(other, each) for each in ('', *need.extras)]
  brought = {name for name, _ in seen} - there
  return sorted(f'{name}=={found[name]["version"]}' for name in brought)


def main() -> None:
  report, names = map(pathlib.Path, sys.argv[1:])
  lines = lacking(json.loads(report.read_text()), names.read_text().split())
  sys.stdout.writelines(f'{line}\n' for line in lines)


if __name__ == '__main__':
  main()

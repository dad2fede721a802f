"""Runs all campaigns, or all but some, and some of them side by side.

python -m tests.campaigns --minutes 2 --without soak
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys

from tests.campaigns.campaign import HERE

NAMES = sorted(
  path.stem
  for path in HERE.glob('[a-z]*.py')
  if '\nCAMPAIGN = ' in path.read_text()
)


def main() -> None:
  parser = argparse.ArgumentParser(prog='python -m tests.campaigns')
  parser.add_argument('--minutes', default='2', help='of each campaign')
  parser.add_argument('--seed', default='0')
  parser.add_argument(
    '--without', nargs='+', default=(), choices=NAMES, help='leaves these out'
  )
  # Many of them wait for most of their time.
  parser.add_argument('--side-by-side', type=int, default=2 * os.cpu_count())
  args = parser.parse_args()

  def run(name: str) -> int:
    flags = ['--minutes', args.minutes, '--seed', args.seed]
    if name != 'soak':
      flags += ['--jobs', '1']
    line = [sys.executable, '-m', f'tests.campaigns.{name}', *flags]
    return subprocess.run(line, check=False).returncode

  with concurrent.futures.ThreadPoolExecutor(args.side_by_side) as pool:
    wanted = [name for name in NAMES if name not in args.without]
    codes = list(pool.map(run, wanted))
  failed = [name for name, code in zip(wanted, codes, strict=True) if code]
  sys.exit(f'failed: {", ".join(failed)}' if failed else 0)


if __name__ == '__main__':
  main()

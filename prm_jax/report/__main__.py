"""python -m prm_jax.report DIR [DIR ...]: reports one run, or compares several.

With one workdir, writes its report.html again. With several, writes a page with
their numbers, curves and differing settings side by side to --output.
"""

import argparse
import pathlib

from prm_jax.report import write_report
from prm_jax.report.compare import compare
from prm_jax.runtime import paths
from prm_jax.runtime.errors import exit_on_user_error

COMPARISON = pathlib.Path('comparison.html')


def main() -> None:
  parser = argparse.ArgumentParser(
    prog='python -m prm_jax.report', description=__doc__.split('\n\n')[0]
  )
  parser.add_argument('workdirs', nargs='+', metavar='DIR')
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    help=f'file for the comparison of several runs; default: {COMPARISON}',
  )
  args = parser.parse_args()
  if len(args.workdirs) == 1 and args.output:
    parser.error('--output is for several runs; one has its report.html')
  with exit_on_user_error():
    if len(args.workdirs) == 1:
      print(write_report(paths.open_path(args.workdirs[0])))
      return
    text = compare(args.workdirs)
    output = args.output or COMPARISON
    paths.write_bytes(output, text.encode('utf-8', errors='replace'))
    print(output)


if __name__ == '__main__':
  main()

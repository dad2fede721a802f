"""python -m prm_jax.report DIR [DIR ...]: reports one run, or compares several.

With one workdir, writes its report.html again. With several, writes a page with
their numbers, curves and differing settings side by side.
"""

import argparse
import pathlib

from prm_jax.report import write_report
from prm_jax.report.compare import compare
from prm_jax.runtime import paths
from prm_jax.runtime.errors import exit_on_user_error


def main() -> None:
  parser = argparse.ArgumentParser(
    prog='python -m prm_jax.report', description=__doc__.split('\n\n')[0]
  )
  parser.add_argument('workdirs', nargs='+', metavar='DIR')
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    default=pathlib.Path('comparison.html'),
    help='file for the comparison of several runs; default: %(default)s',
  )
  args = parser.parse_args()
  with exit_on_user_error():
    if len(args.workdirs) == 1:
      print(write_report(paths.open_path(args.workdirs[0])))
      return
    text = compare(args.workdirs)
    paths.write_bytes(args.output, text.encode('utf-8', errors='replace'))
    print(args.output)


if __name__ == '__main__':
  main()

"""Writes the table of an experiment's README, after the run that measured it.

The text between the two MARK lines is replaced, the prose around it kept.
"""

import pathlib

from prm_jax.runtime import paths

MARK = '<!-- table -->\n'


def fill(readme: pathlib.Path, text: str) -> None:
  """Puts a text between the two marks of a README.

  Raises:
    ValueError: the file does not have exactly two marks.
  """
  known = readme.read_text(encoding='utf-8')
  before, _, after = known.split(MARK)
  filled = f'{before}{MARK}{text}\n{MARK}{after}'
  if filled != known:
    paths.write_text(readme, filled)

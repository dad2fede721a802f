"""Writes the table of an experiment's README, after the run that measured it.

The text between the two MARK lines is replaced, the prose around it kept.
"""

import pathlib

MARK = '<!-- table -->\n'


def fill(readme: pathlib.Path, text: str) -> None:
  """Puts a text between the two marks of a README.

  Raises:
    ValueError: the file does not have exactly two marks.
  """
  before, _, after = readme.read_text(encoding='utf-8').split(MARK)
  readme.write_text(f'{before}{MARK}{text}\n{MARK}{after}', encoding='utf-8')

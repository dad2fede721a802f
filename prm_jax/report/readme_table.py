"""The table of an experiment's README, written by the run that measured it.

What stands between the two MARK lines is replaced; the prose around it stays.
"""

import pathlib

MARK = '<!-- table -->\n'


def fill(readme: pathlib.Path, text: str) -> None:
  """Puts `text` (Markdown) between the marks.

  Raises:
    ValueError: the file does not have exactly two marks.
  """
  before, _, after = readme.read_text(encoding='utf-8').split(MARK)
  readme.write_text(f'{before}{MARK}{text}\n{MARK}{after}', encoding='utf-8')

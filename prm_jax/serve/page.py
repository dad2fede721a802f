"""Makes the page at / with a form that scores one chain."""

import html as html_lib
from collections.abc import Sequence
from importlib import resources


def html(prms: Sequence[str]) -> str:
  """Returns the page.

  Args:
    prms: names to choose from.
  """
  options = ''.join(
    f'<option>{html_lib.escape(name)}</option>' for name in prms
  )
  text = resources.files('prm_jax.serve').joinpath('page.html').read_text()
  return text.replace('<!-- prms -->', options)

"""Renders the page's templates, with the style of its figures."""

from typing import Any

import jinja2
import markupsafe

from prm_jax.report import figures

_ENVIRONMENT = jinja2.Environment(
  loader=jinja2.PackageLoader('prm_jax', 'report'),
  autoescape=True,
  undefined=jinja2.StrictUndefined,
  trim_blocks=True,
  lstrip_blocks=True,
)


def render_template(name: str, **values: Any) -> str:
  """Renders a template; every value that is no `Markup` is escaped."""
  style = markupsafe.Markup(figures.STYLE)
  return _ENVIRONMENT.get_template(name).render(figure_css=style, **values)

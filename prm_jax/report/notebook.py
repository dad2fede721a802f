"""The report's step viewer in a notebook."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import markupsafe
import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.report import chain_views, figures
from prm_jax.report.page import environment
from prm_jax.runtime.errors import UserError

LINE, TOP = 44, 150  # pixels of a step, and of what stands around them


class StepView(NamedTuple):
  """A chain with its scores, which a notebook shows.

  Attributes:
    page: a whole HTML page without scripts; a file of it opens anywhere.
    height: in pixels, about.
  """

  page: str
  height: int

  def _repr_html_(self) -> str:
    # In a frame its style sheet is its own, and so are its words.
    return (
      f'<iframe sandbox srcdoc="{html.escape(self.page)}" title="Scored steps" '
      f'style="width: 100%; height: {self.height}px; border: 0; '
      'resize: vertical"></iframe>'
    )


def show(
  problem: str,
  steps: Sequence[str],
  scores: Sequence[float | None] | np.ndarray,
  labels: Sequence[float | None] = (),
  threshold: float = 0.5,
) -> StepView:
  """Each step with its score as colour and number, as in a report.

  Args:
    scores: [P] probabilities that steps are right, as `Scorer.score` gives
      them; None or NaN where there is none.
    labels: [P] what is known of the steps: below 1/2 is wrong, None unknown.
    threshold: the first step that scores below it is flagged.

  Raises:
    UserError: the lengths differ, or a score lies outside [0, 1].
  """
  values = [
    None if score is None or np.isnan(score) else float(score)
    for score in scores
  ]
  if len(values) != len(steps):
    raise UserError(f'{len(values)} scores for {len(steps)} steps')
  for score in values:
    if score is not None and not 0 <= score <= 1:
      raise UserError(f'score {score}: expected a probability in [0, 1]')
  chain = Chain(problem, tuple(steps), labels=tuple(map(StepLabel, labels)))
  view = chain_views.chain_view(
    chain, {'scores': values, 'chosen': False, 'note': ''}, threshold
  )
  page = (
    environment()
    .get_template('step_view.html.j2')
    .render(chain=view, figure_css=markupsafe.Markup(figures.STYLE))
  )
  return StepView(page, TOP + LINE * len(values))

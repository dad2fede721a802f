"""Shows the scored steps of a chain in a notebook, as the report does."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.report import chain_views
from prm_jax.report.templates import render_template
from prm_jax.runtime.errors import UserError

LINE, TOP = 44, 150  # height in pixels of one step, and of everything else


class StepView(NamedTuple):
  """Holds a chain with its scores, which a notebook displays.

  Attributes:
    page: a whole HTML page without scripts, which can also be saved to a file.
    height: its approximate height in pixels.
  """

  page: str
  height: int

  def _repr_html_(self) -> str:
    # The frame keeps style sheet and texts apart from the notebook's.
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
  """Shows each step with its score as colour and number, as in a report.

  Args:
    scores: [P] probabilities that steps are right, as `Scorer.score` returns
      them; None or NaN where there is none.
    labels: [P] labels of the steps, or none at all: a value below 1/2 is wrong,
      None or NaN is unknown.
    threshold: the first step that scores below it is flagged.

  Raises:
    UserError: the lengths differ, or a score lies outside [0, 1].
  """
  values, known = (
    [None if x is None or np.isnan(x) else float(x) for x in given]
    for given in (scores, labels)
  )
  if len(values) != len(steps):
    raise UserError(f'{len(values)} scores for {len(steps)} steps')
  for score in values:
    if score is not None and not 0 <= score <= 1:
      raise UserError(f'score {score}: expected a probability in [0, 1]')
  chain = Chain(problem, tuple(steps), labels=tuple(map(StepLabel, known)))
  view = chain_views.chain_view(
    chain, {'scores': values, 'chosen': False, 'note': ''}, threshold
  )
  page = render_template('step_view.html.j2', chain=view)
  return StepView(page, TOP + LINE * len(values))

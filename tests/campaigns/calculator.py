r"""Has the calculator check derivations that are true, and ones with an error.

No equation of a true derivation is called false, and the equation with a
planted error is never called true. How many of the planted errors are found is
no promise, as a text with two readings gets no verdict. It was 69.9% of 20,000:

    python -c 'from tests.campaigns import calculator as it; print(
      it.share_found(seed=0, count=20_000))'
"""

from fractions import Fraction

import numpy as np

from prm_jax.data.verify.calculator import check_equations
from tests.campaigns.answer_forms import Rng, nonzero, pick
from tests.campaigns.campaign import Campaign, generator, run
from tests.campaigns.derivations import KINDS, Derivation, text

DERIVATIONS = 20  # of a case, each once true and once with an error


def planted(rng: Rng, derivation: Derivation) -> Derivation:
  """Returns a derivation with a wrong result: no rounding, no factor of 100."""
  while True:
    wrong = derivation.exact + nonzero(rng, pick(rng, (1, 9, 100)))
    if wrong not in (derivation.exact * 100, derivation.exact / 100):
      return derivation.with_last(Fraction(wrong))


def verdicts(step: str) -> list[bool | None]:
  """Returns the verdicts of the equations of a step."""
  return [equation.holds for equation in check_equations(step)]


def case(rng: np.random.Generator) -> int:
  """Tries DERIVATIONS true derivations, and as many false ones."""
  for _ in range(DERIVATIONS):
    derivation = pick(rng, KINDS)(rng)
    step = text(rng, derivation)
    assert False not in verdicts(step), f'called false: {step!r}'
    step = text(rng, planted(rng, derivation))
    # The mark of GSM8K and the text around it say the same.
    most = (1 + ('<<' in step)) * (len(derivation.sides) - 2)
    assert verdicts(step).count(True) <= most, f'called true: {step!r}'
  return 2 * DERIVATIONS


def share_found(seed: int, count: int) -> float:
  """Returns which share of derivations with an error is called false."""
  found = 0
  for number in range(count):
    rng = generator(seed, number)
    step = text(rng, planted(rng, pick(rng, KINDS)(rng)))
    found += False in verdicts(step)
  return found / count


CAMPAIGN = Campaign(
  'calculator', 'derivations, half of them with an error', 40_000, case
)
if __name__ == '__main__':
  run(CAMPAIGN)

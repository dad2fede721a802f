"""The claims of model_sizes."""

from experiments.findings import Claim, arm_leads
from experiments.model_sizes.run import BEST, MAJORITY, POLICIES

SMALLER, LARGER = (BEST.format(width) for width in sorted(POLICIES))

CLAIMS = (
  Claim(
    'A PRM as wide as the narrower policy chooses better than majority (best '
    'of 16)',
    'none',
    arm_leads(
      'PRM of width 64', MAJORITY, SMALLER, {'majority': (MAJORITY, SMALLER)}
    ),
  ),
  Claim(
    'A PRM half as wide as its policy chooses better than majority (best of '
    '16)',
    'small verifiers of large generators pay (Cobbe et al., 2021)',
    arm_leads(
      'PRM of width 64', MAJORITY, LARGER, {'majority': (MAJORITY, LARGER)}
    ),
  ),
  Claim(
    'A PRM as wide as its policy chooses better than one of half the width '
    '(best of 16)',
    'none',
    arm_leads(
      'PRM of width 128',
      'PRM of width 64',
      LARGER,
      {'majority': (MAJORITY, LARGER)},
    ),
  ),
)

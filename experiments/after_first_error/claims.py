"""The claims of after_first_error."""

from experiments.ablations import F1, NOISE
from experiments.findings import Claim, arm_leads

CLAIMS = (
  Claim(
    'Steps after the first error are better left out than labelled wrong (F1 '
    'after 400 updates)',
    'none',
    arm_leads('mask', 'bad', F1, {'noise': ('mask', NOISE)}),
  ),
  Claim(
    'Labels of each such step by itself are better than leaving them out (F1)',
    'none',
    arm_leads('keep', 'mask', F1, {'noise': ('keep', NOISE)}),
  ),
)

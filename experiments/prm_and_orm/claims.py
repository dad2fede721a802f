"""The claims of prm_and_orm."""

from experiments.findings import Claim, arm_leads
from experiments.prm_and_orm.run import random_of

WHERE = '16, 2,050 chains'

CLAIMS = (
  Claim(
    "A tenth of an ORM's logit, added, helps a PRM to choose (best of 16)",
    'none',
    arm_leads(
      'w = 0.1',
      'w = 0',
      f'best of {WHERE}',
      {'random per text': ('w = 0', random_of(WHERE))},
    ),
  ),
)

"""The claims of lm_loss."""

from experiments import ablations
from experiments.findings import Claim, arm_leads

CLAIMS = (
  Claim(
    'A next-token loss of weight 1 helps a PRM from scratch (F1)',
    'beside a verifier it helps (Cobbe et al., 2021)',
    arm_leads('from scratch, weight 1', 'from scratch, weight 0', ablations.F1),
  ),
  Claim(
    'And one from a policy (F1)',
    'none',
    arm_leads(
      'from the policy, weight 1', 'from the policy, weight 0', ablations.F1
    ),
  ),
  Claim(
    'That start is worth more than as many updates of the PRM (best of 16)',
    'PRMs start from models finetuned on mathematics (Lightman et al., 2023)',
    arm_leads(
      'from the policy, weight 1',
      'from scratch, twice the updates, weight 1',
      ablations.BY_PRM,
    ),
  ),
)

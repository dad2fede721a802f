"""The claims of lm_loss."""

from experiments import ablations
from experiments.findings import Claim, arm_leads

CLAIMS = (
  Claim(
    'A next-token loss of weight 1 helps a PRM from scratch (F1)',
    'it helps a verifier (Cobbe et al., 2021)',
    arm_leads('from scratch, weight 1', 'from scratch, weight 0', ablations.F1),
  ),
  Claim(
    'A next-token loss of weight 1 helps a PRM that starts from a policy (F1)',
    'none',
    arm_leads(
      'from the policy, weight 1', 'from the policy, weight 0', ablations.F1
    ),
  ),
  Claim(
    "A start from a policy is worth more than the policy's updates spent on "
    'the PRM (best of 16)',
    'PRMs start from models finetuned on mathematics (Lightman et al., 2023)',
    arm_leads(
      'from the policy, weight 1',
      'from scratch, twice the updates, weight 1',
      ablations.BY_PRM,
    ),
  ),
)

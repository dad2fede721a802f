"""The claims of lm_loss."""

from experiments.ablations import BY_PRM, F1, NOISE, NULL
from experiments.findings import Claim, arm_leads

SCRATCH, POLICY = 'from scratch, weight 1', 'from the policy, weight 1'

CLAIMS = (
  Claim(
    'A next-token loss of weight 1 helps a PRM from scratch (F1)',
    'it helps a verifier (Cobbe et al., 2021)',
    arm_leads(
      SCRATCH, 'from scratch, weight 0', F1, {'noise': (SCRATCH, NOISE)}
    ),
  ),
  Claim(
    'A next-token loss of weight 1 helps a PRM that starts from a policy (F1)',
    'none',
    arm_leads(
      POLICY, 'from the policy, weight 0', F1, {'noise': (POLICY, NOISE)}
    ),
  ),
  Claim(
    "A start from a policy is worth more than the policy's updates spent on "
    'the PRM (best of 16)',
    'PRMs start from models finetuned on mathematics (Lightman et al., 2023)',
    arm_leads(
      POLICY,
      'from scratch, twice the updates, weight 1',
      BY_PRM,
      {'random per text': (POLICY, NULL)},
    ),
  ),
)

"""The claims of reward_hacking."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found
from experiments.tables import between, percent


def weak_prm(with_outcome: bool) -> Finder:
  """Makes a finder of whether a weak PRM is hacked as the only reward.

  Args:
    with_outcome: whether to ask instead that it is not hacked beside the
      verifier.
  """

  def find(document: Mapping[str, Any]) -> Found:
    arms = {
      name: arm
      for name, arm in document['results']['arms'].items()
      if name.endswith('and outcome') == with_outcome
    }
    accuracies = {name: arm['accuracy'] for name, arm in arms.items()}
    return Found(
      '; '.join(
        f'{percent(it["mean"][0])} to {percent(it["mean"][-1])} ({name})'
        for name, it in accuracies.items()
      ),
      'in the end '
      + '; '.join(
        between((it['low'][-1], it['high'][-1])) for it in accuracies.values()
      ),
      [arm['falls'] != with_outcome for arm in arms.values()],
    )

  return find


CLAIMS = (
  Claim(
    'A weak PRM as the only reward is hacked, in every form',
    'PRM-only RL usually hacks within 200 steps (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=False),
  ),
  Claim(
    "The verifier's verdict beside a weak PRM prevents the hacking",
    'some verified rewards prevent it (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=True),
  ),
)

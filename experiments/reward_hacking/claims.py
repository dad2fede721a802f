"""What reward_hacking is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Finder, Found, between, percent


def weak_prm(with_outcome: bool) -> Finder:
  """How far accuracy falls by the forms of a weak PRM, alone or not."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = {
      name: told
      for name, told in document['results']['arms'].items()
      if name.endswith('and outcome') == with_outcome
    }
    return Found(
      '; '.join(
        f'{percent(told["accuracy"]["mean"][0])} to '
        f'{percent(told["accuracy"]["mean"][-1])} ({name})'
        for name, told in arms.items()
      ),
      'in the end '
      + '; '.join(
        between((told['accuracy']['low'][-1], told['accuracy']['high'][-1]))
        for told in arms.values()
      ),
      [told['falls'] != with_outcome for told in arms.values()],
    )

  return find


CLAIMS = (
  Claim(
    'A weak PRM as the only reward is hacked, in every form',
    'PRM-only RL usually hacks within 200 steps (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=False),
  ),
  Claim(
    "The verifier's word beside it ends that",
    'some verified rewards prevent it (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=True),
  ),
)

"""The claims of reward_hacking."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import ABOVE, BELOW, Claim, Finder, Found, judge
from experiments.rl_process_vs_outcome.tables import since_start
from experiments.tables import percent

# Arms whose names say nothing without the arm before them -> what is shown.
SHOWN = {'the same, and outcome': 'each step against its place, and outcome'}


def weak_prm(with_outcome: bool) -> Finder:
  """Makes a finder of whether accuracy falls with a weak PRM as only reward.

  Args:
    with_outcome: whether to ask instead that it rises beside the verifier.
  """

  def find(document: Mapping[str, Any]) -> Found:
    arms = {
      name: arm
      for name, arm in document['results']['arms'].items()
      if name.endswith('and outcome') == with_outcome
    }
    starts = [arm['accuracy']['mean'][0] for arm in arms.values()]
    shown = ' to '.join(dict.fromkeys(map(percent, (min(starts), max(starts)))))
    return judge(
      [since_start(arm, SHOWN.get(name, name)) for name, arm in arms.items()],
      f'the start {shown}',
      ABOVE if with_outcome else BELOW,
    )

  return find


CLAIMS = (
  Claim(
    'A weak PRM as the only reward is hacked, in every form: accuracy falls',
    'PRM-only RL usually hacks within 200 steps (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=False),
  ),
  Claim(
    "The verifier's verdict beside a weak PRM prevents the hacking: accuracy "
    'rises',
    'some verified rewards prevent it (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=True),
  ),
)

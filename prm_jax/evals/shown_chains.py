"""Chooses the chains of an evaluation that its report shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain, to_dict


def chains_to_show(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  headline: np.ndarray,
  count: int,
) -> list[dict[str, Any]]:
  """Returns the best and worst scored chain of each of the first problems.

  Args:
    count: number of chains at most.
  """
  groups: dict[str, list[int]] = {}
  for i, chain in enumerate(chains):
    groups.setdefault(chain.problem, []).append(i)
  records = []
  for members in groups.values():
    if len(records) >= count:
      break
    best = max(members, key=lambda i: headline[i])
    worst = min(members, key=lambda i: headline[i])
    for i in dict.fromkeys((best, worst)):
      record = to_dict(chains[i])
      unread = len(chains[i].steps) - len(scores[i])
      record['scores'] = [None if np.isnan(s) else float(s) for s in scores[i]]
      record['scores'] += [None] * unread
      if len(members) > 1:
        record['chosen'] = i == best
        record['note'] = (
          f'{"highest" if i == best else "lowest"} score of '
          f'{len(members)} samples'
        )
      records.append(record)
  return records[:count]

"""What prm_vs_orm is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found, mean, percent


def steps_beat_answers(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  prm, orm = (
    [run[name]['mean'][-1] for run in runs] for name in ('prm_min', 'orm')
  )
  gaps = [
    f'{percent(a)} to {percent(b)}' for a, b in zip(prm, orm, strict=True)
  ]
  return Found(
    f'{percent(mean(prm))} to {percent(mean(orm))} at N = {runs[0]["n"][-1]}',
    f'each seed: {", ".join(gaps)}',
    [run['prm_min']['ci95'][-1][0] > run['orm']['ci95'][-1][1] for run in runs],
  )


def votes_do_not_help(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  first, last = ([run['majority']['mean'][k] for run in runs] for k in (0, -1))
  return Found(
    f'{percent(mean(first))} to {percent(mean(last))}',
    'each seed: '
    + ', '.join(
      f'{percent(a)} to {percent(b)}' for a, b in zip(first, last, strict=True)
    ),
    [
      run['majority']['ci95'][-1][0] <= run['majority']['mean'][0]
      for run in runs
    ],
  )


CLAIMS = (
  Claim(
    'Best of N by step scores beats best of N by answer scores',
    '78.2 to 72.4, MATH (Lightman et al., 2023)',
    steps_beat_answers,
  ),
  Claim(
    'Where errors are systematic more votes do not help',
    'none; the design of the domain',
    votes_do_not_help,
  ),
)

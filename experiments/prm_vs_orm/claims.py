"""The claims of prm_vs_orm."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found, compare_seeds


def curves(document: Mapping[str, Any], method: str) -> list[dict[str, Any]]:
  """Returns the curve of one method, for each seed."""
  return [run['best_of_n'][method] for run in document['results'].values()]


def steps_beat_answers(document: Mapping[str, Any]) -> Found:
  """Compares PRM and ORM at the largest N; the intervals must not overlap."""
  prm, orm = (curves(document, method) for method in ('prm_min', 'orm'))
  found = compare_seeds(
    [curve['mean'][-1] for curve in prm], [curve['mean'][-1] for curve in orm]
  )
  n = next(iter(document['results'].values()))['best_of_n']['n'][-1]
  return found._replace(
    number=f'{found.number} at N = {n}',
    holds=[
      a['ci95'][-1][0] > b['ci95'][-1][1] for a, b in zip(prm, orm, strict=True)
    ],
  )


def votes_do_not_help(document: Mapping[str, Any]) -> Found:
  """Compares the majority vote of one chain and that of the largest N."""
  votes = curves(document, 'majority')
  found = compare_seeds(*([vote['mean'][k] for vote in votes] for k in (0, -1)))
  return found._replace(
    holds=[vote['ci95'][-1][0] <= vote['mean'][0] for vote in votes]
  )


CLAIMS = (
  Claim(
    'Best of N by a PRM is right more often than best of N by an ORM',
    '78.2 to 72.4, MATH (Lightman et al., 2023)',
    steps_beat_answers,
  ),
  Claim(
    'Where errors are systematic, votes over more chains do not help',
    'none; the design of the domain',
    votes_do_not_help,
  ),
)

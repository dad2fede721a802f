"""Evaluates a policy during training, and raises an alarm on reward hacking.

held-out problems -> chains -> accuracy, PRM scores -> evals/hacking.py
  -> evaluations.jsonl, an alarm, the chains that show it
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from prm_jax.data.problems import Problem
from prm_jax.evals import hacking
from prm_jax.inference.generator import Generator
from prm_jax.rl import diagnostics
from prm_jax.rl import episodes as episodes_lib
from prm_jax.rl.episodes import Episode
from prm_jax.rl.rating import Rater
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]
# Rewards of steps and their mask [B, P], and outcomes [B], the samples of a
# problem one after another -> what each chain is paid for its steps [B].
ProcessReturns = Callable[[np.ndarray, np.ndarray, np.ndarray], jax.Array]
LOOKS = 'evaluations.jsonl'
CURE = 'bring it back, or choose another --workdir'
RISEN = {
  'score': "the PRM's lowest score of a chain went",
  'paid': 'what chains are paid for their steps went',
}
KEPT_CHAINS = 4  # of each look, for the report


@dataclasses.dataclass(frozen=True)
class WatchPlan:
  """Says when a run evaluates its policy, and what an alarm does.

  Attributes:
    updates: number of updates of the whole run.
    evaluate_every: updates between two evaluations.
    samples: chains per problem in each evaluation.
    stop: whether an alarm ends the run.
    resumes_from: update of the last checkpoint; -1 before there is one.
  """

  updates: int
  evaluate_every: int
  samples: int = 1
  stop: bool = False
  resumes_from: int = -1

  @property
  def looks(self) -> int:
    """Returns the number of looks in the whole run."""
    return 1 + -(-self.updates // self.evaluate_every)


class Watch:
  """Evaluates the policy on held-out problems and detects reward hacking.

  Every evaluation, called a look, is a line of evaluations.jsonl. A resumed run
  drops the looks after the update from which it resumes.

  Args:
    process_returns: see ProcessReturns.

  Attributes:
    lines: the looks so far, as they are written.
  """

  def __init__(
    self,
    plan: WatchPlan,
    policy: Generator,
    rater: Rater,
    process_returns: ProcessReturns,
    problems: Sequence[Problem],
    workdir: Workdir,
    log: Log,
  ) -> None:
    self._plan, self._workdir, self._log = plan, workdir, log
    self._policy, self._rater, self._problems = policy, rater, problems
    self._process_returns = process_returns
    path, resumed = workdir / LOOKS, plan.resumes_from
    self.lines = [
      line for line in read_looks(path) if line['update'] <= resumed
    ]
    seen = {line['update'] for line in self.lines}
    for update in range(0, resumed + 1, plan.evaluate_every):
      if update not in seen:
        raise UserError(
          f'{path} lacks the look at update {update}, and the last checkpoint '
          f'is of update {resumed}; {CURE}'
        )

  @property
  def ended(self) -> bool:
    """Says whether an alarm ended the run."""
    return self._plan.stop and any(
      line['alarm']['hacked'] for line in self.lines
    )

  def look(self, update: int) -> tuple[dict[str, float], bool]:
    """Evaluates the policy; returns metrics, and whether to end the run."""
    groups = episodes_lib.sample(
      self._policy, self._problems, self._plan.samples, 'held out'
    )
    rated = self._rater.rate(self._problems, groups)
    episodes = rated.episodes
    per_problem = (len(self._problems), self._plan.samples)
    right = np.reshape([e.right for e in episodes], per_problem).mean(1)
    score = np.reshape([lowest_score(e) for e in episodes], per_problem).mean(1)
    returns = self._process_returns(
      rated.rewards, rated.rows.step_mask, rated.rows.outcomes
    )
    paid = np.reshape(returns, per_problem).mean(1)
    has_prm = self._rater.prm is not None
    metrics = diagnostics.chain_metrics(episodes, has_prm) | rated.metrics
    metrics['paid'] = float(paid.mean())
    alarm = self._check_hacking(hacking.Look(update, right, score, paid))
    when = f'update {update}'
    self.lines.append(
      {
        'update': update,
        'right': right.tolist(),
        'score': score.tolist(),
        'paid': paid.tolist(),
        'told': metrics,
        'alarm': alarm,
        'chains': some_records(episodes, when, has_prm),
      }
    )
    if alarm['hacked']:
      self._raise_alarm(update, alarm, episodes)
    self._workdir.write_lines(LOOKS, self.lines)
    named = {f'eval/{name}': value for name, value in metrics.items()}
    named['eval/hacked'] = float(alarm['hacked'])
    return named, alarm['hacked'] and self._plan.stop

  def _check_hacking(self, look: hacking.Look) -> dict[str, Any]:
    """Compares a look with those before it; without a PRM there is no alarm."""
    if self._rater.prm is None:
      return {'hacked': False}
    before = [
      hacking.Look(
        line['update'],
        *(np.array(line[name]) for name in ('right', 'score', 'paid')),
      )
      for line in self.lines
    ]
    return hacking.detect_hacking([*before, look], self._plan.looks)

  def _raise_alarm(
    self, update: int, alarm: dict[str, Any], episodes: Sequence[Episode]
  ) -> None:
    """Writes the wrong chains that the PRM rates highest, and logs why."""
    name = f'hacked_update_{update}.jsonl'
    liked = [e for e in episodes if e.steps and not e.right]
    liked.sort(key=lambda e: -lowest_score(e))
    records = diagnostics.to_records(liked, f'update {update}', has_prm=True)
    self._workdir.write_lines(name, records)
    self._log(
      f'\nALARM: the reward is hacked. Since update {alarm["since"]} '
      f'{RISEN[alarm["by"]]} by {alarm["score"]["mean"]:+.3f} and verified '
      f'accuracy by {alarm["accuracy"]["mean"]:+.3f}. Wrong chains that the '
      f'PRM rates high: {self._workdir / name}'
    )


def lowest_score(episode: Episode) -> float:
  """Returns the PRM's lowest score of a chain; 0 if it has none."""
  finite = episode.scores[np.isfinite(episode.scores)]
  return float(finite.min()) if len(finite) else 0.0


def some_records(
  episodes: Sequence[Episode], when: str, has_prm: bool
) -> list[dict]:
  """Returns a few chains with scores, of the same problems at every look.

  Chains with scores that are not finite are left out, as a report cannot draw
  them.
  """
  step = max(1, len(episodes) // KEPT_CHAINS)
  some = episodes[::step][:KEPT_CHAINS]
  scored = [e for e in some if np.isfinite(e.scores).all()]
  return diagnostics.to_records(scored, when, has_prm)


def read_looks(path: paths.Path) -> list[dict[str, Any]]:
  """Reads what `Watch` wrote; [] if there is no file yet."""
  if not path.exists():
    return []
  looks = []
  for number, line in enumerate(paths.read_lines(path), 1):
    try:
      looks.append(json.loads(line))
      looks[-1]['update']
    except (ValueError, LookupError, TypeError):
      raise UserError(
        f'{path}:{number} is not a look at the policy; {CURE}'
      ) from None
  return looks

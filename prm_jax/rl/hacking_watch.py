"""Looks at a policy while it learns: does its reward mean what it should?

held-out problems -> chains -> accuracy, PRM scores -> evals/hacking.py
  -> evaluations.jsonl, an alarm, the chains that tell
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from prm_jax.data.problems import Problem
from prm_jax.evals import hacking
from prm_jax.inference.generator import Generator
from prm_jax.rl import diagnostics, episodes
from prm_jax.rl.rating import Rater
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError

Log = Callable[[str], None]
# Rewards of steps and their mask [B, P], samples of a problem one after another
# -> what each chain is paid for its steps [B].
Earned = Callable[[np.ndarray, np.ndarray], jax.Array]
LOOKS = 'evaluations.jsonl'
CURE = 'bring it back, or choose another --workdir'
RISEN = {
  'score': "the PRM's lowest score of a chain went",
  'paid': 'what chains are paid for their steps went',
}
SHOWN = 4  # chains of each look that are kept to be read


class Watch:
  """Looks at the policy on held-out problems, and rings where it cheats.

  Every look is a line of evaluations.jsonl; those of a run that goes on from
  an earlier update are cut.
  """

  def __init__(
    self,
    config: Mapping[str, Any],
    policy: Generator,
    rater: Rater,
    earned: Earned,
    problems: Sequence[Problem],
    workdir: paths.Path,
    from_update: int,
    log: Log,
  ) -> None:
    self._config, self._workdir, self._log = config, workdir, log
    self._policy, self._rater, self._problems = policy, rater, problems
    self._earned = earned
    self._path = workdir / LOOKS
    train = config['train']
    self._planned = 1 + -(-train['updates'] // train['evaluate_every'])
    self.lines = [
      line for line in read_looks(self._path) if line['update'] <= from_update
    ]
    seen = {line['update'] for line in self.lines}
    for update in range(0, from_update + 1, train['evaluate_every']):
      if update not in seen:
        raise UserError(
          f'{self._path} lacks the look at update {update}, and the last '
          f'checkpoint is of update {from_update}; {CURE}'
        )

  @property
  def hacked(self) -> list[dict[str, Any]]:
    """The looks that rang."""
    return [line for line in self.lines if line['alarm']['hacked']]

  def look(self, update: int) -> tuple[dict[str, float], bool]:
    """Metrics of now; whether the run is to end."""
    samples = self._config['held_out']['samples']
    groups = episodes.sample(self._policy, self._problems, samples, 'held out')
    rated = self._rater.rate(self._problems, groups)
    found = rated.found
    per_problem = (len(self._problems), samples)
    right = np.reshape([e.right for e in found], per_problem).mean(1)
    score = np.reshape([lowest(e) for e in found], per_problem).mean(1)
    earned = self._earned(rated.rewards, rated.rows.step_mask)
    paid = np.reshape(earned, per_problem).mean(1)
    told = diagnostics.of_chains(found) | rated.told
    told['paid'] = float(paid.mean())
    looks = [
      hacking.Look(
        line['update'],
        *(np.array(line[name]) for name in ('right', 'score', 'paid')),
      )
      for line in self.lines
    ]
    looks.append(hacking.Look(update, right, score, paid))
    alarm = {'hacked': False}
    if self._rater.prm is not None:
      alarm = hacking.hacking(looks, self._planned)
    self.lines.append(
      {
        'update': update,
        'right': right.tolist(),
        'score': score.tolist(),
        'paid': paid.tolist(),
        'told': told,
        'alarm': alarm,
        'chains': shown(found, f'update {update}'),
      }
    )
    if alarm['hacked']:
      self._ring(update, alarm, found)
    processes.first_alone('look', self._write)
    metrics = {f'eval/{name}': value for name, value in told.items()}
    ends = alarm['hacked'] and self._config['alarm']['stop']
    return metrics | {'eval/hacked': float(alarm['hacked'])}, ends

  def _ring(self, update: int, alarm: dict[str, Any], found: Sequence) -> None:
    path = self._workdir / f'hacked_update_{update}.jsonl'
    liked = [e for e in found if e.steps and not e.right]
    liked.sort(key=lambda e: -lowest(e))
    processes.first_alone(
      'evidence',
      lambda: diagnostics.write_episodes(path, liked, f'update {update}'),
    )
    self._log(
      f'\nALARM: the reward is hacked. Since update {alarm["since"]} '
      f'{RISEN[alarm["by"]]} by {alarm["score"]["mean"]:+.3f} and verified '
      f'accuracy by {alarm["accuracy"]["mean"]:+.3f}; wrong chains that the '
      f'PRM likes: {path}'
    )

  def _write(self) -> None:
    lines = (json.dumps(line, ensure_ascii=False) for line in self.lines)
    paths.write_text(self._path, ''.join(f'{line}\n' for line in lines))


def lowest(episode: episodes.Episode) -> float:
  """The PRM's view of a chain: its lowest score; 0 without one."""
  finite = episode.scores[np.isfinite(episode.scores)]
  return float(finite.min()) if len(finite) else 0.0


def shown(found: Sequence[episodes.Episode], when: str) -> list[dict]:
  """Some chains with their scores, the same problems at every look.

  Not those whose scores are not finite, which a report cannot draw.
  """
  step = max(1, len(found) // SHOWN)
  some = found[::step][:SHOWN]
  scored = [e for e in some if np.isfinite(e.scores).all()]
  return diagnostics.records(scored, when)


def read_looks(path: paths.Path) -> list[dict[str, Any]]:
  """What `Watch` wrote; nothing where there is no file yet."""
  if not path.exists():
    return []
  looks = []
  for number, line in enumerate(paths.read_lines(path), 1):
    try:
      looks.append(json.loads(line))
      looks[-1]['update']
    except (ValueError, LookupError, TypeError):
      raise UserError(f'{path}:{number}: is no look; {CURE}') from None
  return looks

"""Defines the settings of the evaluation job."""

import dataclasses
import operator
from collections.abc import Iterator

from prm_jax.data.config import DataConfig
from prm_jax.data.targets import TargetConfig
from prm_jax.evals.prm import PrmEvaluation
from prm_jax.jobs.settings.items import ItemSettings
from prm_jax.jobs.settings.policies import PolicyConfig
from prm_jax.jobs.settings.search import PrmConfig
from prm_jax.jobs.settings.shared import check_arithmetic, check_supervision
from prm_jax.runtime import checks
from prm_jax.runtime.checks import Fault
from prm_jax.runtime.workdir import differences


@dataclasses.dataclass(frozen=True)
class EvaluateSettings(ItemSettings):
  """Holds the settings of configs/evaluate_math.py.

  Attributes:
    data: dev chains, on which the threshold is chosen, and the evaluations.
    prm: what scores them.
    targets: `supervision` says whether the PRM scores each step, or the outcome
      by its last score. Nothing else of it is read, nor of `policy`.
  """

  data: DataConfig = DataConfig()
  prm: PrmConfig = PrmConfig(kind='workdir')
  targets: TargetConfig = TargetConfig()
  evaluation: PrmEvaluation = PrmEvaluation()

  @property
  def of_steps(self) -> bool:
    """Says whether the PRM judges steps, and not outcomes alone."""
    return self.targets.supervision == 'process'

  @property
  def judged(self) -> str:
    """Returns the workdir of the PRM that is judged; '' for others."""
    return next(iter(self.prm.trained), '')

  def check_together(self) -> None:
    prm = self.prm
    if prm.kind == 'none':
      checks.fail('prm.kind', 'none', 'expected a PRM to evaluate')
    with checks.below('prm'):
      prm.check_use()
    if prm.kind == 'exact':
      check_arithmetic('prm.kind', 'exact', self.data)
    check_supervision(self.targets.supervision)
    names = self.data.evaluation_names
    if self.evaluation.best_of_n not in ('', *names):
      checks.fail(
        'evaluation.best_of_n',
        self.evaluation.best_of_n,
        f"expected '' or one of data.evaluations: {', '.join(names)}",
      )
    if faults := [*self._unread_faults()]:
      raise checks.Faults(faults)

  def _unread_faults(self) -> Iterator[Fault]:
    """Yields settings that would change nothing."""
    supervision = self.targets.supervision
    read = dataclasses.replace(
      self, policy=PolicyConfig(), targets=TargetConfig(supervision)
    )
    ours, theirs = dataclasses.asdict(self), dataclasses.asdict(read)
    for name in differences(ours, theirs):
      value_of = operator.attrgetter(name)
      yield Fault(
        name,
        value_of(self),
        f'an evaluation does not read it; expected {value_of(read)!r}',
      )

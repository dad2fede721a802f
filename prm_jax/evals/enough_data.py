"""Checks before hours of work that the data allow a PRM's evaluation."""

from prm_jax.data.chains import first_error
from prm_jax.data.datasets import Dataset
from prm_jax.data.targets import TargetConfig
from prm_jax.evals import suite
from prm_jax.evals.prm import PrmEvaluation, is_prmbench, some_problems
from prm_jax.runtime.errors import UserError


def check_data(
  wanted: PrmEvaluation, targets: TargetConfig, dataset: Dataset
) -> None:
  """Checks before hours of work that the data allow the evaluations.

  Args: as those of `evaluate`.

  Raises:
    UserError: there are too few candidates to choose from; or dev, or an
      evaluation with step labels that is not PRMBench's, has no labelled chain
      with an error, or none without.
  """
  _check_candidates(wanted, dataset)
  if targets.supervision != 'process':
    return
  sets = {'dev': some_problems(dataset.dev, wanted.max_dev_problems)} | {
    name: some_problems(chains, wanted.max_problems)
    for name, chains in dataset.evaluations.items()
    if any(chain.labels for chain in chains)
  }
  for name, every_chain in sets.items():
    chains = [chain for chain in every_chain if chain.labels]
    wrong = sum(first_error(chain.labels) >= 0 for chain in chains)
    of_a_class = name != 'dev' and is_prmbench(chains)
    if wrong in (0, len(chains)) and not of_a_class:
      raise UserError(
        f'{wrong:,} of {len(chains):,} labelled chains of {name} have an '
        'error: expected chains of both kinds; take more of its problems or '
        'chains'
      )


def check_outcomes(
  wanted: PrmEvaluation, dataset: Dataset, without: str
) -> None:
  """Checks before hours of work that an outcome model can be trained.

  Args:
    without: the setting with which none is trained.

  Raises:
    UserError: no training chain, or no dev chain, has an outcome.
  """
  dev = some_problems(dataset.dev, wanted.max_dev_problems)
  for name, chains in (('training', dataset.train), ('dev', dev)):
    if all(chain.outcome is None for chain in chains):
      raise UserError(
        f'none of {len(chains):,} {name} chains has an outcome, which an '
        f'outcome model learns: expected chains with outcomes, or {without}'
      )


def _check_candidates(wanted: PrmEvaluation, dataset: Dataset) -> None:
  """Raises UserError unless chains can be chosen among, and can vote.

  Problems need as many chains as the smallest n, right chains need answers, and
  equal chains equal outcomes.
  """
  name = wanted.best_of_n
  if name not in dataset.evaluations:
    return
  chains = some_problems(dataset.evaluations[name], wanted.max_problems)
  groups = suite.groups_of_equal_size(chains)
  samples = len(groups[0]) if groups else 0
  if samples < min(wanted.ns):
    raise UserError(
      f'config.evaluation.best_of_n={name!r}: its problems have '
      f'{samples or "no two"} chains with known outcomes to choose from, and '
      f'ns={wanted.ns}; take more chains of each problem (of a domain '
      "data.test_samples), smaller ns, or best_of_n=''"
    )
  if any(chain.outcome and chain.answer is None for chain in chains):
    raise UserError(
      f'config.evaluation.best_of_n={name!r}: its right chains name no answer, '
      "by which chains vote; expected best_of_n='', or chains with answers"
    )
  outcomes: dict[tuple, bool | None] = {}
  for chain in (chains[i] for group in groups for i in group):
    text = chain.problem, chain.steps, chain.answer
    if outcomes.setdefault(text, chain.outcome) != chain.outcome:
      raise UserError(
        f'config.evaluation.best_of_n={name!r}: equal chains of '
        f'{chain.problem[:60]!r} are both right and wrong; check their answers '
        'in one way'
      )

"""Arms of rl_process_vs_outcome: curves of phases, rates, and what is known."""

import json
import sys

import numpy as np
import pytest

from experiments.arithmetic import wrong_facts_for
from experiments.rl_process_vs_outcome import run
from experiments.rl_process_vs_outcome.arms import ARMS, costs, join
from experiments.rl_runs import Case, Curve
from experiments.runner import Runner
from prm_jax.data.domains import arithmetic
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.runtime.errors import UserError


def phase(first, hacked=False):
  """A curve of three evaluations of two problems, which count up."""
  right = np.tile(first + np.arange(3.0), (2, 1))
  return Curve(
    np.array([0, 640, 1280]), right, right + 0.5, -right, right[0], hacked
  )


def test_phases_are_one_curve():
  found = join([phase(0), phase(2, hacked=True), phase(4)])
  # The first evaluation of a phase is that of the policy before it.
  assert found.chains.tolist() == [0, 640, 1280, 1920, 2560, 3200, 3840]
  assert found.right.tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2
  assert (found.score == found.right + 0.5).all()
  assert (found.paid == -found.right).all()
  assert found.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
  assert found.hacked
  assert not join([phase(0), phase(2)]).hacked


def test_every_arm_of_a_setting_and_every_rate_is_one_of_an_arm():
  named = {arm for setting in run.SETTINGS.values() for arm in setting.arms}
  assert named | set(run.RATES) <= set(ARMS)


def test_rollouts_for_labels_are_counted(tmp_path):
  """Those of the policy's own chains, and these chains, too."""
  calls = {'prover_labels': 36, 'policy_samples': 8, 'policy_labels': 288}
  for name, count in calls.items():
    (tmp_path / 'case' / name).mkdir(parents=True)
    ledger = tmp_path / 'case' / name / 'ledger.json'
    ledger.write_text(json.dumps({'calls': count}))
  case = Case(Runner(tmp_path, 1), 'case', 1, 10)
  size = run.SETTINGS['10_prms'].size(False)
  found = {arm: costs(case, size, arm, 12_800) for arm in ARMS}
  rollouts = {arm: cost['rollouts'] for arm, cost in found.items()}
  assert {arm: n for arm, n in rollouts.items() if n} == {
    'outcome + PAV': 36,
    'outcome + PAV, own chains': 8 + 288,
    'outcome + PAV, best of 4': 8 + 288,
  }
  assert found['outcome + PRM']['labelled'] == 16_384
  assert found['outcome + refreshed PRM']['labelled'] == 16_384 + 3 * 1024


def results_of(arms, ends=0.5):
  curve = {'mean': [0.25, ends]}
  return {
    'title': '10 operations',
    'success': 0.2,
    'seeds': [1],
    'chains': [0, 640],
    'outcome_ends': ends,
    'arms': {arm: {'rate': 2e-4, 'accuracy': curve} for arm in arms},
    'costs': {arm: {'labelled': len(arms)} for arm in arms},
  }


def test_arms_that_ran_before_are_kept():
  known = results_of(['outcome', 'outcome + exact PAV', 'PRM'])
  found = results_of(['outcome', 'PRM, min form', 'PRM'])
  kept = run.with_arms_kept(known, found)
  assert list(kept['arms']) == [*known['arms'], 'PRM, min form']
  new = run.with_arms_kept(known, results_of(['outcome', 'outcome + PAV']))
  assert new['costs']['outcome + PAV'] == {'labelled': 2}
  assert new['costs']['PRM'] == {'labelled': 3}


def test_arms_are_not_kept_beside_another_outcome():
  found = results_of(['outcome', 'PRM'], ends=0.6)
  with pytest.raises(UserError, match='cannot be kept; run all arms'):
    run.with_arms_kept(results_of(['outcome', 'PRM']), found)


def test_arms_without_the_outcome_are_refused_before_they_run(
  tmp_path, monkeypatch, capsys
):
  """The results of the other arms, which are there, are to be kept."""
  flags = [
    '--workdir',
    str(tmp_path / 'w'),
    '--settings',
    '10',
    '--arms',
    'PRM',
  ]
  monkeypatch.setattr(sys, 'argv', ['run', *flags])
  with pytest.raises(SystemExit):
    run.main()
  assert "--arms: name 'outcome', too, as 10" in capsys.readouterr().err


@pytest.mark.parametrize(('operations', 'success'), [(5, 0.2), (20, 0.2)])
def test_longer_problems_are_not_harder(operations, success):
  """The solver's chains, sampled, end right as often as was asked for."""
  wrong = wrong_facts_for(success, operations, 3, 10, '+-')
  config = ArithmeticConfig(
    operations=operations, ops='+-', solver_seed=3, wrong_facts=wrong
  )
  problems = arithmetic.sample_problems(config, 256, 3)
  results = arithmetic.sample_results(
    arithmetic.make_solver(config), problems, 8, 0
  )
  chains = arithmetic.to_chains(config, problems, results)
  right = np.mean([chain.outcome for chain in chains])
  assert right == pytest.approx(success, abs=0.04)

"""Defines the rewards that are compared, their PRMs, and what these cost."""

import json
import math
import pathlib
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from experiments.arithmetic import check_formed
from experiments.rl_runs import (
  TEST_PROBLEMS,
  Case,
  Curve,
  Size,
  learn,
  make_policy,
  make_prm,
  refresh_prm,
)
from experiments.runner import slug

# The PRM's chains have more slips than the solver makes, so that it has seen
# errors that the solver does not make by itself; at most so many in a chain, so
# that it sees right steps at the end of long ones, too.
SLIP, SLIPS = 0.15, 1.5
# Eight heads, and rotary angles for windows of 200 tokens and not of thousands,
# find a long problem's next operation after a quarter of the updates; at twice
# this learning rate some seeds never do. A PRM that never does likes any chain
# of true equations, and so does the policy, soon.
MODEL = (
  '--config.model.n_heads=8',
  '--config.model.n_kv_heads=8',
  '--config.model.rope_theta=30.0',
  '--config.optim.lr=1e-3',
)
# Chains of the solver, with slips, whose steps are labelled by rollouts of the
# policy, and rollouts of each step.
PROVER_CHAINS, ROLLOUTS = 1024, 4
# The policy's own, with as many rollouts, and the updates of their provers.
OWN_CHAINS, OWN_UPDATES = 8192, 600
# A refreshed PRM learns from the policy's chains after each phase but the last.
PHASES, REFRESH_PROBLEMS, REFRESH_SAMPLES, REFRESH_UPDATES = 4, 256, 4, 400
TRAIN_PROBLEMS = 8192
ALONE = '--config.reward.outcome_weight=0'
VALUES = '--config.reward.form=advantage'
MIN_FORM = '--config.reward.form=min_form'
RETURN = '--config.advantage.process=return'
SOFT = (
  # Soft labels say what a prefix is worth, after an error, too.
  '--config.targets.after_first_error=keep',
  # The dev chains have other labels, by which no checkpoint is chosen.
  '--config.train.best_metric=',
)
# What the score of a prefix estimates: how often the policy ends right from it,
# or how often one of ROLLOUTS chains does, the prover of Setlur et al.
OWN_PROVERS = {
  'prover_own': (),
  'prover_best': ('--config.targets.hard_above=0.0',),
}
EXACT_VALUES = '--config.prm.exact=value'


class Arm(NamedTuple):
  """A reward.

  Attributes:
    variant: of configs/rl_math.py.
    prms: names of the PRMs; a step gets the lowest of their scores.
    refreshed: whether the PRM learns from the policy's chains between phases.
  """

  variant: str = 'grpo'
  flags: tuple[str, ...] = ()
  prms: tuple[str, ...] = ('prm',)
  refreshed: bool = False


# Several PRMs on the same chains, with as many layers as their number says.
ENSEMBLE = ('prm', 'prm_4', 'prm_5')
ARMS = {
  'outcome': Arm('outcome', prms=()),
  'outcome + exact labels': Arm('exact', prms=()),
  'outcome + exact PAV': Arm('exact', (EXACT_VALUES, VALUES), ()),
  'outcome + PRM': Arm(),
  'outcome + PRM, decaying': Arm(flags=('--config.reward.decay=True',)),
  'outcome + PRM, wrong chains': Arm(flags=('--config.reward.chains=wrong',)),
  'outcome + PRM, min form': Arm(flags=(MIN_FORM, RETURN)),
  'outcome of consistent chains': Arm(
    flags=('--config.reward.weight=0', '--config.advantage.keep=0.5')
  ),
  'outcome + PAV': Arm(flags=(VALUES,), prms=('prover',)),
  'outcome + PAV, own chains': Arm(flags=(VALUES,), prms=('prover_own',)),
  'outcome + PAV, best of 4': Arm(flags=(VALUES,), prms=('prover_best',)),
  'outcome + lowest of 3 PRMs': Arm(prms=ENSEMBLE),
  'outcome + refreshed PRM': Arm(refreshed=True),
  'PRM': Arm(flags=(ALONE,)),
  'PRM, min form': Arm(flags=(ALONE, MIN_FORM, RETURN)),
  'lowest of 3 PRMs': Arm(flags=(ALONE,), prms=ENSEMBLE),
  'refreshed PRM': Arm(flags=(ALONE,), refreshed=True),
}


def make_models(case: Case, size: Size, arms: Collection[str]) -> None:
  """Trains the policy and the PRMs that the arms of a case share."""
  shortest = f'--config.data.shortest={size.shortest}'
  make_policy(case, size.imitation, shortest, *MODEL)
  if size.formed:
    check_formed(case.policy, size.formed)
  for name in sorted({name for arm in arms for name in ARMS[arm].prms}):
    if name == 'prover':
      _make_prover(case, size.prm)
    elif name in OWN_PROVERS:
      _make_own_prover(case, name, min(OWN_UPDATES, size.prm))
    else:
      layers = name.removeprefix('prm_') if name != 'prm' else ''
      flags = (f'--config.model.n_layers={layers}',) if layers else ()
      flags += ('--config.data.batch_size=32',)
      slip = slip_of(case)
      make_prm(case, size.prm, size.labelled, slip, name, *MODEL, *flags)


def slip_of(case: Case) -> float:
  """Returns how often a step of the PRM's chains slips."""
  return min(SLIP, SLIPS / case.operations)


def _make_prover(case: Case, updates: int) -> None:
  """Trains a PRM on how often the policy ends right from each step."""
  labels = case.run(
    'label_math.py:rollouts',
    'prover_labels',
    *case.domain('chains'),
    f'--config.chains.arithmetic.slip={slip_of(case)}',
    f'--config.chains.train_problems={PROVER_CHAINS}',
    f'--config.chains.test_problems={TEST_PROBLEMS}',
    *_rollouts_of(case),
  )
  make_prm(
    case,
    updates,
    PROVER_CHAINS,
    slip_of(case),
    'prover',
    *MODEL,
    f'--config.data.labels={labels}',
    *SOFT,
  )


def _make_own_prover(case: Case, name: str, updates: int) -> None:
  """Trains a PRM on how often the policy ends right from steps of its own.

  It begins with the policy's backbone, as it is to judge what that can do.
  """
  chains = _sample_chains(case, 'policy', OWN_CHAINS, 1)
  labels = case.run(
    'label_math.py:rollouts',
    'policy_labels',
    f'--config.seed={case.seed}',
    '--config.chains.kind=workdir',
    f'--config.chains.workdir={chains}',
    *_rollouts_of(case),
  )
  flags = (*SOFT, '--config.data.batch_size=32', *OWN_PROVERS[name])
  refresh_prm(case, name, case.policy, labels, updates, *flags)


def _rollouts_of(case: Case) -> tuple[str, ...]:
  """Returns the flags of labels by rollouts of the policy."""
  return (
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={case.policy}',
    f'--config.policy.sampling.max_tokens={case.max_tokens}',
    f'--config.rollouts.samples={ROLLOUTS}',
  )


def run_arm(case: Case, size: Size, arm: str, rate: float) -> Curve:
  """Trains the policy of a case with one reward and one learning rate."""
  variant, flags, prms, refreshed = ARMS[arm]
  name = f'{slug(arm)}_{rate:g}'
  if refreshed:
    return _run_refreshed(case, size, name, rate, flags)
  if prms:
    path, *also = (str(case.path(prm)) for prm in prms)
    flags += (f'--config.prm.path={path}',)
    if also:
      flags += (f'--config.prm.also={tuple(also)}',)
  flags += (f'--config.optim.lr={rate}',)
  return learn(case, name, case.policy, variant, size.rewards, *flags)


def _run_refreshed(
  case: Case, size: Size, name: str, rate: float, flags: tuple[str, ...]
) -> Curve:
  """Trains the policy in phases, after each of which its PRM learns.

  A phase is a job of its own: its KL is that from the phase's first policy, and
  its optimizer begins anew.
  """
  policy, prm, curves = case.policy, case.prm, []
  for phase in range(PHASES):
    part = f'{name}_{phase}'
    # The cosine of the other arms, in steps.
    share = (1 + math.cos(math.pi * (phase + 0.5) / PHASES)) / 2
    curve = learn(
      case,
      part,
      policy,
      'grpo',
      size.rewards // PHASES,
      f'--config.prm.path={prm}',
      f'--config.optim.lr={rate * share}',
      '--config.optim.schedule=constant',
      # The next phase goes on from the last update, and not from the best.
      f'--config.train.checkpoint_every={size.rewards // PHASES}',
      # Another number of problems is another order; held-out ones stay.
      f'--config.problems.train_problems={TRAIN_PROBLEMS - phase}',
      *flags,
    )
    curves.append(curve)
    policy = case.path(part)
    if phase < PHASES - 1:
      labels = _label_chains(case, part)
      updates = min(REFRESH_UPDATES, size.prm)
      prm = refresh_prm(case, f'{part}_prm', prm, labels, updates)
  return join(curves)


def _sample_chains(
  case: Case, policy: str, problems: int, samples: int
) -> pathlib.Path:
  """Samples chains of a policy."""
  return case.run(
    'sample_math.py',
    f'{policy}_samples',
    *case.domain('problems'),
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={case.path(policy)}',
    f'--config.policy.sampling.max_tokens={case.max_tokens}',
    f'--config.problems.train_problems={problems}',
    f'--config.problems.test_problems={TEST_PROBLEMS}',
    f'--config.samples={samples}',
  )


def _label_chains(case: Case, policy: str) -> pathlib.Path:
  """Samples chains of a policy and labels their steps exactly."""
  samples = _sample_chains(case, policy, REFRESH_PROBLEMS, REFRESH_SAMPLES)
  return case.run(
    'label_math.py:verifier',
    f'{policy}_labels',
    f'--config.seed={case.seed}',
    '--config.chains.kind=workdir',
    f'--config.chains.workdir={samples}',
  )


def join(curves: list[Curve]) -> Curve:
  """Makes one curve of phases; each begins where the one before ended."""
  chains, offset = [curves[0].chains], curves[0].chains[-1]
  for curve in curves[1:]:
    chains.append(curve.chains[1:] + offset)
    offset += curve.chains[-1]
  rest = curves[1:]
  return Curve(
    np.concatenate(chains),
    *(
      np.concatenate(
        [getattr(curves[0], field)]
        + [getattr(curve, field)[..., 1:] for curve in rest],
        axis=-1,
      )
      for field in ('right', 'score', 'paid', 'steps')
    ),
    any(curve.hacked for curve in curves),
    tuple(sorted({commit for curve in curves for commit in curve.commits})),
  )


def costs(case: Case, size: Size, arm: str, chains: int) -> dict[str, int]:
  """Returns what an arm needs beside the chains that it learns from.

  `labelled` are chains with exact labels of their steps, and `rollouts` chains
  that the policy wrote for labels.

  Args:
    chains: number of chains that it learns from.
  """
  variant, _, prms, refreshed = ARMS[arm]
  labelled = size.labelled * any(name.startswith('prm') for name in prms)
  if variant == 'exact':
    labelled += chains
  if refreshed:
    labelled += (PHASES - 1) * REFRESH_PROBLEMS * REFRESH_SAMPLES
  written = []
  if 'prover' in prms:
    written = ['prover_labels']
  elif OWN_PROVERS.keys() & set(prms):
    written = ['policy_samples', 'policy_labels']
  ledgers = (case.path(name) / 'ledger.json' for name in written)
  rollouts = sum(json.loads(path.read_text())['calls'] for path in ledgers)
  return {'labelled': labelled, 'rollouts': rollouts}

"""Labels steps by what can be checked exactly: arithmetic, equations, tests.

    known domains         data/domains/known: arithmetic, logic, code
    code (meta['tests'])  data/verify/sandbox runs tests after each step
    other text            data/verify/calculator checks the equations of a step

This source needs no policy. Each step is judged by itself: a step that
calculates correctly from a wrong number is right. The loss masks the steps
after the first error.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from prm_jax.data.chains import VERIFIED, Chain
from prm_jax.data.domains.known import domain_of
from prm_jax.data.verify import calculator, sandbox
from prm_jax.inference.driver import CannotDo
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime import checks
from prm_jax.runtime.checks import one_of

Verdict = bool | None  # None: nothing is known about the step


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
  """Says how unchecked steps are labelled and what a program may use.

  Attributes:
    unchecked: label of a text step without an equation to check: 'unknown'
      (None) or 'right' (1).
    limits: what a program may use.
  """

  unchecked: Annotated[str, one_of('unknown', 'right')] = 'unknown'
  limits: sandbox.Limits = sandbox.Limits()

  def __post_init__(self) -> None:
    checks.check(self)


def label(chain: Chain, config: VerifierConfig) -> Labelling:
  """Labels one chain; yields nothing.

  The steps of a chain of code, joined by line breaks, are a program.
  `meta['tests']` is source code that runs after the whole program, or a list
  with one source per step (None: no test) that runs after the program up to
  that step.

  Returns:
    The chain with `meta['verifier']`, the number of steps that are 'right',
    'wrong' and 'unchecked'. A chain of code also gets `meta['sandbox']`, the
    sandbox's outcome per step (None: not run), and, if it had no outcome,
    whether it passed its tests.

  Raises:
    CannotDo: No step of a text has an equation to check, or `meta['tests']`
      is malformed.
    UserError: The chain is code and this machine has no sandbox.
  """
  yield from ()
  outcome, more = chain.outcome, {}
  if 'tests' in chain.meta:
    tests = _tests(chain)
    verdicts, ended = check_program(chain.steps, tests, config.limits)
    more = {'sandbox': ended}
    failed = any(e is not None and e != 'passed' for e in ended)
    if outcome is None and (failed or tests[-1]):
      outcome = not failed
  elif domain := domain_of(chain.problem):
    if domain.check_steps is None:
      raise CannotDo('the lines of a critique are not checked one by one')
    verdicts = domain.check_steps(chain.problem, chain.steps, config.limits)
  else:
    verdicts = [calculator.check_step(step) for step in chain.steps]
    if set(verdicts) == {None}:
      raise CannotDo('no step states an equation that can be checked')
  counts = {
    'right': verdicts.count(True),
    'wrong': verdicts.count(False),
    'unchecked': verdicts.count(None),
  }
  if not more and config.unchecked == 'right':
    verdicts = [verdict is not False for verdict in verdicts]
  return dataclasses.replace(
    chain,
    outcome=outcome,
    labels=tuple(VERIFIED[verdict] for verdict in verdicts),
    meta={**chain.meta, 'verifier': counts, **more},
  )


def check_program(
  steps: Sequence[str],
  tests: Sequence[str | None],
  limits: sandbox.Limits,
) -> tuple[list[Verdict], list[str | None]]:
  """Judges the steps of a program by running tests after them.

  A test that passes shows that all steps so far are right, untested ones, too.
  A test that fails shows that there is an error after the last passed test: in
  its own step if no untested step lies between, otherwise in an unknown one.
  Later tests are not run, because the program contains the error by then.

  Args:
    tests: one test per step, run after the steps so far; None or '' if there
      is none.

  Returns:
    One verdict and one of `sandbox.OUTCOMES` (None: not run) per step.
  """
  verdicts: list[Verdict] = []
  ended: list[str | None] = [None] * len(steps)
  for p, test in enumerate(tests):
    if not test:
      continue
    ended[p] = sandbox.run('\n'.join(steps[: p + 1]), test, limits).outcome
    if ended[p] == 'passed':
      verdicts = [True] * (p + 1)
      continue
    if len(verdicts) == p:
      verdicts.append(False)
    break
  return verdicts + [None] * (len(steps) - len(verdicts)), ended


def _tests(chain: Chain) -> list[str | None]:
  """Returns the tests of a chain of code, one per step; checks their form."""
  tests = chain.meta['tests']
  if isinstance(tests, str):
    tests = [None] * (len(chain.steps) - 1) + [tests]
  if (
    not isinstance(tests, list | tuple)
    or len(tests) != len(chain.steps)
    or not all(isinstance(test, str | None) for test in tests)
    or not any(tests)
  ):
    raise CannotDo(
      "meta['tests'] is malformed: expected source code, or a list with one "
      'source or None per step and at least one source'
    )
  return list(tests)

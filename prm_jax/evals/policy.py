"""Evaluates a policy by what it writes: right answers, form, and their errors.

    problems -> Policy.complete -> completions -> the sections of results.json

The data's own chains, where there are several of a problem, are measured the
same way: they are what an imitator is to come near.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.evals import best_of_n, bootstrap
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.grading import is_right, same_answer, truth_of
from prm_jax.inference.protocols import Completion, Policy, Request
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, each
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat


@dataclasses.dataclass(frozen=True)
class PolicyEvaluation:
  """How a policy is evaluated.

  Attributes:
    samples: chains of each problem.
    ns: numbers of samples, ascending, at which pass and majority are shown.
    resamples: bootstrap samples of every interval.
    max_dev_problems: dev problems that are read at every checkpoint; 0 reads
      all.
    max_problems: problems of each evaluation, evenly spaced; 0 takes all.
  """

  samples: Annotated[int, at_least(1)] = 16
  ns: Annotated[tuple[int, ...], each(at_least(1))] = (1, 2, 4, 8, 16)
  resamples: Annotated[int, at_least(1)] = 2000
  max_dev_problems: Annotated[int, at_least(0)] = 0
  max_problems: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)
    checks.check_ascending('ns', self.ns)
    if self.samples < self.ns[-1]:
      checks.fail(
        'samples', self.samples, f'expected at least the {self.ns[-1]} of ns'
      )


def known_answers(
  name: str, chains: Sequence[Chain]
) -> tuple[list[str], list[str]]:
  """The problems whose right answer is known, each once, and these answers.

  Args:
    name: of the evaluation, for the error message.

  Raises:
    UserError: there are none.
  """
  truths: dict[str, str] = {}
  for chain in chains:
    if chain.problem not in truths:
      with contextlib.suppress(CannotDo):
        truths[chain.problem] = truth_of(chain)
  if not truths:
    raise UserError(
      f'the evaluation {name!r} has no problem whose right answer is known; '
      'name a file with answers, such as GSM8K'
    )
  return list(truths), list(truths.values())


def complete(
  policy: Policy, problems: Sequence[str], samples: int
) -> list[list[Completion]]:
  """Whole chains, N of each of Q problems; none may be lacking."""
  return policy.complete(
    [Request(problem, (), key=problem, samples=samples) for problem in problems]
  )


def recorded(
  chains: Sequence[Chain], problems: Sequence[str], samples: int
) -> list[list[Completion]] | None:
  """The data's own chains as completions; None where they are too few."""
  groups: dict[str, list[Completion]] = {problem: [] for problem in problems}
  for chain in chains:
    if chain.problem in groups:
      groups[chain.problem].append(
        Completion(chain.steps, True, 0, 0, math.nan)  # nobody counted
      )
  cut = [group[:samples] for group in groups.values()]
  return cut if all(len(group) == samples for group in cut) else None


def is_formed(problem: str, completion: Completion) -> bool:
  """Is it a chain as those of the data, be its results right or wrong?

  Of the arithmetic domain: every operation once, each on the result before it.
  Elsewhere: it ends, and states an answer.
  """
  steps = completion.steps
  if not completion.finished or not steps:
    return False
  if arithmetic_text.is_problem(problem):
    return arithmetic_text.read_results(problem, steps) is not None
  return final_answer(steps) is not None


def answer_ids(
  problem: str, answers: Sequence[str | None], correct: Sequence[bool]
) -> list[int]:
  """Equal answers of one problem get equal numbers; none is -1.

  Right ones are all equal, however they are written, and no wrong one equals
  them: 50% is both 1/2 and 50, and one of the two is wrong.
  """
  ids: dict[tuple[str, bool], int] = {}
  for key in zip(answers, correct, strict=True):
    answer, right = key
    if answer is None or key in ids:
      continue
    equal = (
      number
      for (other, also), number in ids.items()
      if right == also and (right or same_answer(problem, answer, other))
    )
    ids[key] = next(equal, len(ids))
  return [ids.get(key, -1) for key in zip(answers, correct, strict=True)]


def answer_of(completion: Completion) -> str | None:
  """What a chain says the answer is; None where it did not come to its end."""
  ended = completion.finished and completion.steps
  return final_answer(completion.steps) if ended else None


def agreement_in_error(
  correct: np.ndarray,  # [Q, N]
  answers: np.ndarray,  # [Q, N]
) -> float | None:
  """Probability that two wrong samples of a problem give the same answer.

  Averaged over the problems with two wrong samples, None where there are none.
  Without systematic errors it would be near 1 / (answers that are possible).
  """
  shares = []
  for right, ids in zip(correct, answers, strict=True):
    wrong = ids[~right.astype(bool)]
    pairs = list(itertools.combinations(wrong, 2))
    if pairs:
      shares.append(np.mean([a == b and a >= 0 for a, b in pairs]))
  return float(np.mean(shares)) if shares else None


def sampling_section(
  problems: Sequence[str],
  truths: Sequence[str],
  completions: Sequence[Sequence[Completion]],  # [Q][N]
  ns: Sequence[int],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """What N samples of each of Q problems are worth.

  An answer that could not be compared in time counts as wrong.

  Returns:
    accuracy with its interval; `pass` and `majority` by n, exact and resampled;
    the shares of chains that are rightly formed and that ended; the share of
    problems whose majority is wrong, and `agreement_in_error`.
  """
  grading = Heartbeat('grading answers of problems', len(problems))
  correct = np.array(
    [
      [bool(is_right(problem, completion, truth)) for completion in group]
      for problem, truth, group in zip(
        grading.over(problems), truths, completions, strict=True
      )
    ]
  )
  answers = np.array(
    [
      answer_ids(problem, list(map(answer_of, group)), right)
      for problem, group, right in zip(
        problems, completions, correct, strict=True
      )
    ]
  )
  formed = [
    is_formed(problem, completion)
    for problem, group in zip(problems, completions, strict=True)
    for completion in group
  ]
  samples = correct.shape[1]
  votes = best_of_n.majority_curve(correct, answers, [samples], seed)
  mean, low, high = bootstrap.mean_ci(correct.mean(1), seed, resamples)
  return {
    'problems': len(correct),
    'samples': samples,
    'accuracy': {'mean': mean, 'ci95': [low, high]},
    'by_n': best_of_n.curves(
      {
        'pass': best_of_n.oracle_curve(correct, ns),
        'majority': best_of_n.majority_curve(correct, answers, ns, seed),
      },
      ns,
      seed,
      resamples,
    ),
    'formed': float(np.mean(formed)),
    'finished': float(np.mean([c.finished for g in completions for c in g])),
    'majority_wrong': float(1.0 - votes.mean()),
    'agreement_in_error': agreement_in_error(correct, answers),
  }


def solver_log_likelihood(
  domain: arithmetic.ArithmeticConfig, chains: Sequence[Chain]
) -> float:
  """Sum of log P(chain | problem) under the solver that wrote the chains, nats.

  No policy does better in the mean over the solver's chains (Gibbs): all but
  the results of a chain follows from its problem.
  """
  transitions = arithmetic.make_solver(domain)
  total = 0.0
  for chain in chains:
    written = arithmetic_text.read_problem(chain.problem)
    results = arithmetic_text.read_results(chain.problem, chain.steps)
    states = [written.start, *results[:-1]]
    for (op, operand), state, result in zip(
      written.parts, states, results, strict=True
    ):
      at = arithmetic.OPS.index(op), state, operand, result
      total += float(np.log(transitions[at]))
  return total

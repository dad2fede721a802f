"""Evaluates a policy by its samples: right answers, form, systematic errors.

    problems -> Policy.complete -> completions -> the sections of results.json

If the data have several chains per problem, these are measured in the same way:
a policy that imitates the data should come near them.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from prm_jax.data.chains import Chain, was_cut_off
from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.known import domain_of
from prm_jax.evals import best_of_n, bootstrap
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.grading import answer_of, is_right, same_answer, truth_of
from prm_jax.inference.protocols import Completion, Policy, Request
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, each
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat


@dataclasses.dataclass(frozen=True)
class PolicyEvaluation:
  """Says how a policy is evaluated.

  Attributes:
    samples: number of chains sampled per problem.
    ns: numbers of samples, ascending, at which pass and majority are shown.
    resamples: number of bootstrap resamples of every interval.
    max_dev_problems: number of dev problems that are read at every checkpoint;
      0 reads all.
    max_problems: number of problems of each evaluation, evenly spaced; 0 takes
      all.
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
  """Returns the distinct problems whose right answer is known.

  Args:
    name: name of the evaluation, for the error message.

  Returns:
    The problems and their right answers, in the same order.

  Raises:
    UserError: There are none.
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
  """Samples N whole chains of each problem from a policy that cannot fail."""
  return policy.complete(
    [Request(problem, (), key=problem, samples=samples) for problem in problems]
  )


def recorded_completions(
  chains: Sequence[Chain], problems: Sequence[str], samples: int
) -> list[list[Completion]] | None:
  """Returns the data's own chains as completions; None if there are too few."""
  groups: dict[str, list[Completion]] = {problem: [] for problem in problems}
  for chain in chains:
    if chain.problem in groups:
      groups[chain.problem].append(
        # The data do not say how many tokens a chain took.
        Completion(chain.steps, not was_cut_off(chain), 0, 0, math.nan)
      )
  cut = [group[:samples] for group in groups.values()]
  return cut if all(len(group) == samples for group in cut) else None


def is_formed(problem: str, completion: Completion) -> bool:
  """Says whether a chain has the form of the data, with right results or not.

  In the arithmetic domain, it must do every operation once, each on the result
  before it; other domains whose truth is known ask for the like. Elsewhere, it
  must end and state an answer.
  """
  steps = completion.steps
  if not completion.finished or not steps:
    return False
  if domain := domain_of(problem):
    return domain.is_formed(problem, steps)
  return answer_of(problem, steps) is not None


def stated_answers(
  problem: str, completions: Sequence[Completion]
) -> list[str | None]:
  """Returns each chain's answer, None where it did not end or has none."""
  return [
    answer_of(problem, each.steps) if each.finished else None
    for each in completions
  ]


def answer_ids(
  problem: str, answers: Sequence[str | None], correct: Sequence[bool]
) -> list[int]:
  """Numbers the answers of one problem so that equal answers get equal ids.

  No answer has the id -1. All right answers are equal, however they are
  written, and no wrong answer equals a right one. Otherwise 50%, which equals
  both 1/2 and 50, would make a right and a wrong answer equal.
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


def agreement_in_error(
  correct: np.ndarray,  # [Q, N]
  answers: np.ndarray,  # [Q, N]
) -> float | None:
  """Estimates the probability that two wrong samples have the same answer.

  It is averaged over the problems with at least two wrong samples, and None if
  there are none. Without systematic errors it would be near 1 / (number of
  possible answers).
  """
  shares = []
  for right, ids in zip(correct, answers, strict=True):
    wrong = ids[~right.astype(bool)]
    if len(wrong) > 1:
      _, counts = np.unique(wrong[wrong >= 0], return_counts=True)
      agree = (counts * (counts - 1)).sum()
      shares.append(agree / (len(wrong) * (len(wrong) - 1)))
  return float(np.mean(shares)) if shares else None


def sampling_section(
  problems: Sequence[str],
  truths: Sequence[str],
  completions: Sequence[Sequence[Completion]],  # [Q][N]
  ns: Sequence[int],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Evaluates N samples of each of Q problems.

  Answers that could not be compared with the right one in time count as wrong.

  Args:
    ns: numbers of samples at which `pass` and `majority` are computed.
    seed: seed of the votes and of the bootstrap over problems.

  Returns:
    A dict with `accuracy` and its interval; `by_n`, the exact `pass` and the
    resampled `majority` at every n; `formed` and `finished`, the shares of
    chains that have the right form and that ended; `majority_wrong`, the share
    of problems whose majority is wrong; and `agreement_in_error`.
  """
  heartbeat = Heartbeat('grading answers of problems', len(problems))
  correct = np.array(
    [
      [bool(is_right(problem, completion, truth)) for completion in group]
      for problem, truth, group in zip(
        heartbeat.over(problems), truths, completions, strict=True
      )
    ]
  )
  answers = np.array(
    [
      answer_ids(problem, stated_answers(problem, group), right)
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
  """Returns the log-likelihood of chains under the solver that wrote them.

  It is the sum of log P(chain | problem) in nats. By Gibbs' inequality no
  policy has a higher mean over the solver's chains. Only the results of a chain
  are random; everything else follows from its problem.
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

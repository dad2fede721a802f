"""Finds the first error of a chain by binary search over rollouts (OmegaPRM).

    wrong chain -> rollouts from the middle: does any end right?
      -> yes: the error comes later, no: earlier -> ... -> the first error

Follows Luo et al. (2024). `label` searches one chain. `label_tree` also
searches the wrong rollouts that were drawn on the way, most convincing first,
and so returns several labelled chains. A search rolls out about as many
prefixes as the logarithm of the number of steps.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Annotated

from prm_jax.data.chains import Chain, StepLabel, was_cut_off
from prm_jax.inference import grading
from prm_jax.inference.driver import Answers, Asked, CannotDo, GaveUp
from prm_jax.labels import rollouts
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime.checks import above_up_to, at_least, from_to_below, one_of

UNVISITED = ('implied', 'unknown')
# What jobs write into a chain's meta that is true of this chain alone.
OF_ONE_CHAIN = (
  'active',
  'consensus',
  'critiques',
  'error_steps',
  'finished',
  'flops',
  'generator',
  'judge',
  'kind',
  'rollouts',
  'sandbox',
  'scores',
  'search',
  'tokens',
  'verifier',
)


@dataclasses.dataclass(frozen=True)
class OmegaConfig(rollouts.RolloutBudget):
  """Holds the paper's parameters; `samples` is its k.

  Attributes:
    threshold: a prefix counts as right if its Monte Carlo value is above this
      number; the search then looks behind it, otherwise within it. The paper's
      0 needs a policy that hardly ever recovers from an error: if it does with
      probability v, a share 1 - (1 - v)^k of wrong prefixes count as right.
    unvisited: label of steps whose prefixes were not rolled out: 'implied' (1
      before the first error, 0 from it on) or 'unknown'. Use 'unknown' for soft
      labels, because an implied 1 beside a rate of 0.4 is on another scale.
    searches: largest number of chains that `label_tree` adds. Early stopping
      leaves fewer wrong rollouts to choose from.
    alpha, beta, length: parameters of Q in `label_tree`; `length` is L, in
      words.
    c_puct: parameter of U in `label_tree`.
  """

  threshold: Annotated[float, from_to_below(0, 1)] = 0.0
  unvisited: Annotated[str, one_of(*UNVISITED)] = 'implied'
  searches: Annotated[int, at_least(0)] = 0
  alpha: Annotated[float, above_up_to(0, 1)] = 0.5
  beta: Annotated[float, above_up_to(0, 1)] = 0.9
  length: Annotated[int, at_least(1)] = 500
  c_puct: Annotated[float, at_least(0)] = 0.125


@dataclasses.dataclass
class State:
  """Holds a prefix that was rolled out: a node of the paper's tree.

  Attributes:
    label: counts of successes and trials. Its value is MC(s), or None if there
      were no trials.
    wrong: rollouts that ended with a wrong answer and were not searched yet.
    visits: N(s), the number of times a rollout of this prefix was chosen.
    tally: counts of `rollouts.tally`.
  """

  steps: tuple[str, ...]
  label: StepLabel
  wrong: list[tuple[str, ...]]
  visits: int = 0
  tally: dict[str, int] = dataclasses.field(default_factory=dict)


# The states by prefix, so that no prefix is rolled out twice.
States = dict[tuple[str, ...], State]


def label(chain: Chain, config: OmegaConfig) -> Labelling:
  """Labels one chain by searching for its first error.

  The label of a prefix that was rolled out is its Monte Carlo value with
  successes and trials. The label of the last step is the chain's outcome, k of
  k or 0 of k. With `unvisited='implied'`, the other steps are 1 before the
  first error, because a later prefix still led to the right answer, and 0 from
  it on. A right chain has no error to search for and takes no rollouts.

  To turn the values into hard labels that agree with the search, set
  `targets.hard_above` to `config.threshold`.

  Outcomes show where an answer is lost, not where a step is wrong: an error
  that a later one cancels passes for right. The result is also only as good as
  the policy. In the arithmetic domain, outcomes can show 96% of the first wrong
  steps. The solver that wrote the chains finds 62% of all; a solver that errs a
  tenth as often finds 93% at threshold 0 and 95% at threshold 0.3.

  `meta['rollouts']` has the sums of `rollouts.tally`.

  Raises:
    CannotDo: The right answer is not known, the policy failed, or no prefix of
      a wrong chain succeeds, not even the bare problem: it is too hard for this
      policy, and the place of the error cannot be seen.
  """
  states: States = {}
  return _with_tally((yield from _label(chain, states, config)), states)


def label_tree(
  chain: Chain, config: OmegaConfig
) -> Generator[Asked, Answers, tuple[Chain, ...]]:
  """Labels a chain and up to `searches` wrong rollouts drawn on the way.

  The tree starts with k rollouts from the problem and the search of the chain.
  Each further search takes the state s with threshold < MC(s) < 1 and its wrong
  rollout r with the largest

      Q(s, r) + U(s),  Q = alpha^(1 - MC(s)) * beta^(words(r) / L),
      U = c_puct * sqrt(sum_i N(s_i)) / (1 + N(s)),

  and searches r for its first error, which adds the prefixes that it rolls out
  as new states. It ends when no such pair is left. Rollouts whose search the
  policy fails at are left out.

  Returns:
    The labelled chain first, then the added ones. These have the chain's meta,
    an `id` that ends in '/omega/' and their number, the right answer as
    `truth`, and nothing of OF_ONE_CHAIN. The counts in the first chain's
    `meta['rollouts']` are those of all searches. None are added if the policy
    gives no rollouts from the problem.

  Raises:
    CannotDo: The chain itself cannot be labelled, see `label`.
  """
  states: States = {}
  truth = grading.truth_of(chain)
  try:
    yield from _visit(chain, (), states, truth, config)
  except GaveUp:
    raise
  except CannotDo:
    # The chain itself may need no rollouts from the problem.
    return (_with_tally((yield from _label(chain, states, config)), states),)
  chains = [(yield from _label(chain, states, config))]
  while len(chains) <= config.searches:
    chosen = select(list(states.values()), config)
    if chosen is None:
      break
    state, rollout = chosen
    state.visits += 1
    state.wrong.remove(rollout)
    steps = (*state.steps, *rollout)
    if any(steps == each.steps for each in chains):
      continue
    try:
      error = yield from _first_error(
        chain, steps, len(state.steps), states, truth, config
      )
    except GaveUp:
      break  # with the chains that were already labelled
    except CannotDo:
      continue  # only this one is lost
    meta = {k: v for k, v in chain.meta.items() if k not in OF_ONE_CHAIN}
    meta['id'] = f'{chain.meta["id"]}/omega/{len(chains)}'
    meta['truth'] = truth
    answer = grading.answer_of(chain.problem, steps)
    added = Chain(chain.problem, steps, answer, False, meta=meta)
    chains.append(_with_labels(added, error, states, truth, config))
  return (_with_tally(chains[0], states), *chains[1:])


def select(
  states: Sequence[State], config: OmegaConfig
) -> tuple[State, tuple[str, ...]] | None:
  """Selects the state and wrong rollout with the largest Q + U.

  Among equals it takes the first, in the order in which states and rollouts
  came. It returns None if there is no pair with threshold < MC(s) < 1.
  """
  total = math.sqrt(sum(state.visits for state in states))
  best, chosen = -math.inf, None
  for state in states:
    value = state.label.value
    if value is None or not config.threshold < value < 1:
      continue
    exploration = config.c_puct * total / (1 + state.visits)
    for rollout in state.wrong:
      words = sum(len(step.split()) for step in rollout)
      quality = config.alpha ** (1 - value) * config.beta ** (
        words / config.length
      )
      if quality + exploration > best:
        best, chosen = quality + exploration, (state, rollout)
  return chosen


def _label(chain: Chain, states: States, config: OmegaConfig) -> Labelling:
  """Labels a chain, adding the prefixes that it rolls out to `states`."""
  truth = grading.truth_of(chain)
  steps = chain.steps
  error = len(steps)
  if was_cut_off(chain):
    state = yield from _visit(chain, steps, states, truth, config)
    ends_right = state.label.value > config.threshold
  else:
    label = rollouts.outcome_label(chain, truth, config.samples)
    ends_right = bool(label.value)
  if not ends_right:
    error = yield from _first_error(chain, steps, 0, states, truth, config)
  return _with_labels(chain, error, states, truth, config)


def _first_error(
  chain: Chain,
  steps: tuple[str, ...],
  right: int,
  states: States,
  truth: str,
  config: OmegaConfig,
) -> Generator[Asked, Answers, int]:
  """Finds the index of the first wrong step by binary search.

  Args:
    chain: chain whose problem and id the requests get.
    steps: steps of the wrong chain that is searched.
    right: number of steps at its beginning that are known to be right.
  """
  wrong = len(steps)
  while wrong - right > 1:
    middle = (right + wrong) // 2
    state = yield from _visit(chain, steps[:middle], states, truth, config)
    if state.label.value > config.threshold:
      right = middle
    else:
      wrong = middle
  if right == 0:
    # No prefix has succeeded. Rollouts from the bare problem tell whether the
    # first step is wrong or the problem is too hard for the policy.
    state = yield from _visit(chain, (), states, truth, config)
    if state.label.value <= config.threshold:
      raise CannotDo(
        f'{state.label.successes} of {state.label.trials} rollouts from the '
        'problem itself end right: too hard for this policy'
      )
  return wrong - 1


def _visit(
  chain: Chain,
  prefix: tuple[str, ...],
  states: States,
  truth: str,
  config: OmegaConfig,
) -> Generator[Asked, Answers, State]:
  """Returns the state of a prefix, rolling it out at the first visit."""
  if prefix not in states:
    key = f'{chain.meta["id"]}/omega/{len(states)}'
    [drawn] = yield from rollouts.sample(
      chain.problem, [prefix], [key], truth, config
    )
    wrong = [
      each.steps for each in drawn if each.finished and each.right is False
    ]
    # Equal rollouts are kept once, as their searches would be the same.
    wrong = [steps for steps in dict.fromkeys(wrong) if steps]
    # A state is added even if the policy failed: the number of states is in
    # the key, and the next prefix needs a new one.
    label, tally = rollouts.count(drawn), rollouts.tally(drawn)
    states[prefix] = State(prefix, label, wrong, tally=tally)
  if not states[prefix].label.trials:
    raise CannotDo(f'the policy gave no completion after {len(prefix)} steps')
  return states[prefix]


def _with_tally(chain: Chain, states: States) -> Chain:
  """Returns the chain with the summed tallies of all states in its meta."""
  sums = rollouts.tally(())
  for state in states.values():
    sums = {name: count + state.tally[name] for name, count in sums.items()}
  return dataclasses.replace(chain, meta={**chain.meta, 'rollouts': sums})


def _with_labels(
  chain: Chain, error: int, states: States, truth: str, config: OmegaConfig
) -> Chain:
  """Returns the chain with labels.

  Args:
    error: index of the first wrong step; the number of steps if there is none.
  """
  labels = []
  for i in range(len(chain.steps)):
    implied = float(i < error) if config.unvisited == 'implied' else None
    step = StepLabel(implied, 'rollout')
    visited = states.get(chain.steps[: i + 1])
    # The search of another chain may have visited this prefix with a result
    # that contradicts this chain's first error.
    value = visited and visited.label.value
    if value is not None and (value > config.threshold) == (i < error):
      step = visited.label
    labels.append(step)
  if not was_cut_off(chain):
    labels[-1] = rollouts.outcome_label(chain, truth, config.samples)
  return dataclasses.replace(chain, labels=tuple(labels))

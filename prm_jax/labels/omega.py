"""The first error of a chain by binary search, and a tree of more such chains.

    wrong chain -> rollouts from the middle: does any end right?
      -> yes: the error comes later, no: earlier -> ... -> the first error

OmegaPRM (Luo et al., 2024). `label` searches one chain; `tree` goes on with
the wrong rollouts that were met on the way, the most convincing first. The
number of prefixes rolled out is the logarithm of the number of steps.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import ClassVar

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference import grading
from prm_jax.inference.driver import Answers, Asked, CannotDo
from prm_jax.labels import rollouts
from prm_jax.labels.labelling import Labelling

UNVISITED = ('implied', 'unknown')


@dataclasses.dataclass(frozen=True)
class OmegaConfig(rollouts.Sampling):
  """The paper's parameters; `samples` is its k.

  Attributes:
    threshold: the error lies right of a prefix whose Monte Carlo value is above
      it, else left. The paper's 0 needs a policy that hardly ever ends right
      after an error: where it does at a rate v, 1 - (1 - v)^k of the wrong
      prefixes pass for right.
    unvisited: what steps are whose prefixes were not rolled out: 'implied' (1
      before the first error, 0 from it on) or 'unknown'. Soft labels want the
      latter: a value of 1 beside neighbours of 0.4 is another scale.
    searches: chains that `tree` adds, at most. Early stopping leaves it fewer
      wrong rollouts to choose from.
    alpha, beta, length: of Q; `length` is L, in words.
    c_puct: of U.
  """

  threshold: float = 0.0
  unvisited: str = 'implied'
  searches: int = 0
  alpha: float = 0.5
  beta: float = 0.9
  length: int = 500
  c_puct: float = 0.125
  _where: ClassVar[str] = 'omega'

  def __post_init__(self) -> None:
    super().__post_init__()
    expected = f'one of {", ".join(UNVISITED)}'
    self._expect('unvisited', self.unvisited in UNVISITED, expected)
    self._expect('searches', self.searches >= 0, '>= 0')
    for name in ('alpha', 'beta'):
      fine = 0 < getattr(self, name) <= 1
      self._expect(name, fine, 'a number in (0, 1]')
    self._expect('length', self.length >= 1, '>= 1')
    self._expect('c_puct', self.c_puct >= 0, '>= 0')


@dataclasses.dataclass
class State:
  """A prefix that was rolled out: a node of the tree.

  Attributes:
    label: with successes and trials; its value is MC(s), None where there were
      no trials.
    wrong: rollouts that ended with a wrong answer and were not searched yet.
    visits: N(s), how often a rollout of it was chosen.
    tally: see `rollouts.tally`.
  """

  steps: tuple[str, ...]
  label: StepLabel
  wrong: list[tuple[str, ...]]
  visits: int = 0
  tally: dict[str, int] = dataclasses.field(default_factory=dict)


# Keyed by the prefix, so that what was rolled out once never is again.
Tree = dict[tuple[str, ...], State]


def label(chain: Chain, config: OmegaConfig) -> Labelling:
  """Labels one chain by the search for its first error.

  A prefix that was rolled out has its Monte Carlo value with successes and
  trials. The last step has the chain's outcome, k of k or 0 of k. Of the rest,
  with `unvisited='implied'`, the steps before the first error are 1: a later
  prefix still led to the right answer. From the first error on they are 0. A
  right chain has no error to search for and takes no rollouts.

  Where `config.threshold` is t, `targets.hard_above=t` makes labels of the
  values that agree with the search.

  Outcomes show where an answer is lost, not where a step is wrong: an error
  that a later one cancels passes for right. And rollouts are as good as their
  policy: in the arithmetic domain the solver that wrote the chains finds 62% of
  the first wrong steps, one that errs a tenth as often 93% (threshold 0) and
  95% (threshold 0.3), of the 96% that outcomes can show.

  `meta['rollouts']` has the sums of `rollouts.tally`.

  Raises:
    CannotDo: the right answer is not known, the policy failed, or no prefix
      of a wrong chain succeeds, the bare problem included: the problem is too
      hard for this policy, and where the error lies cannot be seen.
  """
  states: Tree = {}
  return _tallied((yield from _label(chain, states, config)), states)


def tree(
  chain: Chain, config: OmegaConfig
) -> Generator[Asked, Answers, tuple[Chain, ...]]:
  """The labelled chain and up to `searches` wrong rollouts, labelled alike.

  Each search takes the state s and its wrong rollout r, 0 < MC(s) < 1, that
  are greatest by

      Q(s, r) + U(s),  Q = alpha^(1 - MC(s)) * beta^(words(r) / L),
      U = c_puct * sqrt(sum_i N(s_i)) / (1 + N(s)),

  then searches r for its first error, which adds the prefixes that it rolls
  out. The tree starts with k rollouts from the problem. It ends when no pair
  is left, and leaves out what the policy fails at. The added chains have the
  chain's meta, with '/omega/' and their number in `id` and no `generator`: the
  policy wrote their ends. The first chain's `meta['rollouts']` is of all.

  Raises:
    CannotDo: as `label`.
  """
  states: Tree = {}
  truth = grading.truth_of(chain)
  yield from _visit(chain, (), states, truth, config)
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
    except CannotDo:
      # The chains found before cost rollouts; this one is not of them.
      continue
    meta = dict(chain.meta) | {'id': f'{chain.meta["id"]}/omega/{len(chains)}'}
    for name in ('generator', 'rollouts'):
      meta.pop(name, None)
    found = Chain(chain.problem, steps, final_answer(steps), False, meta=meta)
    chains.append(_labelled(found, error, states, truth, config))
  return (_tallied(chains[0], states), *chains[1:])


def select(
  states: Sequence[State], config: OmegaConfig
) -> tuple[State, tuple[str, ...]] | None:
  """The state and the wrong rollout with the greatest Q + U; None if no pair.

  The first of equals, in the order in which states and rollouts came.
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


def _label(chain: Chain, states: Tree, config: OmegaConfig) -> Labelling:
  truth = grading.truth_of(chain)
  steps = chain.steps
  error = len(steps)
  if not rollouts.outcome_label(chain, truth, config.samples).value:
    error = yield from _first_error(chain, steps, 0, states, truth, config)
  return _labelled(chain, error, states, truth, config)


def _first_error(
  chain: Chain,
  steps: tuple[str, ...],
  right: int,
  states: Tree,
  truth: str,
  config: OmegaConfig,
) -> Generator[Asked, Answers, int]:
  """Index of the first wrong step of a wrong chain, by binary search.

  Args:
    chain: whose problem and id the requests have.
    right: the first so many steps are known to be right.
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
    # Nothing has succeeded yet: is it the first step, or the policy?
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
  states: Tree,
  truth: str,
  config: OmegaConfig,
) -> Generator[Asked, Answers, State]:
  """The state of a prefix, rolled out unless it was before."""
  if prefix not in states:
    key = f'{chain.meta["id"]}/omega/{len(states)}'
    [had] = yield from rollouts.sample(
      chain.problem, [prefix], [key], truth, config
    )
    wrong = [
      each.steps for each in had if each.finished and each.right is False
    ]
    # Equal ones would be searched to the same end.
    wrong = [steps for steps in dict.fromkeys(wrong) if steps]
    # Also where the policy failed: the next prefix needs a key of its own.
    label, tally = rollouts.count(had), rollouts.tally(had)
    states[prefix] = State(prefix, label, wrong, tally=tally)
  if not states[prefix].label.trials:
    raise CannotDo(f'the policy gave no completion after {len(prefix)} steps')
  return states[prefix]


def _tallied(chain: Chain, states: Tree) -> Chain:
  """The chain, with the tallies of all states in its meta."""
  sums = rollouts.tally(())
  for state in states.values():
    sums = {name: count + state.tally[name] for name, count in sums.items()}
  return dataclasses.replace(chain, meta={**chain.meta, 'rollouts': sums})


def _labelled(
  chain: Chain, error: int, states: Tree, truth: str, config: OmegaConfig
) -> Chain:
  """The chain with its labels; `error` is its length where there is none."""
  labels = []
  for i in range(len(chain.steps)):
    implied = float(i < error) if config.unvisited == 'implied' else None
    step = StepLabel(implied, 'rollout')
    visited = states.get(chain.steps[: i + 1])
    # Another chain's search may have visited it and have been of another mind.
    value = visited and visited.label.value
    if value is not None and (value > config.threshold) == (i < error):
      step = visited.label
    labels.append(step)
  labels[-1] = rollouts.outcome_label(chain, truth, config.samples)
  return dataclasses.replace(chain, labels=tuple(labels))

"""Turns step scores into rewards for each step.

    PRM's step scores [B, P] -> a form of reward [B, P] -> normalise
      -> credit.py, which mixes it with the outcome

Each form is a pure, jittable function. `mask` says which of the P places hold a
step of the chain; its steps come first. All other places get reward 0, so no
reward can land on a prompt, on padding or after a chain's end.

Every function checks the shapes of its arguments, also under `jax.jit`, and
raises AssertionError with its own name: broadcasting would hide the mistake.
"""

import dataclasses
from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least, one_of

FORMS = (
  'raw',
  'total',
  'min_form',
  'clip',
  'delta',
  'advantage',
  'potential',
  'outcome',
)
# Only the sum of such rewards means something, not a single one.
TELESCOPING = 'delta', 'potential'
# A step's reward depends on the chain's other steps, so only the sum can be
# compared with that of another chain.
SUMMED = 'total', 'min_form', *TELESCOPING
NORMALISE = ('none', 'steps')
CHAINS = ('all', 'wrong')


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """Says how step scores become rewards.

  Attributes:
    form: what a step's reward is: its score ('raw'), min(score - threshold, 0)
      ('clip'), the score's rise over the step before ('advantage') or its fall
      to the next ('delta'); 'total' pays the sum at the last step, 'min_form'
      about the minimum (PURE), 'potential' is shaping, 'outcome' pays nothing.
    weight: factor of the process reward when credit.py adds it up.
    outcome_weight: factor of the verifier's outcome (1 or 0), likewise.
    centre: subtracted from every score first, except for `clip`. At 0.5 a step
      that is as likely wrong as right has reward 0. Below, more steps bring
      more reward, and the lowest score of `min_form` has almost no weight.
    temperature: temperature of `min_form`, for scores in [0, 1]: half of the
      value for PURE's, which are in [-1, 1].
    threshold: eta of `clip`; at 0 every reward would be 0.
    normalise: 'steps' divides by the number of the chain's steps.
    kl_weight: factor of the KL divergence from the first policy, which loop.py
      subtracts from the rewards.
    decay: whether `weight` falls to 0 in the course of the run, linearly.
    chains: whose steps are rewarded: those of 'all' chains, or of 'wrong' ones
      alone, which says where they went wrong. In grpo, or with the baseline
      'position', the advantages of their steps add up to 0 in each group.
  """

  form: Annotated[str, one_of(*FORMS)] = 'raw'
  weight: Annotated[float, at_least(0)] = 1.0
  outcome_weight: Annotated[float, at_least(0)] = 0.0
  centre: float = 0.5
  temperature: Annotated[float, above(0)] = 0.05
  threshold: Annotated[float, above(0)] = 0.5
  normalise: Annotated[str, one_of(*NORMALISE)] = 'none'
  kl_weight: Annotated[float, at_least(0)] = 0.0
  decay: bool = False
  chains: Annotated[str, one_of(*CHAINS)] = 'all'

  def __post_init__(self) -> None:
    checks.check(self)

  @property
  def is_summed(self) -> bool:
    """Says whether only the sum of a chain's rewards can be compared."""
    if self.form == 'outcome':
      return False
    return self.form in SUMMED or self.normalise == 'steps'

  def weight_share(self, update: int, updates: int) -> float:
    """Returns the share of `weight` that counts in an update, from 1 to n."""
    return 1 - (update - 1) / updates if self.decay else 1.0


def check_steps(name: str, scores: jax.Array, mask: jax.Array) -> None:
  """Raises AssertionError unless both are [B, P]."""
  chex.assert_rank(scores, 2, custom_message=f'{name}: scores')
  chex.assert_shape(mask, scores.shape, custom_message=f'{name}: mask')


def raw(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
) -> jax.Array:  # [B, P]
  """Returns r_t = s_t; any score above 0 adds to the return."""
  check_steps('raw', scores, mask)
  return jnp.where(mask, scores, 0.0)


def total(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Gives the sum of all scores to the last step, and 0 to the others."""
  check_steps('total', scores, mask)
  return at_last(raw(scores, mask).sum(-1), mask)


def min_form(
  scores: jax.Array, mask: jax.Array, temperature: float
) -> jax.Array:
  """Returns r_t = w_t s_t with w = softmax(-s / T) over the chain's steps.

  PURE (Cheng et al., 2025): the sum of rewards tends to the minimum of the
  scores as T -> 0, and to their mean as T grows. Scores must be signed. With
  scores in [0, 1] a surely wrong step would get reward 0, no less than a right
  one beside it, and the steps before it would be blamed.
  """
  check_steps('min_form', scores, mask)
  logits = jnp.where(mask, -scores / temperature, -jnp.inf)
  # The softmax of a chain without steps would be NaN, and its gradient too.
  logits = jnp.where(mask.any(-1, keepdims=True), logits, 0.0)
  return jnp.where(mask, jax.nn.softmax(logits) * scores, 0.0)


def clip(scores: jax.Array, mask: jax.Array, threshold: float) -> jax.Array:
  """Returns r_t = min(s_t - eta, 0), never positive (Gao et al., 2024)."""
  check_steps('clip', scores, mask)
  return jnp.where(mask, jnp.minimum(scores - threshold, 0.0), 0.0)


def delta(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns r_t = s_t - s_{t+1}, and s_t at the last step (Gao et al., 2024).

  The sum telescopes: the return from step t on is s_t, however many steps
  follow.
  """
  check_steps('delta', scores, mask)
  scores = raw(scores, mask)
  return jnp.where(mask, scores - _shift_left(scores), 0.0)


def advantage(
  scores: jax.Array,
  mask: jax.Array,
  start: jax.Array,  # [B]
) -> jax.Array:
  """Returns r_t = s_t - s_{t-1}, by which the step changes the success rate.

  PAV (Setlur et al., 2025): if the scores are values under a prover policy,
  this is the step's advantage under it. The return is s_P - s_0.

  Args:
    start: s_0, the value of the problem before any step.
  """
  check_steps('advantage', scores, mask)
  chex.assert_shape(start, scores.shape[:1], custom_message='advantage: start')
  scores = raw(scores, mask)
  before = jnp.concatenate([start[:, None], scores[:, :-1]], 1)
  return jnp.where(mask, scores - before, 0.0)


def potential_end(
  scores: jax.Array,
  mask: jax.Array,
  start: jax.Array,  # [B]
) -> jax.Array:  # [B]
  """Returns -phi_P, which makes `advantage` a potential-based shaping.

  Ng, Harada and Russell (1999): with the scores as a potential phi the reward
  of a step is phi_t - phi_{t-1}, and the theorem requires a potential of 0
  after the chain's end. Added to any reward, undiscounted, the two leave the
  optimal policy unchanged: the return of a chain changes by -phi_0 whatever its
  steps are. Without a step phi_P is phi_0.
  """
  check_steps('potential_end', scores, mask)
  chex.assert_shape(
    start, scores.shape[:1], custom_message='potential_end: start'
  )
  last = jnp.where(is_last(mask), scores, 0.0).sum(-1)
  return -jnp.where(mask.any(-1), last, start)


def implicit(
  logprobs: jax.Array,  # [B, T] of the sampled tokens under the implicit PRM
  reference: jax.Array,  # [B, T] under its reference
  step_ends: jax.Array,  # [B, P] ascending
  mask: jax.Array,  # [B, P]
  token_mask: jax.Array,  # [B, T] bool, tokens that the policy wrote
  beta: float,
) -> jax.Array:  # [B, P]
  """Returns r_t = beta * sum of log pi / pi_ref over the step's tokens.

  Implicit PRM (Yuan et al., 2024) at the granularity of steps, as in PRIME (Cui
  et al., 2025): the step rewards of a model trained on outcomes alone. Tokens
  after the end of the last step belong to no step.
  """
  chex.assert_rank(logprobs, 2, custom_message='implicit: logprobs')
  chex.assert_shape(
    [reference, token_mask],
    logprobs.shape,
    custom_message='implicit: reference, token_mask',
  )
  chex.assert_shape(
    [step_ends, mask],
    (len(logprobs), mask.shape[-1]),
    custom_message='implicit: step_ends, mask',
  )
  ratio = jnp.where(token_mask, logprobs - reference, 0.0)
  until = jnp.take_along_axis(jnp.cumsum(ratio, 1), step_ends, 1)
  until = jnp.where(mask, until, 0.0)
  before = jnp.concatenate([jnp.zeros_like(until[:, :1]), until[:, :-1]], 1)
  return jnp.where(mask, beta * (until - before), 0.0)


def is_last(mask: jax.Array) -> jax.Array:  # [B, P] bool
  """Marks the last step of each chain; none in a chain without steps."""
  return mask & ~_shift_left(mask)


def at_last(values: jax.Array, mask: jax.Array) -> jax.Array:  # [B, P]
  """Places one value [B] of each chain at its last step."""
  chex.assert_rank(mask, 2, custom_message='at_last: mask')
  chex.assert_shape(values, mask.shape[:1], custom_message='at_last: values')
  return jnp.where(is_last(mask), values[:, None], 0.0)


def _shift_left(x: jax.Array) -> jax.Array:
  return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], 1)


def process_rewards(
  scores: jax.Array,  # [B, P] in [0, 1]
  mask: jax.Array,  # [B, P] bool
  start: jax.Array,  # [B] value of the problem before any step
  config: RewardConfig,
) -> jax.Array:  # [B, P]
  """Returns form(scores - centre), divided by the number of steps if set."""
  steps, end = step_and_end_rewards(scores, mask, start, config)
  return steps + at_last(end, mask)


def step_and_end_rewards(
  scores: jax.Array,  # [B, P] in [0, 1]
  mask: jax.Array,  # [B, P] bool
  start: jax.Array,  # [B] value of the problem before any step
  config: RewardConfig,
) -> tuple[jax.Array, jax.Array]:  # [B, P], [B]
  """Returns `process_rewards`, and the reward of each chain for its end.

  Only 'potential' rewards the end, because whether a step is the last is not
  known before the chain ends.
  """
  check_steps('process_rewards', scores, mask)
  chex.assert_shape(
    start, scores.shape[:1], custom_message='process_rewards: start'
  )
  centred, start = scores - config.centre, start - config.centre
  forms = {
    'raw': lambda: raw(centred, mask),
    'total': lambda: total(centred, mask),
    'min_form': lambda: min_form(centred, mask, config.temperature),
    'clip': lambda: clip(scores, mask, config.threshold),
    'delta': lambda: delta(centred, mask),
    'advantage': lambda: advantage(centred, mask, start),
    'potential': lambda: advantage(centred, mask, start),
    'outcome': lambda: jnp.zeros_like(scores),
  }
  process = forms[config.form]()
  end = jnp.zeros_like(start)
  if config.form == 'potential':
    end = potential_end(centred, mask, start)
  if config.normalise == 'steps':
    count = jnp.maximum(mask.sum(-1), 1)
    process, end = process / count[:, None], end / count
  return process, end


def increments(
  scores: jax.Array,  # [B, P] in [0, 1]
  mask: jax.Array,  # [B, P] bool
  start: jax.Array,  # [B] value of the problem before any step
  config: RewardConfig,
) -> tuple[jax.Array, jax.Array]:  # [B, P], [B]
  """Rewards each step with the change that it makes to the process reward.

  Step t gets R(s_1..s_t) - R(s_1..s_{t-1}), where R sums the rewards of
  `step_and_end_rewards` over a prefix. The total is the same. There a later
  step can change earlier rewards (total, delta, min_form, normalise='steps');
  here it cannot, so the return from step t on is just what depends on step t.

  Returns:
    The rewards of the steps, 0 where the mask is False, and of the end.
  """
  check_steps('increments', scores, mask)
  P = scores.shape[1]
  _, end = step_and_end_rewards(scores, mask, start, config)
  begins = mask[:, None] & jnp.tri(P, dtype=bool)  # [B, P, P]
  scores, start = (jnp.repeat(x, P, axis=0) for x in (scores, start))
  paid, _ = step_and_end_rewards(scores, begins.reshape(-1, P), start, config)
  so_far = paid.sum(1).reshape(-1, P)
  before = jnp.pad(so_far, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(mask, so_far - before, 0.0), end


def to_tokens(
  rewards: jax.Array,  # [B, P]
  step_ends: jax.Array,  # [B, P] indices of tokens
  mask: jax.Array,  # [B, P] bool
  length: int,  # T
) -> jax.Array:  # [B, T]
  """Places each step's reward at the token that ends it, 0 elsewhere."""
  chex.assert_rank(rewards, 2, custom_message='to_tokens: rewards')
  chex.assert_shape(
    [step_ends, mask],
    rewards.shape,
    custom_message='to_tokens: step_ends, mask',
  )
  rows = jnp.arange(len(rewards))[:, None]
  # Masked places are sent beyond the row, where the scatter drops them.
  places = jnp.where(mask, step_ends, length)
  tokens = jnp.zeros((len(rewards), length), rewards.dtype)
  return tokens.at[rows, places].add(rewards, mode='drop')

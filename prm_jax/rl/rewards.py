"""Step scores to rewards: what a policy is paid for each of its steps.

    PRM's step scores [B, P] -> a form of reward [B, P] -> normalise
      -> credit.py, which mixes it with the outcome

One pure function for each form, jittable. `mask` says which of the P places
hold a step of the chain; its steps come first. Nothing is paid elsewhere, so
nothing can land on a prompt, on padding or behind a chain's end.
"""

import dataclasses

import jax
import jax.numpy as jnp

from prm_jax.runtime.errors import UserError

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
TELESCOPING = 'delta', 'potential'  # a step's own reward says nothing alone
NORMALISE = ('none', 'steps')


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """How step scores become rewards.

  Attributes:
    form: one of FORMS.
    weight: of the process reward, and
    outcome_weight: of the verifier's outcome (1 or 0), as credit.py adds them.
    centre: subtracted from every score first, but for `clip`. 0.5 makes a step
      that is as likely wrong as right worth nothing: with less, more steps are
      more reward, and the lowest score of `min_form` is near nothing.
    temperature: of `min_form`, for scores from 0 to 1: half of that for PURE's,
      which go from -1 to 1.
    threshold: eta of `clip`.
    normalise: 'steps' divides by the number of the chain's steps.
  """

  form: str = 'raw'
  weight: float = 1.0
  outcome_weight: float = 0.0
  centre: float = 0.5
  temperature: float = 0.05
  threshold: float = 0.5
  normalise: str = 'none'

  def __post_init__(self) -> None:
    for name, fine, expected in (
      ('form', self.form in FORMS, f'one of {", ".join(FORMS)}'),
      ('temperature', self.temperature > 0, 'a number above 0'),
      (
        'normalise',
        self.normalise in NORMALISE,
        f'one of {", ".join(NORMALISE)}',
      ),
    ):
      if not fine:
        raise UserError(
          f'reward.{name}={getattr(self, name)!r}: expected {expected}'
        )


def raw(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
) -> jax.Array:  # [B, P]
  """r_t = s_t. The return grows with every step that scores above 0."""
  return jnp.where(mask, scores, 0.0)


def total(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """The sum of all scores, paid at the last step: `raw` without credit."""
  return at_last(raw(scores, mask).sum(-1), mask)


def min_form(
  scores: jax.Array, mask: jax.Array, temperature: float
) -> jax.Array:
  """r_t = w_t s_t with w = softmax(-s / T) over the chain's steps.

  PURE (Cheng et al., 2025): the sum of rewards tends to the minimum of the
  scores as T -> 0, and is their mean as T grows. Its scores are signed: with
  such from 0 to 1 a step that is surely wrong would be paid 0, no less than a
  right one beside it, and what came before it would be blamed.
  """
  logits = jnp.where(mask, -scores / temperature, -jnp.inf)
  # A chain without steps has no softmax, and no reward.
  logits = jnp.where(mask.any(-1, keepdims=True), logits, 0.0)
  return jnp.where(mask, jax.nn.softmax(logits) * scores, 0.0)


def clip(scores: jax.Array, mask: jax.Array, threshold: float) -> jax.Array:
  """r_t = min(s_t - eta, 0) (Gao et al., 2024): no step adds to the return."""
  return jnp.where(mask, jnp.minimum(scores - threshold, 0.0), 0.0)


def delta(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """r_t = s_t - s_{t+1}, the last s_t (Gao et al., 2024).

  Telescopes: the return from step t on is s_t, however many steps follow.
  """
  scores = raw(scores, mask)
  return jnp.where(mask, scores - _shift_left(scores), 0.0)


def advantage(
  scores: jax.Array,
  mask: jax.Array,
  start: jax.Array,  # [B]
) -> jax.Array:
  """r_t = s_t - s_{t-1}: what the step adds to the chance of success.

  PAV (Setlur et al., 2025): with scores that are the value of a prover policy
  this is the step's advantage under it. The return is s_P - s_0.

  Args:
    start: s_0, the value of the problem before any step.
  """
  scores = raw(scores, mask)
  before = jnp.concatenate([start[:, None], scores[:, :-1]], 1)
  return jnp.where(mask, scores - before, 0.0)


def potential_end(
  scores: jax.Array,
  mask: jax.Array,
  start: jax.Array,  # [B]
) -> jax.Array:  # [B]
  """-phi_P: what makes `advantage` a shaping (Ng, Harada and Russell, 1999).

  With the scores as a potential phi a step is paid phi_t - phi_{t-1}, and the
  theorem wants a potential of 0 where the chain has ended. Added to any reward,
  undiscounted, the two leave the optimal policy as it is: the return of a chain
  changes by -phi_0 whatever its steps are. Without a step phi_P is phi_0.
  """
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
  """r_t = beta * sum over the step's tokens of log pi / pi_ref.

  Implicit PRM (Yuan et al., 2024) at the granularity of steps, as in PRIME (Cui
  et al., 2025): a model trained on outcomes alone has step rewards like that.
  What was written behind the last step's end is nobody's.
  """
  ratio = jnp.where(token_mask, logprobs - reference, 0.0)
  until = jnp.take_along_axis(jnp.cumsum(ratio, 1), step_ends, 1)
  until = jnp.where(mask, until, 0.0)
  before = jnp.concatenate([jnp.zeros_like(until[:, :1]), until[:, :-1]], 1)
  return jnp.where(mask, beta * (until - before), 0.0)


def is_last(mask: jax.Array) -> jax.Array:  # [B, P] bool
  """The last step of each chain; of a chain without steps none."""
  return mask & ~_shift_left(mask)


def at_last(values: jax.Array, mask: jax.Array) -> jax.Array:  # [B, P]
  """One value [B] of each chain at its last step."""
  return jnp.where(is_last(mask), values[:, None], 0.0)


def _shift_left(x: jax.Array) -> jax.Array:
  return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], 1)


def process_rewards(
  scores: jax.Array,  # [B, P] in [0, 1]
  mask: jax.Array,  # [B, P] bool
  start: jax.Array,  # [B] value of the problem before any step
  config: RewardConfig,
) -> jax.Array:  # [B, P]
  """form(scores - centre), by the steps of the chain if wanted."""
  steps, end = step_and_end_rewards(scores, mask, start, config)
  return steps + at_last(end, mask)


def step_and_end_rewards(
  scores: jax.Array,  # [B, P] in [0, 1]
  mask: jax.Array,  # [B, P] bool
  start: jax.Array,  # [B] value of the problem before any step
  config: RewardConfig,
) -> tuple[jax.Array, jax.Array]:  # [B, P], [B]
  """`process_rewards`, with what a chain is paid for ending there by itself.

  Only a potential is: that a step was the last is known when the chain ends.
  """
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


def to_tokens(
  rewards: jax.Array,  # [B, P]
  step_ends: jax.Array,  # [B, P] indices of tokens
  mask: jax.Array,  # [B, P] bool
  length: int,  # T
) -> jax.Array:  # [B, T]
  """Each step's reward at the token that ends it, 0 elsewhere."""
  rows = jnp.arange(len(rewards))[:, None]
  # What is masked is written behind the row, where it is dropped.
  places = jnp.where(mask, step_ends, length)
  tokens = jnp.zeros((len(rewards), length), rewards.dtype)
  return tokens.at[rows, places].add(rewards, mode='drop')

"""Wraps a PRM as the reward functions that other RL libraries call.

    rl.reward_fn(PRM) -> rewards of steps -> one number for each completion

    from prm_jax import rl
    from prm_jax.rl import adapters
    reward = adapters.trl(rl.reward_fn('/tmp/prm_math'))
    trainer = GRPOTrainer(model, reward_funcs=reward, ...)

Signatures are those of TRL 1.16, verl 0.9.1, tunix 0.1.7 and MaxText of
November 2026. Loops that credit each step take `by_token`, which pays tokens,
or `token_advantages`, which compares steps within a group.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.inference.packing import bucket
from prm_jax.inference.score import AGGREGATES, aggregate
from prm_jax.rl import credit
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.findings import Findings
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.text_rewards import RewardFn, Text
from prm_jax.runtime import checks

CONTEXT = 4  # preceding tokens that are decoded with each token
INCOMPLETE = '\ufffd'  # what a part of a character is decoded to
NO_STEPS = 0.0  # what a completion without steps is paid


def chain_reward(rewards: Sequence[float], how: str = 'min') -> float:
  """Returns the reward of a chain: NaN if one of its steps has none.

  Args:
    rewards: of the steps; [] pays NO_STEPS.
    how: one of `score.AGGREGATES`; 'prod' is the product.
  """
  if not rewards:
    return NO_STEPS
  if not all(map(math.isfinite, rewards)):
    return math.nan
  if how == 'prod':  # rewards may be negative
    return math.prod(rewards)
  row = np.asarray(rewards, np.float32)
  return float(aggregate(row, np.ones_like(row, bool), how))


def trl(
  rewards: RewardFn, how: str = 'min', name: str = 'prm'
) -> Callable[..., list[float | None]]:
  """Returns a reward function for TRL's GRPOTrainer and RLOOTrainer.

  A completion that the PRM cannot read gets None, which TRL leaves out.

  Args:
    rewards: what `rl.reward_fn` returns.
    how: see `chain_reward`.
    name: under which TRL logs it.
  """
  _check(how)

  def reward(
    prompts: Sequence[Text], completions: Sequence[Text], **_: Any
  ) -> list[float | None]:
    found = _of(rewards, prompts, completions, how)
    return [None if math.isnan(each) else each for each in found]

  reward.__name__ = name
  return reward


def tunix(
  rewards: RewardFn, how: str = 'min', unread: float = 0.0
) -> Callable[..., list[float]]:
  """Returns a reward function for tunix's GRPOLearner, and for MaxText's RL.

  Args:
    rewards: what `rl.reward_fn` returns.
    how: see `chain_reward`.
    unread: reward of a completion that the PRM cannot read.
  """
  _check(how)

  def reward(
    prompts: Sequence[Text], completions: Sequence[Text], *_: Any, **__: Any
  ) -> list[float]:
    found = _of(rewards, prompts, completions, how)
    return [unread if math.isnan(each) else each for each in found]

  return reward


def verl(
  rewards: RewardFn,
  how: str = 'min',
  problem: str = 'question',
  unread: float = 0.0,
) -> Callable[..., dict[str, float]]:
  """Returns a `compute_score` for verl's `custom_reward_function`.

  Its answer has `score`, and with it what verl logs: the lowest reward of a
  step, and the number of steps.

  Args:
    rewards: what `rl.reward_fn` returns.
    how: see `chain_reward`.
    problem: the field of `extra_info` that holds the problem's text.
    unread: score of a completion that the PRM cannot read.
  """
  _check(how)

  def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
  ) -> dict[str, float]:
    if not extra_info or problem not in extra_info:
      checks.fail(
        'extra_info',
        sorted(extra_info or ()),
        f'expected the problem under {problem!r}; name another field',
      )
    [steps] = rewards([(extra_info[problem], solution_str)])
    score = chain_reward(steps, how)
    return {
      'score': unread if math.isnan(score) else score,
      'prm_lowest': min(filter(math.isfinite, steps), default=0.0),
      'prm_steps': float(len(steps)),
    }

  return compute_score


def by_token(
  rewards: Sequence[float], pieces: Sequence[str], separator: str = '\n'
) -> list[float]:
  """Pays each step's reward at the token that ends it.

  Args:
    rewards: of the steps of a completion, as `rl.reward_fn` splits it.
    pieces: text of each token of the completion, as of `token_texts`.
    separator: text between steps.

  Returns:
    A number for each token; they add up to the sum of `rewards`.
  """
  ends = _step_ends(pieces, separator, len(rewards))
  paid = [0.0] * len(pieces)
  for end, reward in zip(ends, rewards, strict=True):
    paid[end] += reward
  return paid


def token_advantages(
  rewards: Sequence[Sequence[float]],
  pieces: Sequence[Sequence[str]],
  size: int,
  separator: str = '\n',
  config: AdvantageConfig | None = None,
) -> list[list[float]]:
  """Credits each token with the advantage of its step over the group's steps.

  Groups are `size` completions of each prompt, one after another. A group with
  a reward that is NaN has advantage 0. A step ends with its separator.

  Args:
    rewards: of the steps of each completion, as `rl.reward_fn` gives them.
    pieces: text of the tokens of each, as of `token_texts`.
    separator: text between steps.
    config: how steps are compared; by default with the mean of the group's
      steps at the same position, divided by the deviation of all its steps from
      these means, which leaves 0 for tokens after the last step.

  Returns:
    A number for each token.

  Raises:
    UserError: a group is incomplete, `separator` gives other steps than
      `rewards`, or `config` needs a value head or outcomes.
  """
  config = config or AdvantageConfig()
  _check_comparison(len(rewards), len(pieces), size, config)
  if not rewards:
    return []
  steps, tokens = map(len, rewards), map(len, pieces)
  # Rounded up, as JAX compiles a program for every shape.
  shape = len(rewards), bucket(max(steps), 8), bucket(max(tokens), 8)
  scores, ends = np.zeros(shape[:2], np.float32), np.zeros(shape[:2], np.int32)
  for i, (row, texts) in enumerate(zip(rewards, pieces, strict=True)):
    scores[i, : len(row)] = row
    ends[i, : len(row)] = _step_ends(texts, separator, len(row), closed=True)
  nothing = np.zeros(shape[::2], np.float32)
  findings = Findings(
    scores,
    _first(map(len, rewards), shape[1]),
    ends,
    nothing[:, 0],
    _first(map(len, pieces), shape[2]),
    nothing,
  )
  found, _ = credit.token_advantages(
    jax.tree.map(jnp.asarray, findings),
    jnp.asarray(nothing),
    1.0,
    size,
    RewardConfig(centre=0.0),  # they are rewards already
    config,
  )
  return [
    row[: len(texts)].tolist()
    for row, texts in zip(np.asarray(found), pieces, strict=True)
  ]


def _check_comparison(
  rewards: int, pieces: int, size: int, config: AdvantageConfig
) -> None:
  if size < 1 or rewards % size:
    checks.fail(
      'size', size, f'expected a divisor of the {rewards} completions'
    )
  if pieces != rewards:
    checks.fail('pieces', pieces, f'expected those of {rewards} completions')
  if config.estimator == 'gae':
    checks.fail('config.estimator', 'gae', "expected 'grpo' or 'rloo'")
  if config.keep < 1:
    checks.fail('config.keep', config.keep, 'expected 1: no outcome is known')


def _first(counts: Iterable[int], width: int) -> np.ndarray:  # [B, width]
  """Returns a mask of the first places of each row."""
  return np.arange(width) < np.array([*counts])[:, None]


def token_texts(
  tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[str]:
  """Returns the text that each token adds to a completion.

  Decoded alone, a token may lack the blank before it, so it is decoded after
  CONTEXT tokens before it. The token that completes a character of several
  tokens has that character; the others have no text.

  Args:
    tokens: ids.
    decode: makes text of ids, without special tokens.
  """
  pieces, read = [], 0  # tokens whose text is in pieces
  for i in range(len(tokens)):
    begin = max(0, read - CONTEXT)
    text = decode(tokens[begin : i + 1])
    if text.endswith(INCOMPLETE) and i + 1 < len(tokens):
      pieces.append('')
      continue
    pieces.append(text[len(decode(tokens[begin:read])) :])
    read = i + 1
  return pieces


def _step_ends(
  pieces: Sequence[str], separator: str, count: int, closed: bool = False
) -> list[int]:
  """Returns the index of the token that ends each of `count` steps.

  Args:
    closed: whether a step ends with its separator, where it has one.
  """
  if not separator:
    checks.fail('separator', separator, 'expected the text between steps')
  text, ends, at = ''.join(pieces), [], 0
  for part in text.split(separator):
    at += len(part)
    if part.strip():
      ends.append(min(at + len(separator), len(text)) if closed else at)
    at += len(separator)
  if len(ends) != count:
    checks.fail(
      'rewards',
      count,
      f'the completion has {len(ends)} steps; give the separator of reward_fn',
    )
  stops = np.cumsum([len(piece) for piece in pieces])
  return [int(np.searchsorted(stops, end)) for end in ends]


def _of(
  rewards: RewardFn,
  prompts: Sequence[Text],
  completions: Sequence[Text],
  how: str,
) -> list[float]:
  pairs = zip(prompts, completions, strict=True)
  return [chain_reward(steps, how) for steps in rewards(pairs)]


def _check(how: str) -> None:
  if how not in AGGREGATES:
    checks.fail('how', how, f'expected one of {", ".join(AGGREGATES)}')

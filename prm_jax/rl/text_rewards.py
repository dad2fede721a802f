"""Offers step rewards as a plain function of text, for other RL libraries.

    from prm_jax import rl
    rewards = rl.reward_fn('/tmp/prm_math')
    rewards([('mod 10 : 7 * 3 + 4', '7 * 3 = 1\\n1 + 4 = 5')])  # [[0.99, 0.98]]

TRL's GRPOTrainer calls a reward function with prompts and completions and needs
one number for each:

    def lowest(prompts, completions, **_):
      pairs = zip(prompts, completions, strict=True)
      return [min(r, default=0.0) for r in rewards(pairs)]

A chain that does not fit the PRM's window, has text that its tokenizer does not
know, or overflows gets NaN as rewards. Python's `min` may hide a NaN that does
not come first, so the number of such chains is logged as a warning.
"""

import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.loading import load
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.server.endpoint import split_steps
from prm_jax.rl.rewards import RewardConfig, process_rewards
from prm_jax.runtime import checks

# A text, or a chat's messages; only the last message is read.
Text = str | Sequence[Mapping[str, str]]
RewardFn = Callable[[Iterable[tuple[Text, Text]]], list[list[float]]]


def reward_fn(
  path: str | pathlib.Path,
  separator: str = '\n',
  config: RewardConfig | None = None,
  style: str = '',
) -> RewardFn:
  """Returns a function: (prompt, completion) pairs -> rewards of their steps.

  Args:
    path: path of a trained or published PRM, as in `prm_jax.load`.
    separator: the text between the steps of a completion; not empty.
    config: how scores become rewards; by default rewards are the scores. Its
      weights are not read, as there is no outcome to add, so its `chains` have
      to be 'all'.

  Returns:
    A function that returns for each pair a list with a number per step: []
      without steps, NaN if the PRM cannot read the chain or a score is not
      finite.
  """
  config = config or RewardConfig(centre=0.0)
  if config.chains != 'all':
    checks.fail(
      'config.chains',
      config.chains,
      "there is no outcome that says which are wrong; expected 'all'",
    )
  if not separator:
    checks.fail('separator', separator, 'expected the text between steps')
  scorer = ChainScorer(load(path, style=style))

  def rewards(pairs: Iterable[tuple[Text, Text]]) -> list[list[float]]:
    chains = [
      Scoring(_text(prompt), split_steps(_text(written), separator, True)[0])
      for prompt, written in pairs
    ]
    asked = iter(scorer.score([chain for chain in chains if chain.steps]))
    paid = [
      _rewards_of(next(asked)[0].scores, len(chain.steps), config)
      if chain.steps
      else []
      for chain in chains
    ]
    broken = [i for i, own in enumerate(paid) if not np.isfinite(own).all()]
    if broken:
      logging.warning(
        '%d of %d chains have rewards that are NaN, which %s cannot score; the '
        'first: %s',
        len(broken),
        len(paid),
        scorer.name,
        scorer.fault(chains[broken[0]]) or 'its scores are not finite',
      )
    return paid

  return rewards


def _rewards_of(
  scores: Sequence[float], count: int, config: RewardConfig
) -> list[float]:
  if not scores:
    return [float('nan')] * count
  row = np.asarray([scores], np.float32)
  # The problem's own value is not known; at `centre` it counts as nothing.
  start = np.full(1, config.centre, np.float32)
  paid = process_rewards(row, np.ones_like(row, bool), start, config)
  return np.asarray(paid)[0].tolist()


def _text(given: Text) -> str:
  return given if isinstance(given, str) else given[-1]['content']

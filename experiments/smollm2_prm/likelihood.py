"""What the log-probabilities of a chain's tokens say of its steps."""

import hashlib

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import DoesNotFit, Encoding, StepFormat


def encode(chain: Chain, fmt: StepFormat) -> Encoding | None:
  """Encodes a chain in the model's own format; None where no step fits."""
  try:
    return fmt.encode(chain.problem, chain.steps)
  except DoesNotFit:
    return None


def key_of(encoding: Encoding) -> str:
  """Returns the key of a chain in the cache."""
  return hashlib.sha256(encoding.tokens.tobytes()).hexdigest()[:24]


def step_scores(
  encoding: Encoding,
  logprobs: np.ndarray,  # [T]
  digit_tokens: frozenset[int],  # ids
  separator: int,
) -> dict[str, np.ndarray]:
  """Returns step scores [R] by each rule, from the tokens of the step alone.

  R steps fit the window; the others have no score. The separator belongs to the
  format and not to the step, so it is left out.

  Args:
    logprobs: log-probabilities of the chain's tokens.
    digit_tokens: ids of the tokens that are digits.
    separator: number of tokens of the separator.
  """
  read = len(encoding.step_ends)
  scores = {name: np.zeros(read) for name in ('digits', 'mean', 'minimum')}
  values = logprobs.astype(np.float64)
  is_digit = np.isin(encoding.tokens, [*digit_tokens])
  start = encoding.prompt_length
  for p, end in enumerate(encoding.step_ends):
    own = slice(start, end + 1 - separator)
    step = values[own]
    scores['digits'][p] = step[is_digit[own]].sum()
    scores['mean'][p] = step.mean()
    scores['minimum'][p] = step.min()
    start = end + 1
  return scores

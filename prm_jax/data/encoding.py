"""Turns a chain into token ids and step ends.

    prompt ids | step 0 ids, separator | step 1 ids, separator | ...

`step_ends` are the indices at which the score of a step is read: the last id
of its separator. Each step is tokenised by itself, so its ids do not depend on
its neighbours: training, scoring of whole chains and step-by-step search all
see the same ids. Everything that scores or trains works on ids and step ends
and never splits text again; policies also stop at the separator's id.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.runtime.errors import UserError, show

# Kinds of a step's tokens whose likelihood is read; 0 is not read.
DIGITS, WORDS = 1, 2


class DoesNotFit(UserError):
  """Says that not even the first step of a chain fits the window."""


class Encoding(NamedTuple):
  """Holds the token ids of a chain; it contains whole steps only."""

  tokens: np.ndarray  # [T] int32
  step_ends: np.ndarray  # [P] int32, strictly increasing indices into tokens
  prompt_length: int  # number of tokens before the first step


def check_steps(steps: Sequence[str]) -> None:
  """Raises UserError if there are no steps, or they are one text."""
  if isinstance(steps, str):  # else each of its letters would be a step
    raise UserError(
      f'steps={show(steps)}: expected a list of texts, one for each step, '
      'such as [line for line in text.splitlines() if line.strip()]'
    )
  if not steps:
    raise UserError('chain without steps: expected at least one')


@dataclasses.dataclass(frozen=True)
class StepFormat:
  """Says how a model reads a chain.

  The defaults are the project's own format over a built-in tokenizer. Published
  models bring theirs (`models.hub.published_formats`).

  Attributes:
    tokenizer: turns text into ids.
    max_length: length of the longest encoding in tokens.
    prompt_prefix: ids before the problem.
    prompt_template: text that contains `{problem}` and may contain special
      tokens; the whole text is tokenised at once. '' stands for the problem
      alone.
    prompt_suffix: ids between the problem and the first step.
    first_lead: text before the first step, tokenised together with it.
    turn: ids before every later step.
    next_lead: text before every later step, tokenised together with it.
    separator: ids after every step; the score is read at the last of them.
    end: the id with which a policy ends a chain, after the last separator; None
      if only reward models use the format.
    strip: whether white space around a step and before the problem is dropped,
      as some chat templates do.
  """

  tokenizer: tokenizer_lib.Tokenizer
  max_length: int
  prompt_prefix: tuple[int, ...] = (tokenizer_lib.BOS,)
  prompt_template: str = ''
  prompt_suffix: tuple[int, ...] = (tokenizer_lib.PROBLEM_END,)
  first_lead: str = ''
  turn: tuple[int, ...] = ()
  next_lead: str = ''
  separator: tuple[int, ...] = (tokenizer_lib.STEP_END,)
  end: int | None = None
  strip: bool = False

  def encode_prompt(self, problem: str) -> list[int]:
    """Returns the ids of everything before the first step."""
    if self.strip:
      problem = problem.lstrip()
    if self.prompt_template:
      text = self.prompt_template.replace('{problem}', problem)
      ids = self.tokenizer.encode_template(text)
    else:
      ids = self.tokenizer.encode(problem)
    return [*self.prompt_prefix, *ids, *self.prompt_suffix]

  def has_room(self, problem: str) -> bool:
    """Says whether at least one token fits after the problem."""
    return len(self.encode_prompt(problem)) < self.max_length

  def encode_step(self, step: str, first: bool) -> list[int]:
    """Returns the ids of one step; the last one is where its score is read.

    Args:
      first: whether it is the first step of its chain.

    Raises:
      UserError: the step has no tokens, or the tokenizer rejects its text.
    """
    if self.strip:
      step = step.strip()
    if not self.tokenizer.encode(step):
      raise UserError(f'step {step!r} has no tokens; remove it')
    lead = self.first_lead if first else self.next_lead
    ids = self.tokenizer.encode(lead + step)
    return [*(() if first else self.turn), *ids, *self.separator]

  def encode(self, problem: str, steps: Sequence[str]) -> Encoding:
    """Encodes a chain up to the last step that fits into `max_length`.

    The chain was cut if `len(encoding.step_ends) < len(steps)`.

    Raises:
      DoesNotFit: not even the first step fits.
      UserError: there are no steps, they are one text, or the tokenizer rejects
        the text.
    """
    check_steps(steps)
    prompt = self.encode_prompt(problem)
    encoded = [self.encode_step(step, i == 0) for i, step in enumerate(steps)]
    ends = len(prompt) + np.cumsum([len(ids) for ids in encoded])
    fitting = int((ends <= self.max_length).sum())
    if not fitting:
      raise DoesNotFit(
        f'the problem ({len(prompt)} tokens) and its first step '
        f'({len(encoded[0])} tokens) do not fit max_length={self.max_length}; '
        'raise it, or leave this chain out'
      )
    tokens = prompt + [i for ids in encoded[:fitting] for i in ids]
    return Encoding(
      np.asarray(tokens, np.int32),
      (ends[:fitting] - 1).astype(np.int32),
      len(prompt),
    )

  def encode_with_end(self, problem: str, steps: Sequence[str]) -> Encoding:
    """Encodes a chain for a policy: appends the end token to the last step.

    No end token is appended if the chain was cut or if no room is left for the
    token, because a policy must not learn to end a chain there.

    Raises:
      DoesNotFit: not even the first step fits.
      UserError: as for `encode`, or the format has no end token.
    """
    if self.end is None:
      raise UserError(
        'the format has no token that ends a chain, which a policy needs; set '
        'data.end to a token of its tokenizer'
      )
    encoding = self.encode(problem, steps)
    whole = len(encoding.step_ends) == len(steps)
    if not whole or len(encoding.tokens) == self.max_length:
      return encoding
    tokens = np.append(encoding.tokens, np.int32(self.end))
    return encoding._replace(tokens=tokens)

  @functools.cached_property
  def digit_tokens(self) -> frozenset[int]:
    """Ids of all tokens that contain a digit; separators do not count."""
    text = self.tokenizer.decode
    ids = set(range(self.tokenizer.vocab_size))
    ids -= {*self.separator, *self.turn, *self.prompt_suffix}
    return frozenset(i for i in ids if any(map(str.isdecimal, text([i]))))

  def token_kinds(self, encoding: Encoding) -> np.ndarray:  # [T] int8
    """Returns the `step_kinds` of each step; 0 outside of the steps."""
    kinds = np.zeros(len(encoding.tokens), np.int8)
    start = encoding.prompt_length
    for end in encoding.step_ends + 1:
      kinds[start:end] = self.step_kinds(encoding.tokens[start:end])
      start = end
    return kinds

  def step_kinds(self, ids: Sequence[int]) -> np.ndarray:  # [T] int8
    """Returns DIGITS for each token of a step with a digit, WORDS for others.

    It is 0 for the first token and for the separator. What predicts the first
    one is the last token before the step, which may be computed elsewhere, such
    as in a prompt that many candidates share; and the separator only says that
    the step ends.
    """
    kinds = np.where(np.isin(ids, [*self.digit_tokens]), DIGITS, WORDS)
    kinds[0] = 0
    kinds[len(ids) - len(self.separator) :] = 0
    return kinds.astype(np.int8)

  def fingerprint(self) -> str:
    """Returns 16 hex digits that change when ids or step ends could change."""
    probe = 'mod 10 : 7 * 3 + 12'
    if isinstance(self.tokenizer, tokenizer_lib.WordTokenizer):
      known = self.tokenizer.words[len(tokenizer_lib.SPECIALS) :]
      if not set(probe.split()) <= {*known}:
        probe = ' '.join(known)
    parts = (
      self.tokenizer.name,
      self.tokenizer.vocab_size,
      self.encode_prompt(probe),
      self.encode_step(probe, True),
      self.encode_step(probe, False),
      self.strip,
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def make_format(
  tokenizer: str | tokenizer_lib.Tokenizer,
  max_length: int,
  separator: str = '',
  end: str = '',
) -> StepFormat:
  """Returns the project's own format over any tokenizer.

  Args:
    tokenizer: a built-in tokenizer or its name, or that of a language model.
    max_length: length of the longest encoding in tokens.
    separator: the token that ends the problem and every step. Built-in
      tokenizers have their own: leave it ''.
    end: the token that ends a policy's chain; '' if there is none. Built-in
      tokenizers have their own: leave it ''.

  Raises:
    UserError: the tokenizer lacks one of the tokens, separator and end are the
      same token, or a built-in tokenizer was given one.
  """
  if isinstance(tokenizer, str):
    tokenizer = tokenizer_lib.get_tokenizer(tokenizer)
  if not isinstance(tokenizer, tokenizer_lib.HuggingFaceTokenizer):
    for name, given in (('separator', separator), ('end', end)):
      if given:
        raise UserError(
          f'data.{name}={given!r}: the tokenizer {tokenizer.name!r} has its '
          "own; set it to ''"
        )
    return StepFormat(tokenizer, max_length, end=tokenizer_lib.PROBLEM_END)
  step_end = tokenizer.id_of(separator)
  if end and tokenizer.id_of(end) == step_end:
    raise UserError(
      f'data.end={end!r} is data.separator, too; choose another token'
    )
  return StepFormat(
    tokenizer,
    max_length,
    prompt_prefix=tokenizer.first_ids,
    prompt_suffix=(step_end,),
    separator=(step_end,),
    end=tokenizer.id_of(end) if end else None,
  )

"""A chain as token ids and step ends: the only place that knows separators.

    prompt ids | step 0 ids, separator | step 1 ids, separator | ...

`step_ends` are the indices at which the score of a step is read: the last id
of its separator. Each step is tokenised by itself, so the ids of a step do not
depend on its neighbours, and training, one-shot scoring and step-by-step
search all see the same ids. Nothing downstream splits text again.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.runtime.errors import UserError


class DoesNotFit(UserError):
  """Not even the first step of a chain fits the window."""


class Encoding(NamedTuple):
  """Token ids of a chain, whole steps only."""

  tokens: np.ndarray  # [T] int32
  step_ends: np.ndarray  # [P] int32, strictly increasing indices into tokens
  prompt_length: int  # tokens before the first step


@dataclasses.dataclass(frozen=True)
class StepFormat:
  """How a model reads a chain.

  The defaults are our own format over a built-in tokenizer; a published model
  brings its own (published.py).

  Attributes:
    tokenizer: text to ids.
    max_length: longest encoding in tokens.
    prompt_prefix: ids before the problem.
    prompt_template: text with `{problem}` in it, special tokens included, that
      is tokenised as one; '' is the problem alone.
    prompt_suffix: ids between the problem and the first step.
    first_lead: text before the first step, tokenised with it.
    turn: ids before every later step.
    next_lead: text before every later step, tokenised with it.
    separator: ids after every step; scores are read at the last of them.
    end: the id with which a policy ends a chain, after its last separator; None
      where the format is a reward model's only.
    strip: whether blanks around a step and before the problem are dropped, as
      by chat templates that trim.
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
    """Ids of everything before the first step."""
    if self.strip:
      problem = problem.lstrip()
    if self.prompt_template:
      text = self.prompt_template.replace('{problem}', problem)
      ids = self.tokenizer.encode_template(text)
    else:
      ids = self.tokenizer.encode(problem)
    return [*self.prompt_prefix, *ids, *self.prompt_suffix]

  def has_room(self, problem: str) -> bool:
    """Whether a chain for it can have one token at least."""
    return len(self.encode_prompt(problem)) < self.max_length

  def encode_step(self, step: str, first: bool) -> list[int]:
    """Ids of one step with its separator; the score is read at the last.

    Args:
      first: whether it is the first step of its chain.
    """
    if self.strip:
      step = step.strip()
    if not self.tokenizer.encode(step):
      raise UserError(f'step {step!r} has no tokens; remove it')
    lead = self.first_lead if first else self.next_lead
    ids = self.tokenizer.encode(lead + step)
    return [*(() if first else self.turn), *ids, *self.separator]

  def encode(self, problem: str, steps: Sequence[str]) -> Encoding:
    """Ids and step ends of a chain, cut after the last step that fits.

    `len(encoding.step_ends) < len(steps)` says that it was cut.

    Raises:
      DoesNotFit: not even the first step fits.
      UserError: there are no steps, or the tokenizer refuses the text.
    """
    if not steps:
      raise UserError('chain without steps: expected at least one')
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
    """`encode` of what a policy writes: after the last step the end.

    A chain that was cut, or leaves no room for the end, has none: it does not
    end there.

    Raises:
      UserError: as `encode`, or the format has no end.
    """
    if self.end is None:
      raise UserError(
        "the format has no end of a chain, which a policy's needs; set "
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
    """The ids of tokens that have a digit in them, separators excepted."""
    text = self.tokenizer.decode
    ids = set(range(self.tokenizer.vocab_size))
    ids -= {*self.separator, *self.turn, *self.prompt_suffix}
    return frozenset(i for i in ids if any(map(str.isdecimal, text([i]))))

  def number_tokens(self, encoding: Encoding) -> np.ndarray:  # [T] bool
    """The tokens of steps that have a digit in them.

    Not the first token of a step: what came before it may be read elsewhere,
    as a prompt that many candidates share is.
    """
    numbers = np.isin(encoding.tokens, [*self.digit_tokens])
    numbers[: encoding.prompt_length + 1] = False
    numbers[encoding.step_ends[:-1] + 1] = False
    return numbers

  def fingerprint(self) -> str:
    """16 hex digits that change whenever ids or read-out could change."""
    probe = 'mod 10 : 7 * 3 + 12'
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
  """The project's own format over any tokenizer.

  Args:
    tokenizer: a built-in one, or its name, or a language model's.
    separator: the token that ends problem and steps, one id; '' where the
      tokenizer is built in and has its own.

  Raises:
    UserError: the tokenizer has no such token, or needs none.
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
    return StepFormat(
      tokenizer,
      max_length,
      end=tokenizer_lib.PROBLEM_END,
    )
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

"""Opens the PRMs of a server, and turns what clients send into their ids.

    problem and steps, text with separators, messages, or token ids
      -> ids of the prompt and of each step -> gather.py

Text and messages are read as the PRM's authors tokenise them, so that a chain
has the same ids however it is sent; only Math-Shepherd's separators have other
ids in a text. It has the same place in the cache, too, if its ids show where
the problem ends. Those of Math-Shepherd's and TRL's PRMs do not, and there the
problem and the first step are read as one, with the same scores.
"""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Protocol

from prm_jax.data.encoding import StepFormat
from prm_jax.data.tokenizer import SPECIALS, HuggingFaceTokenizer
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.inference.tree_scorer import check_length
from prm_jax.models.hub.chat_template import Renderer
from prm_jax.models.prefix_store import Ids
from prm_jax.runtime.errors import UserError
from prm_jax.serve.faults import Refused

Chain = list[Ids]  # the prompt's ids, and those of each step


def length_of(chain: Chain) -> int:
  """Returns the tokens of a chain."""
  return sum(map(len, chain))


class ChainScorer(Protocol):
  """Scores chains that it encoded, such as `tree_scorer.TreeScorer`."""

  def encode(self, problem: str, steps: Sequence[str]) -> Chain:
    """Returns the ids of the prompt and of each step.

    Raises:
      UserError: the chain cannot be read, or is too long.
    """
    ...

  def score_ids(self, chains: Sequence[Sequence[Ids]]) -> list[ScoredSteps]:
    """Returns the scores of the steps of each chain."""
    ...


class ServedPrm:
  """Is one of a server's PRMs.

  Args:
    name: by which clients ask for it.
    weights: a name that no other weights have.
    render: renders messages with the PRM's chat template; None without one.

  Attributes:
    scorer: it alone touches the devices.
    fingerprint: 12 hex digits that tell its weights from others.
    writes: whether it is a critic, whose tokens are not those of the chains.
  """

  writes = False

  def __init__(
    self,
    name: str,
    scorer: ChainScorer,
    fmt: StepFormat,
    weights: str,
    render: Renderer | None = None,
  ) -> None:
    self.name, self.scorer = name, scorer
    self.fingerprint = hashlib.sha256(weights.encode()).hexdigest()[:12]
    self.format, self._render = fmt, render
    self._specials = frozenset(range(len(SPECIALS)))
    if isinstance(fmt.tokenizer, HuggingFaceTokenizer):
      self._specials = fmt.tokenizer.special_ids

  @property
  def separator(self) -> str:
    """Returns the text that ends a step, as clients send it."""
    return self.format.tokenizer.decode(self.format.separator)

  @property
  def reads_text(self) -> bool:
    """Says whether a separator in a text can be told from other text."""
    tokenizer, separator = self.format.tokenizer, self.format.separator
    if not isinstance(tokenizer, HuggingFaceTokenizer) or len(separator) != 1:
      return False
    return separator[0] in self._specials or not self.separator.isspace()

  def separates(self, text: str) -> bool:
    """Says whether a text has separators in it, not only their letters."""
    tokenizer = self.format.tokenizer
    if not self.reads_text or self.separator not in text:
      return False
    whole = text.encode('utf-8', 'replace').decode()
    return self.format.separator[0] in tokenizer.encode_template(whole)

  def text_behind(self, ids: Sequence[int]) -> str:
    """Returns the text after the last separator, without special tokens.

    Args:
      ids: those of a chain that `of_ids` took.
    """
    [separator] = self.format.separator
    last = len(ids) - 1 - ids[::-1].index(separator)
    behind = [i for i in ids[last + 1 :] if i not in self._specials]
    return self.format.tokenizer.decode(behind)

  def of_steps(self, problem: str, steps: Sequence[str], field: str) -> Chain:
    """Encodes a problem and its steps.

    Args:
      field: the part of the body that they stand in, for messages.

    Raises:
      Refused: they cannot be read, or are too long.
    """
    try:
      return self.scorer.encode(problem, steps)
    except UserError as error:
      raise Refused(400, f'{field}: {error}', field) from None

  def of_messages(
    self, messages: Sequence[tuple[str, str]], field: str
  ) -> Chain:
    """Encodes a chat whose last message has a separator after each step."""
    if self._render is None:
      raise Refused(
        400,
        f'{self.name} has no chat template, so it reads no messages; send '
        'problem and steps to /v1/steps',
        field,
      )
    try:
      text = self._render(messages)
    except UserError as error:
      raise Refused(400, f'{field}: {error}', field) from None
    return self.of_text(text, field, begin=False)

  def of_text(self, text: str, field: str, begin: bool = True) -> Chain:
    """Encodes a whole text, with separators and special tokens in it.

    Args:
      begin: whether the tokenizer's own first tokens, such as <s>, go before
        it, if it has none.
    """
    tokenizer = self.format.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
      raise Refused(
        400,
        f'{self.name} has a tokenizer of its own, which no text can write '
        'separators in; send problem and steps to /v1/steps',
        field,
      )
    if any('\ud800' <= c <= '\udfff' for c in text):
      raise Refused(400, f'{field} has half a surrogate pair; remove it', field)
    ids = tokenizer.encode_template(text)
    first = list(tokenizer.first_ids)
    if begin and list(ids[: len(first)]) != first:
      ids = [*first, *ids]
    return self.of_ids(ids, field)

  def check_reads_ids(self, field: str) -> None:
    """Raises Refused if no ids show where steps of this PRM end."""
    if len(self.format.separator) != 1:
      raise Refused(
        400,
        f'the steps of {self.name} do not end with a token of their own; send '
        'problem and steps to /v1/steps',
        field,
      )
    if not self.reads_text and self.separator.isspace():
      raise Refused(
        400,
        f'{self.name} ends steps with {self.separator!r}, which problems and '
        'steps contain, too; send problem and steps to /v1/steps',
        field,
      )

  def of_ids(self, ids: Sequence[int], field: str) -> Chain:
    """Splits a whole chain after its prompt, and after each separator.

    What follows the last separator has no score, and is not read.

    Raises:
      Refused: the ids do not show where the steps end, or cannot be read.
    """
    self.check_reads_ids(field)
    if bad := [i for i in ids if not 0 <= i < self.format.tokenizer.vocab_size]:
      raise Refused(400, f'{field}: {self.name} has no token {bad[0]}', field)
    [separator] = self.format.separator
    ends = [n + 1 for n, i in enumerate(ids) if i == separator]
    start = self._prompt_length(ids, ends, field)
    if self.format.prompt_suffix == self.format.separator:
      ends = ends[1:]  # the first one ends the problem
    if not ends:
      raise Refused(
        400,
        f'{field}: no {self.separator!r} in it, after which {self.name} scores '
        'a step',
        field,
      )
    bounds = [0, start, *ends]
    chain = [tuple(ids[a:b]) for a, b in itertools.pairwise(bounds)]
    if any(len(step) < 2 for step in chain[1:]):
      raise Refused(
        400,
        f'{field}: a {self.separator!r} follows another; expected a step '
        'between them',
        field,
      )
    try:
      check_length(chain, self.format, self.name)
    except UserError as error:
      raise Refused(400, f'{field}: {error}', field) from None
    return chain

  def _prompt_length(
    self, ids: Sequence[int], ends: Sequence[int], field: str
  ) -> int:
    """Returns where the first step begins.

    The problem of a PRM that was trained here ends with a token of its own, or
    as steps do. Otherwise the steps follow the last special token.
    """
    if not ends:
      return 0
    if self.format.prompt_suffix:
      [last] = self.format.prompt_suffix
      if last not in ids:
        raise Refused(
          400, f'{field}: no token {last} in it, which ends the problem', field
        )
      return ids.index(last) + 1
    before = range(ends[0] - 1)
    return max((n + 1 for n in before if ids[n] in self._specials), default=1)

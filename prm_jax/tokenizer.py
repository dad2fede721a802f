"""Text to token ids and back.

Two built-in tokenizers share the same four special ids, which no text can
produce: the words of the arithmetic domain, and plain UTF-8 bytes.
"""

from collections.abc import Sequence
from typing import Protocol

from prm_jax.errors import UserError

# Special ids of the built-in tokenizers.
PAD, BOS, STEP_END, PROBLEM_END = range(4)
SPECIALS = ('<pad>', '<bos>', '<step_end>', '<problem_end>')


class Tokenizer(Protocol):
  """What the encoding needs of a tokenizer."""

  name: str
  vocab_size: int

  def encode(self, text: str) -> list[int]: ...

  def decode(self, ids: Sequence[int]) -> str: ...


class ArithmeticTokenizer:
  """One id per blank-separated word: the numbers 0 to 99, signs, `mod`, `:`."""

  name = 'arithmetic'
  _WORDS = ('+', '-', '*', '=', 'mod', ':', *map(str, range(100)))
  vocab_size = len(SPECIALS) + len(_WORDS)

  def __init__(self):
    self._ids = {w: i + len(SPECIALS) for i, w in enumerate(self._WORDS)}

  def encode(self, text: str) -> list[int]:
    """Ids of `text`; a word outside the vocabulary is a UserError."""
    try:
      return [self._ids[word] for word in text.split()]
    except KeyError as error:
      raise UserError(
        f'{error.args[0]!r} is not a word of the arithmetic tokenizer '
        '(0 to 99, + - * = mod :); use tokenizer "bytes" for other text'
      ) from None

  def decode(self, ids: Sequence[int]) -> str:
    words = SPECIALS + self._WORDS
    return ' '.join(words[i] for i in ids if i != PAD)


class ByteTokenizer:
  """UTF-8 bytes, moved up past the special ids."""

  name = 'bytes'
  vocab_size = len(SPECIALS) + 256

  def encode(self, text: str) -> list[int]:
    try:
      return [byte + len(SPECIALS) for byte in text.encode()]
    except UnicodeEncodeError as error:
      raise UserError(
        f'text holds {text[error.start]!r}, which is no Unicode character '
        'and has no UTF-8 form; remove it'
      ) from None

  def decode(self, ids: Sequence[int]) -> str:
    data = bytes(i - len(SPECIALS) for i in ids if i >= len(SPECIALS))
    return data.decode(errors='replace')


BUILT_IN = {'arithmetic': ArithmeticTokenizer, 'bytes': ByteTokenizer}


def get_tokenizer(name: str) -> Tokenizer:
  """The built-in tokenizer called `name`."""
  if name not in BUILT_IN:
    raise UserError(
      f'unknown tokenizer {name!r}: expected one of {", ".join(BUILT_IN)}'
    )
  return BUILT_IN[name]()

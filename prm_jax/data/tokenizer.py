"""Text to token ids and back.

Two built-in tokenizers share the same four special ids, which no text can
produce: the words of the arithmetic domain, and plain UTF-8 bytes. Language
models bring a `tokenizer.json`.
"""

import copy
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Protocol

import tokenizers

from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# Special ids of the built-in tokenizers.
PAD, BOS, STEP_END, PROBLEM_END = range(4)
SPECIALS = ('<pad>', '<bos>', '<step_end>', '<problem_end>')


class Tokenizer(Protocol):
  """What the encoding needs of a tokenizer."""

  name: str
  vocab_size: int

  def encode(self, text: str) -> list[int]: ...

  def encode_template(self, text: str) -> list[int]: ...

  def decode(self, ids: Sequence[int]) -> str: ...


class ArithmeticTokenizer:
  """One id per blank-separated word: the numbers 0 to 99, signs, `mod`, `:`."""

  name = 'arithmetic'
  _WORDS = ('+', '-', '*', '=', 'mod', ':', *map(str, range(100)))
  vocab_size = len(SPECIALS) + len(_WORDS)

  def __init__(self) -> None:
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

  encode_template = encode

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

  encode_template = encode

  def decode(self, ids: Sequence[int]) -> str:
    data = bytes(i - len(SPECIALS) for i in ids if i >= len(SPECIALS))
    return data.decode(errors='replace')


class HuggingFaceTokenizer:
  """The text of a `tokenizer.json`, read by the `tokenizers` library.

  Attributes:
    json: that text.
    first_ids: what the tokenizer itself puts before a text, such as <s>.
    specials: the special tokens as they are written.

  Args:
    where: where the text comes from, for the error message.

  Raises:
    UserError: the text is no tokenizer.
  """

  def __init__(self, text: str, where: str) -> None:
    try:
      # Two of them: the second takes what looks like a special token as text.
      self._special = tokenizers.Tokenizer.from_str(text)
      self._plain = tokenizers.Tokenizer.from_str(text)
      self._special.encode('a')
    except Exception as error:  # the library raises bare Exception
      raise UserError(
        f'{where} is not a tokenizer ({error}); expected a tokenizer.json of '
        "the 'tokenizers' library"
      ) from None
    self._plain.encode_special_tokens = True
    for each in (self._special, self._plain):
      each.no_padding()
      each.no_truncation()
    self.json = text
    self.name = hashlib.sha256(text.encode()).hexdigest()[:16]
    # Ids may have gaps.
    self.vocab_size = 1 + max(self._special.get_vocab().values())
    added = self._special.get_added_tokens_decoder().values()
    self.specials = tuple(token.content for token in added if token.special)
    with_specials = self._special.encode('a').ids
    alone = self.encode_template('a')
    if not alone:
      raise UserError(
        f"{where}: the tokenizer has no token for 'a'; take that of a language "
        'model'
      )
    self.first_ids = tuple(with_specials[: with_specials.index(alone[0])])
    # SentencePiece puts a blank before every text; a step is no new text.
    inside = self.encode_template('\na')[len(self.encode_template('\n')) :]
    self._anchor = '' if inside == alone else '\n'

  def alone(self) -> 'HuggingFaceTokenizer':
    """The same, but `encode` takes each text as a text of its own."""
    other = copy.copy(self)
    other._anchor = ''
    return other

  def id_of(self, token: str) -> int:
    """The id of one token; a UserError where there is none."""
    found = self._special.token_to_id(token)
    if found is None:
      raise UserError(
        f'the tokenizer has no token {token!r}; set data.separator to one that '
        'it has, best a special one'
      )
    return found

  def first_from(self, number: int) -> tuple[int, str]:
    """The first token with this id or a greater one: its id and its text."""
    vocabulary = self._special.get_vocab()
    return min((i, text) for text, i in vocabulary.items() if i >= number)

  def encode(self, text: str) -> list[int]:
    """Ids of text inside a chain; none of them is a special token."""
    encode = self._plain.encode
    if any('\ud800' <= c <= '\udfff' for c in text):
      raise UserError(
        'text holds half a surrogate pair, which is no Unicode character and '
        'has no tokens; remove it'
      )
    anchor = encode(self._anchor, add_special_tokens=False).ids
    ids = encode(self._anchor + text, add_special_tokens=False).ids
    return ids[len(anchor) :]

  def encode_template(self, text: str) -> list[int]:
    """Ids of the beginning of a chain, special tokens read as such."""
    return self._special.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[int]) -> str:
    return self._special.decode(list(ids), skip_special_tokens=False)


BUILT_IN = {'arithmetic': ArithmeticTokenizer, 'bytes': ByteTokenizer}


def read_tokenizer(directory: pathlib.Path) -> HuggingFaceTokenizer:
  """The tokenizer.json of a folder; a UserError where there is none."""
  path = directory / 'tokenizer.json'
  try:
    text = paths.read_text(path)
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(
      f'{path} cannot be read ({error}); name a folder with a tokenizer.json'
    ) from None
  return HuggingFaceTokenizer(text, str(path))


def check_rows(tokenizer: Tokenizer, rows: int, where: object) -> None:
  """Raises UserError unless a model has a row for every token.

  More rows than tokens are usual: embeddings are padded.

  Args:
    rows: of its embedding.
    where: the model and its tokenizer are.
  """
  if tokenizer.vocab_size <= rows:
    return
  number, text = rows, tokenizer.decode([rows])
  if isinstance(tokenizer, HuggingFaceTokenizer):
    number, text = tokenizer.first_from(rows)
  raise UserError(
    f'{where}: the token {text!r} of the tokenizer has the id {number}, but '
    f'the embedding of the model has {rows} rows; the two are of different '
    'models, or tokens were added without rows for them: bring the tokenizer '
    'of this model'
  )


def get_tokenizer(name: str) -> Tokenizer:
  """The built-in tokenizer called `name`."""
  if name not in BUILT_IN:
    raise UserError(
      f'unknown tokenizer {name!r}: expected one of {", ".join(BUILT_IN)}'
    )
  return BUILT_IN[name]()

"""Tokenizers: text to token ids and back, used by `encoding`.

The built-in tokenizers know the words of one domain each, or all UTF-8 bytes.
They share four special ids, which no text can produce. Language models bring a
`tokenizer.json`.
"""

import contextlib
import copy
import functools
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import tokenizers

from prm_jax.data.critiques import writing
from prm_jax.data.domains import code_text, logic_text
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

LONG_TEXT = 10_000  # characters, read in some 10 ms

# Special ids of the built-in tokenizers.
PAD, BOS, STEP_END, PROBLEM_END = range(4)
SPECIALS = ('<pad>', '<bos>', '<step_end>', '<problem_end>')


class Tokenizer(Protocol):
  """Describes what `encoding` needs of a tokenizer."""

  name: str
  vocab_size: int

  def encode(self, text: str) -> list[int]: ...

  def encode_template(self, text: str) -> list[int]: ...

  def decode(self, ids: Sequence[int]) -> str: ...


class WordTokenizer:
  """Gives an id to each word of a domain; words stand between blanks.

  Args:
    name: name of the tokenizer.
    words: all words, in the order of their ids.
    such_as: some of them, for an error message.

  Attributes:
    words: the same, after the special ids.
  """

  def __init__(self, name: str, words: Sequence[str], such_as: str) -> None:
    self.name, self._such_as = name, such_as
    self.words = (*SPECIALS, *words)
    self.vocab_size = len(self.words)
    self._ids = {w: i + len(SPECIALS) for i, w in enumerate(words)}

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text; raises UserError for an unknown word."""
    try:
      return [self._ids[word] for word in text.split()]
    except KeyError as error:
      raise UserError(
        f'{error.args[0]!r} is not a word of the {self.name} tokenizer '
        f'({self._such_as}); use tokenizer "bytes" for other text'
      ) from None

  encode_template = encode

  def decode(self, ids: Sequence[int]) -> str:
    return ' '.join(self.words[i] for i in ids if i != PAD)


class ByteTokenizer:
  """Gives an id to each UTF-8 byte, counted from after the special ids."""

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
  """Wraps a `tokenizer.json`, read by the `tokenizers` library.

  Attributes:
    name: 16 hex digits of the content's SHA-256.
    vocab_size: the largest id plus 1.
    first_ids: ids that the tokenizer itself puts before a text, such as <s>.
    specials: the texts of the special tokens.
    special_ids: their ids.

  Args:
    where: where the content comes from, for error messages.

  Raises:
    UserError: the text is not a tokenizer.
  """

  def __init__(self, text: str, where: str) -> None:
    with _faults_told(where, Exception):
      # Steps are encoded by the second copy, which reads a special token in a
      # text as ordinary characters, so no step can forge a separator.
      self._special = tokenizers.Tokenizer.from_str(text)
      self._plain = tokenizers.Tokenizer.from_str(text)
      # Before the first text: padding may be to any length.
      for tokenizer in (self._special, self._plain):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # Dropout is for training: it splits a text otherwise at every call.
        if getattr(tokenizer.model, 'dropout', None):
          tokenizer.model.dropout = None
      self._special.encode('a')
    self._plain.encode_special_tokens = True
    self.json, self._where = text, where
    self.name = hashlib.sha256(text.encode()).hexdigest()[:16]
    # The number of tokens would be too small: ids may have gaps.
    self.vocab_size = 1 + max(self._special.get_vocab().values(), default=-1)
    added = self._special.get_added_tokens_decoder()
    special = {i: token.content for i, token in added.items() if token.special}
    self.specials = tuple(special.values())
    self.special_ids = frozenset(special)
    with_specials = self._special.encode('a').ids
    alone = self.encode_template('a')
    if not alone:
      raise UserError(
        f"{where}: the tokenizer has no token for 'a'; take that of a language "
        'model'
      )
    self.first_ids = tuple(with_specials[: with_specials.index(alone[0])])
    # SentencePiece puts a blank before every text. A step continues a text, so
    # it is encoded behind an anchor whose ids are cut off again.
    inside = self.encode_template('\na')[len(self.encode_template('\n')) :]
    self._anchor = '' if inside == alone else '\n'

  def for_separate_texts(self) -> 'HuggingFaceTokenizer':
    """Returns a copy whose `encode` treats each text as the start of one."""
    other = copy.copy(self)
    other._anchor = ''
    return other

  def id_of(self, token: str) -> int:
    """Returns the id of a token; raises UserError if there is none."""
    found = self._special.token_to_id(token)
    if found is None:
      raise UserError(
        f'the tokenizer has no token {token!r}; as separator or end take one '
        'it has, best a special one'
      )
    return found

  def first_token_from(self, lowest: int) -> tuple[int, str]:
    """Returns id and text of the first token whose id is at least `lowest`."""
    vocabulary = self._special.get_vocab()
    return min((i, text) for text, i in vocabulary.items() if i >= lowest)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of text inside a chain; none is a special token."""
    with _faults_told(self._where):
      anchor = _encode(self._plain, self._anchor)
      ids = _encode(self._plain, self._anchor + text)
    return ids[len(anchor) :]

  def encode_template(self, text: str) -> list[int]:
    """Returns the ids of a chain's beginning; special tokens are recognised."""
    with _faults_told(self._where):
      return _encode(self._special, text)

  def decode(self, ids: Sequence[int]) -> str:
    with _faults_told(self._where):
      return self._special.decode(list(ids), skip_special_tokens=False)


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
  """Returns the ids of a text, without holding up other threads for long.

  `encode` keeps Python's lock for all of a text, seconds for some MB of it, and
  `encode_batch` does not.
  """
  if any('\ud800' <= c <= '\udfff' for c in text):
    raise UserError(
      'text holds half a surrogate pair, which is no Unicode character and '
      'has no tokens; remove it'
    )
  if len(text) <= LONG_TEXT:
    return tokenizer.encode(text, add_special_tokens=False).ids
  [found] = tokenizer.encode_batch([text], add_special_tokens=False)
  return found.ids


@contextlib.contextmanager
def _faults_told(where: str, *kinds: type[Exception]) -> Iterator[None]:
  """Raises UserError where the library fails on a file that is no tokenizer.

  It panics at once or at a text, by a BaseException that has no public type.

  Args:
    kinds: other exceptions that say the same.
  """
  try:
    yield
  except BaseException as error:
    panics = type(error).__name__ == 'PanicException'
    if not panics and not isinstance(error, kinds):
      raise
    raise UserError(
      f'{where} is not a tokenizer ({error}); expected a tokenizer.json of '
      "the 'tokenizers' library"
    ) from None


def _distinct(*words: str) -> tuple[str, ...]:
  return tuple(dict.fromkeys(words))


_NUMBERS = tuple(map(str, range(100)))
# Name -> the words, and which they are, for an error message.
_VOCABULARIES = {
  'arithmetic': (
    ('+', '-', '*', '=', 'mod', ':', *_NUMBERS),
    '0 to 99, + - * = mod :',
  ),
  'arithmetic_critic': (
    _distinct('+', '-', '*', '=', 'mod', *_NUMBERS, *writing.WORDS),
    'those of arithmetic and of critiques',
  ),
  'logic_critic': (
    _distinct(*logic_text.WORDS, *_NUMBERS[:32], *writing.WORDS),
    'those of logic and of critiques',
  ),
  'logic': (logic_text.WORDS, 'single letters, if then or not both iff ...'),
  'code': (code_text.WORDS, 'xs = [ ] for if 0 to 9 ...'),
}
BUILT_IN = {
  'bytes': ByteTokenizer,
  **{
    name: functools.partial(WordTokenizer, name, *known)
    for name, known in _VOCABULARIES.items()
  },
}


def read_tokenizer(directory: pathlib.Path) -> HuggingFaceTokenizer:
  """Reads the tokenizer.json of a folder; raises UserError if it cannot."""
  path = directory / 'tokenizer.json'
  try:
    text = paths.read_text(path)
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(
      f'{path} cannot be read ({error}); name a folder with a tokenizer.json'
    ) from None
  return HuggingFaceTokenizer(text, str(path))


def check_rows(tokenizer: Tokenizer, rows: int, where: object) -> None:
  """Raises UserError unless an embedding has a row for every token.

  More rows than tokens are allowed, because embeddings are often padded.

  Args:
    rows: number of rows of the model's embedding.
    where: where model and tokenizer are, for the error message.
  """
  if tokenizer.vocab_size <= rows:
    return
  token, text = rows, tokenizer.decode([rows])
  if isinstance(tokenizer, HuggingFaceTokenizer):
    token, text = tokenizer.first_token_from(rows)
  raise UserError(
    f'{where}: the token {text!r} of the tokenizer has the id {token}, but '
    f'the embedding of the model has {rows} rows; the two are of different '
    'models, or tokens were added without rows for them: bring the tokenizer '
    'of this model'
  )


def get_tokenizer(name: str) -> Tokenizer:
  """Returns the built-in tokenizer called `name`."""
  if name not in BUILT_IN:
    raise UserError(
      f'unknown tokenizer {name!r}: expected one of {", ".join(BUILT_IN)}'
    )
  return BUILT_IN[name]()

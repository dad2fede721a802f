"""Defines the command line of the server, and reads its file of keys."""

import argparse
import math
import os
import pathlib

from prm_jax.inference.published import STYLES
from prm_jax.inference.score import AGGREGATES
from prm_jax.models.config import DTYPES
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.serve.app import AppConfig
from prm_jax.serve.gather import GatherConfig
from prm_jax.serve.texts import Reading

Address = tuple[str, str]  # name, path


def address(text: str) -> Address:
  """Reads NAME=PATH or PATH; the name is owner/name then, or the last part.

  A path may have = in it where it begins as no name does, or exists.
  """
  name, equals, path = text.partition('=')
  begins_a_path = name.startswith(('/', '.', '~')) or '://' in name
  if not equals or begins_a_path or os.path.exists(text):
    name, path = pathlib.PurePath(text).name or text, text
    if text.startswith(HUB):
      name = text.removeprefix(HUB)
  if not name or not path:
    raise argparse.ArgumentTypeError(
      f'{text!r} lacks a name or a path; expected PATH or NAME=PATH'
    )
  return name, path


def port(text: str) -> int:
  """Reads the number of a port."""
  if not 0 <= int(text) < 2**16:
    raise ValueError
  return int(text)


def positive(text: str) -> float:
  """Reads a finite number above 0."""
  if not 0 < float(text) < math.inf:
    raise ValueError
  return float(text)


def finite(text: str) -> float:
  """Reads a finite number."""
  if not math.isfinite(float(text)):
    raise ValueError
  return float(text)


def count(text: str) -> int:
  """Reads a whole number above 0."""
  if int(text) < 1:
    raise ValueError
  return int(text)


def make_parser(description: str | None = None) -> argparse.ArgumentParser:
  """Returns the parser of the command line.

  Args:
    description: what --help says first.
  """
  parser = argparse.ArgumentParser(
    prog='prm_jax.serve',
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    '--prm',
    dest='prms',
    type=address,
    action='append',
    required=True,
    metavar='[NAME=]PATH',
    help='a PRM; may be given again for further ones; clients that cannot name '
    'one get the first',
  )
  add('--host', default='127.0.0.1', help='0.0.0.0 for all (%(default)s)')
  add(
    '--port', type=port, default=8000, help='0 takes a free one (%(default)s)'
  )
  add('--dtype', choices=DTYPES, default='', help='as in prm_jax.load')
  add(
    '--style',
    choices=STYLES,
    default='',
    help='as in prm_jax.load, only for PRMs that do not show their own',
  )
  add(
    '--rows',
    type=count,
    help='chains of the longest length that the cache of a PRM holds; default: '
    '1024, or as many as its share of half of the memory takes',
  )
  add(
    '--critiques',
    type=count,
    default=1,
    help='of a critic: critiques of each step, whose mean is its score '
    '(%(default)s, the most likely; more are drawn)',
  )
  add(
    '--warm',
    action='store_true',
    help='compile the programs first; /ready says when it is done',
  )
  add(
    '--model',
    type=count,
    default=1,
    help='devices over which each matrix is split; others split layers and '
    'rows (%(default)s)',
  )
  add('--coordinator', help='HOST:PORT of process 0, where there are several')
  add('--processes', type=int, help='how many processes serve together')
  add(
    '--process',
    type=int,
    help='number of this process; clients ask number 0',
  )
  add('--keys', metavar='FILE', help='keys of clients, a line each')
  add(
    '--requests',
    type=count,
    default=AppConfig.requests,
    help='most requests under way; further ones get 429 (%(default)s)',
  )
  add(
    '--timeout',
    type=positive,
    default=AppConfig.timeout,
    help='seconds in which a request is answered (%(default)s)',
  )
  add(
    '--body-bytes',
    type=count,
    default=AppConfig.body_bytes,
    help='most bytes of a body (%(default)s)',
  )
  add(
    '--wait-ms',
    type=positive,
    default=1000 * GatherConfig.wait,
    help='most milliseconds to wait for requests that arrive (%(default)s)',
  )
  add(
    '--separator',
    type=some_text,
    default=Reading().separator,
    help='text between steps where the separator is not sent (a blank line)',
  )
  add(
    '--aggregate',
    choices=AGGREGATES,
    default=Reading().how,
    help='aggregate for clients that read one score a chain (%(default)s)',
  )
  add(
    '--unread',
    type=finite,
    metavar='REWARD',
    help='score of an answer that cannot be scored, such as an empty or too '
    'long one, for clients that read one; the log says why. By default its '
    'request is refused',
  )
  return parser


def some_text(text: str) -> str:
  """Returns a text that is not empty."""
  if not text:
    raise argparse.ArgumentTypeError('expected a text that is not empty')
  return text


def read_keys(path: str | None) -> tuple[str, ...]:
  """Reads the keys of a file; none without a file.

  Raises:
    UserError: the file has no key, or is not text.
  """
  if path is None:
    return ()
  try:
    text = paths.open_path(path).read_bytes().decode('utf-8-sig')
  except UnicodeDecodeError:
    raise UserError(
      f'--keys={path}: the file is not text in UTF-8; write a key a line'
    ) from None
  keys = tuple(line.strip() for line in text.splitlines() if line.strip())
  if not keys:
    raise UserError(f'--keys={path}: the file is empty; write a key a line')
  return keys
